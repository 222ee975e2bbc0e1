//! Text becomes files of tokens: `.bin` and `.idx` as Megatron writes them, which [`forebay::Tokens`] and other loaders read.
//!
//! Documents are read by the loader, in their order, so everything of it holds: retries, deadlines, mounts that hang, a ledger of
//! what failed, and the same bytes for any number of threads. A shard is a run of the loader's steps. It appears complete or not
//! at all, and behind each one the loader's state is kept: a run that was killed goes on there, and ends with the same files.

mod documents;
mod hugging_face;
mod recipe;
mod record;
mod tokenizer;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::{
    Array, Batch, Column, Config, FailureLimit, Loader, OnError, Replacement, Run, Source, StorageOptions, Wording,
    neutral,
};
use forebay_core::{Element, Error, Result, Stage};
use forebay_format::MegatronWriter;
use forebay_store::{DirectorySink, is_url, machine};

pub use documents::Documents;
pub use hugging_face::HuggingFace;
pub use record::Shard;
pub use tokenizer::Tokenizer;

/// Documents in a step of the loader.
const STEP: u64 = 256;
/// Text of a shard: a corpus of a terabyte has a thousand.
const SHARD_BYTES: u64 = 1 << 30;
/// Tokenizing a document may take so long. A file of a gigabyte is one.
const DEADLINE: Duration = Duration::from_secs(600);

/// What to make tokens of, and where.
#[derive(Clone, Debug)]
pub struct Tokenize {
    /// A folder, a file, or the URL of one.
    pub source: PathBuf,
    /// Settings of its store.
    pub source_options: StorageOptions,
    /// What a document is.
    pub documents: Documents,
    /// The directory for the tokens.
    pub target: PathBuf,
    /// What the names of files begin with.
    pub prefix: String,
    /// The token behind each document, by its text.
    pub end_of_document: Option<String>,
    /// Whether the tokenizer puts its own tokens around documents.
    pub with_special: bool,
    /// So much text, as it is stored, makes a shard.
    pub shard_bytes: u64,
    /// When too many documents failed.
    pub max_failures: Option<FailureLimit>,
    /// The file that failures are appended to.
    pub ledger: Option<PathBuf>,
    /// Threads; `None` for as many as there are processors.
    pub threads: Option<usize>,
    /// The words of hints.
    pub wording: Wording,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Documents that were looked at, those of earlier runs included.
    pub done: u64,
    /// All documents.
    pub total: u64,
    /// Tokens so far.
    pub tokens: u64,
    /// Documents that failed.
    pub failed: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Tokenized {
    /// The files, without their endings, and what they hold.
    pub shards: Vec<(PathBuf, Shard)>,
    /// How many of them were there before this run.
    pub earlier_shards: usize,
    /// The type of the tokens.
    pub element: Element,
    /// The sum of all shards.
    pub sum: Shard,
    /// How long it took.
    pub elapsed: Duration,
}

impl Tokenize {
    /// All documents of `source`, into `target`.
    pub fn new(source: impl Into<PathBuf>, documents: Documents, target: impl Into<PathBuf>) -> Self {
        Self {
            source: source.into(),
            source_options: StorageOptions::default(),
            documents,
            target: target.into(),
            prefix: "tokens".to_owned(),
            end_of_document: None,
            with_special: false,
            shard_bytes: SHARD_BYTES,
            max_failures: None,
            ledger: None,
            threads: None,
            wording: neutral,
        }
    }

