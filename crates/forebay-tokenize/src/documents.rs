//! What the documents of a corpus are: lines of JSON, lines of text, or whole files.

use std::path::Path;
use std::sync::Arc;

use forebay::{
    Config, Dataset, Defaults, FolderIndex, JsonRecipe, LineRule, Lines, Recipe, ScanOptions, StorageOptions, Store,
    TextRecipe, Unpacked, kind_of, open_store, scan_folder,
};
use forebay_core::{Error, Result, SampleId};
use serde::{Deserialize, Serialize};

const JSON_LINES: [&str; 2] = [".jsonl", ".ndjson"];
const TEXT: [&str; 1] = [".txt"];
/// Behind those, on compressed files of lines.
const PACKED: [&str; 4] = ["", ".gz", ".bgz", ".zst"];

/// What a document is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Documents {
    /// A string in each line of JSON, in the field of this name.
    JsonLines {
        /// The field.
        field: String,
    },
    /// Each line of text.
    Lines,
    /// Each file of text.
    Files,
}

/// The documents of a corpus.
pub(crate) struct Corpus {
    pub(crate) dataset: Arc<dyn Dataset>,
    pub(crate) store: Arc<dyn Store>,
    /// How their bytes become text.
    pub(crate) text: Arc<dyn Recipe>,
    /// Of all files, as they are stored.
    pub(crate) size_bytes: u64,
    pub(crate) defaults: Defaults,
}

impl Documents {
    fn endings(&self) -> Vec<String> {
        match self {
            Self::JsonLines { .. } => with_packed(&JSON_LINES),
            Self::Lines => with_packed(&TEXT),
            Self::Files => TEXT.map(str::to_owned).to_vec(),
        }
    }

    /// Finds the documents: in a folder, or in a single file.
    pub(crate) fn open(&self, root: &Path, options: &StorageOptions, threads: usize) -> Result<Corpus> {
        let endings = self.endings();
        let name = root.to_string_lossy().to_lowercase();
        let is_file = endings.iter().any(|ending| name.ends_with(ending));
        let listed = if is_file { root.parent().unwrap_or(Path::new("")) } else { root };
        let at = if listed.as_os_str().is_empty() { Path::new(".") } else { listed };
        let config = Config { max_io_threads: Defaults::on(None, threads).max_io_threads, ..Config::default() };
        let (store, plain) = open_store(at, options, &config)?;
        let files = if is_file {
            let name = root.file_name().unwrap_or_default();
            FolderIndex::of_paths(std::iter::once(&*plain.join(name)))?
        } else {
            let options = ScanOptions { extensions: endings, is_flat: true, ..ScanOptions::default() };
            scan_folder(&store, &plain, &options, None)?
        };
        let size_bytes = (0..files.len()).map(|file| {
            let path = files.path(SampleId(file));
            store.stat(&path).map(|stat| stat.size_bytes).map_err(|error| error.at_path(&path))
        });
        let size_bytes = size_bytes.sum::<Result<u64>>()?;
        let defaults = Defaults::on(kind_of(&*store, &plain), threads);
        let files: Arc<dyn Dataset> = Arc::new(files);
        let text: Arc<dyn Recipe> = match self {
            Self::JsonLines { field } => Arc::new(JsonRecipe { fields: vec![field.clone()], is_line: true }),
            Self::Lines | Self::Files => Arc::new(TextRecipe::default()),
        };
        let rule = match self {
            Self::JsonLines { .. } => LineRule::Json,
            Self::Lines => LineRule::Text,
            Self::Files => return Ok(Corpus { dataset: files, store, text, size_bytes, defaults }),
        };
        let lines = Lines::new(files, &store, rule, None)?;
        let store = match lines.tables() {
            Some(tables) => Arc::new(Unpacked::new(store, vec![Arc::clone(tables)])) as Arc<dyn Store>,
            None => store,
        };
        Ok(Corpus { dataset: Arc::new(lines), store, text, size_bytes, defaults })
    }

    /// What the documents of a place are, by its name: files of JSON lines say it, files of text do not.
    pub fn of_name(root: &Path, field: &str) -> Result<Self> {
        let name = root.to_string_lossy().to_lowercase();
        if with_packed(&TEXT).iter().any(|ending| name.ends_with(ending)) {
            let message = format!("holds text: its documents may be its lines, or the file may be one ({root:?})");
            return Err(Error::config(message).with_hint("say --documents lines or --documents files"));
        }
        Ok(Self::JsonLines { field: field.to_owned() })
    }
}

fn with_packed(endings: &[&str]) -> Vec<String> {
    endings.iter().flat_map(|ending| PACKED.map(|packed| format!("{ending}{packed}"))).collect()
}