    /// Runs it. `watch` is called now and then in the calling thread.
    pub fn run(&self, tokenizer: Arc<dyn Tokenizer>, watch: &mut dyn FnMut(&Progress)) -> Result<Tokenized> {
        let started = Instant::now();
        self.check()?;
        let end_of_document = self.end_of_document(&*tokenizer)?;
        let threads = self.threads.unwrap_or_else(machine::available_cpus);
        let documents::Corpus { dataset, store, text, size_bytes, defaults } =
            self.documents.open(&self.source, &self.source_options, threads)?;
        let (total, vocabulary_size) = (dataset.len(), tokenizer.vocabulary_size());
        let fingerprint = format!("{:016x}", tokenizer.fingerprint());
        let steps_per_shard = steps_per_shard(total, size_bytes, self.shard_bytes);
        let asked = record::Asked {
            version: record::Asked::VERSION,
            corpus: dataset.identity(),
            documents: self.documents.clone(),
            tokenizer: fingerprint,
            with_special: self.with_special,
            end_of_document,
            dtype: MegatronWriter::for_vocabulary(vocabulary_size).element().name().to_owned(),
            prefix: self.prefix.clone(),
            steps_per_shard,
        };
        DirectorySink::open(&self.target, false)?; // makes the directory
        let mut record = record::Record::open(&self.target, asked)?;
        let with_special = self.with_special;
        let recipe = recipe::TokenRecipe { text, tokenizer, with_special, end: end_of_document };
        let mut config = Config {
            batch_size: STEP,
            cpu_threads: threads,
            io_threads: defaults.io_threads,
            max_io_threads: defaults.max_io_threads,
            retry: defaults.retry,
            on_error: OnError::Skip,
            max_failures: self.max_failures,
            ledger: self.ledger.clone(),
            wording: self.wording,
            ..Config::default()
        };
        config.retry.deadline = config.retry.deadline.max(DEADLINE);
        let loader = Loader::new(Source::new(dataset, store, recipe), config)?;
        if let Some(state) = &record.state {
            loader.load_state(state)?;
        }
        let earlier_shards = record.shards.len();
        let mut progress = progress(&record.shards, total);
        let shard_count = loader.steps().div_ceil(steps_per_shard) as usize;
        // Before any thread of a finished run.
        let mut run = if earlier_shards < shard_count { Some(loader.epoch()?) } else { None };
        while let Some(run) = run.as_mut().filter(|_| record.shards.len() < shard_count) {
            let stem = self.stem(record.shards.len());
            let shard = write_shard(run, steps_per_shard, &stem, vocabulary_size, &mut |shard, done| {
                watch(&Progress {
                    done: progress.done + done,
                    tokens: progress.tokens + shard.tokens,
                    failed: progress.failed + shard.failed,
                    ..progress
                });
            })?;
            record.shards.push(shard);
            record.state = Some(loader.state());
            record.write(&self.target)?;
            progress = self::progress(&record.shards, total);
        }
        // The end of the epoch is where its books are checked.
        if let Some(more) = run.as_mut().and_then(Iterator::next) {
            more?;
            return Err(Error::internal("the loader has more steps than it said"));
        }
        let element = MegatronWriter::for_vocabulary(vocabulary_size).element();
        let shards = record.shards.iter().enumerate().map(|(number, shard)| (self.stem(number), *shard)).collect();
        let sum = sum(&record.shards);
        Ok(Tokenized { shards, earlier_shards, element, sum, elapsed: started.elapsed() })
    }

    fn check(&self) -> Result<()> {
        if is_url(&self.target) {
            let error = Error::config("--output: expected a directory for tokens, got a URL").at_path(&self.target);
            return Err(error.with_hint("write them to a disk, and copy them with `forebay mirror`"));
        }
        if self.prefix.is_empty() || self.prefix.contains(['/', '\0']) {
            return Err(Error::config(format!("--prefix: expected a name without \"/\", got {:?}", self.prefix)));
        }
        if self.shard_bytes == 0 {
            return Err(Error::config("--shard-size: expected at least 1 byte, got 0"));
        }
        Ok(())
    }

    fn end_of_document(&self, tokenizer: &dyn Tokenizer) -> Result<Option<u32>> {
        let Some(text) = &self.end_of_document else { return Ok(None) };
        tokenizer.token(text).map(Some).ok_or_else(|| {
            Error::config(format!("--append: expected a token of the tokenizer, got {text:?}"))
                .with_hint("its special tokens are in `added_tokens` of its tokenizer.json")
        })
    }

    /// A shard's files without their endings.
    fn stem(&self, number: usize) -> PathBuf {
        self.target.join(format!("{}-{number:06}", self.prefix))
    }
}

/// Steps of the loader whose documents have about this many bytes, if all are of one size.
fn steps_per_shard(documents: u64, size_bytes: u64, shard_bytes: u64) -> u64 {
    let shards = size_bytes.div_ceil(shard_bytes).max(1);
    documents.div_ceil(shards).div_ceil(STEP).max(1)
}

fn sum(shards: &[Shard]) -> Shard {
    shards.iter().fold(Shard::default(), |sum, shard| Shard {
        documents: sum.documents + shard.documents,
        tokens: sum.tokens + shard.tokens,
        empty: sum.empty + shard.empty,
        failed: sum.failed + shard.failed,
    })
}

fn progress(shards: &[Shard], total: u64) -> Progress {
    let Shard { documents, tokens, empty, failed } = sum(shards);
    Progress { done: documents + empty + failed, total, tokens, failed }
}

/// Writes the documents of the next steps. The `.idx` comes last: where there is one, there is its `.bin`.
fn write_shard(
    run: &mut Run,
    steps: u64,
    stem: &Path,
    vocabulary_size: u64,
    watch: &mut dyn FnMut(&Shard, u64),
) -> Result<Shard> {
    let named = |ending: &str| PathBuf::from(format!("{}.{ending}", stem.display()));
    let path = named("bin");
    let (mut writer, mut file) = (MegatronWriter::for_vocabulary(vocabulary_size), Replacement::new(&path)?);
    let (mut shard, mut bytes) = (Shard::default(), Vec::new());
    for batch in run.by_ref().take(usize::try_from(steps).unwrap_or(usize::MAX)) {
        let batch = batch?;
        shard.failed += batch.failed;
        for tokens in documents_of(batch)? {
            match tokens.is_empty() {
                true => shard.empty += 1,
                false => {
                    writer.push_document(&tokens, &mut bytes)?;
                    shard.documents += 1;
                    shard.tokens += tokens.len() as u64;
                }
            }
        }
        file.write_all(&bytes).map_err(|error| Error::io("written", error).at_path(&path))?;
        bytes.clear();
        watch(&shard, shard.documents + shard.empty + shard.failed);
    }
    file.commit()?;
    record::write(&named("idx"), &writer.index()?)?;
    Ok(shard)
}

/// The tokens of each document.
fn documents_of(batch: Batch) -> Result<Vec<Vec<u32>>> {
    if batch.is_empty() {
        return Ok(Vec::new());
    }
    let count = batch.len();
    let tokens = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|token| u32::from_ne_bytes(*token)).collect();
    match batch.into_content() {
        Column::Ragged(arrays) => Ok(arrays.iter().map(|Array { bytes, .. }| tokens(bytes)).collect()),
        // All are of one length.
        Column::Dense { mut buffer, layout } => match layout.size_bytes() {
            0 => Ok(vec![Vec::new(); count]),
            size => Ok(buffer.bytes().chunks_exact(size).take(count).map(tokens).collect()),
        },
        _ => Err(Error::internal("a recipe of tokens made no arrays").at_stage(Stage::Assemble)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_whole_steps_of_about_the_wanted_size() {
        assert_eq!(steps_per_shard(10, 1000, 1 << 30), 1);
        assert_eq!(steps_per_shard(256 * 8, 1000, 500), 4);
        assert_eq!(steps_per_shard(256 * 8, 1000, 1), 1, "no shard has less than a step");
        assert_eq!(steps_per_shard(1_000_000, 4 << 30, 1 << 30), 977);
    }
}
