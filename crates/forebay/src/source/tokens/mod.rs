//! Files of tokens: each window of the stream that they make is a sample, or several documents that are packed together.

mod examine;
mod locate;

use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{
    Blocks, DatasetIdentity, Element, Error, Expected, Field, Kind, Locator, Result, SampleId, Segment, hash_words,
};
use forebay_format::{Documents, Note, Packing, Tail, TokenStream, Windows};
use forebay_store::{Stat, Store};

use crate::source::Dataset;
use examine::{Examined, examine};

/// What the samples of a [`Tokens`] are.
#[derive(Clone, Debug)]
pub struct TokenOptions {
    /// The type of tokens, where files do not say it.
    pub element: Option<Element>,
    /// The column of MDS that has the tokens.
    pub column: Option<String>,
    /// Tokens of a sample.
    pub length: u64,
    /// How far apart windows begin.
    pub stride: u64,
    /// Each sample reads one token more.
    pub has_targets: bool,
    /// What becomes of tokens behind the last whole window.
    pub tail: Tail,
    /// Where documents end matters.
    pub documents: DocumentMode,
    /// The token that ends documents, where files have no index of them.
    pub document_end: Option<i64>,
}

/// What documents are to samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentMode {
    /// Windows cross them, and do not know.
    Ignored,
    /// Windows cross them, and know where.
    Marked,
    /// Samples are made of whole ones, by this seed.
    Packed(u64),
}

/// The windows or packed documents of a dataset's files.
pub struct Tokens {
    files: Arc<dyn Dataset>,
    paths: Vec<PathBuf>,
    stats: Vec<Stat>,
    element: Element,
    stream: TokenStream,
    samples: Samples,
    /// Where documents end, as far as indexes say it.
    documents: Option<Documents>,
    fingerprint: u64,
    notes: Vec<Note>,
}

enum Samples {
    Windows {
        windows: Windows,
        length: u64,
    },
    /// Whether every piece of a document lies in one place.
    Packed {
        packing: Packing,
        is_simple: bool,
    },
}

impl Tokens {
    /// Finds out what the files are, and asks the store for their sizes and headers; where documents matter, it reads the indexes
    /// that say where they end.
    pub fn new(files: Arc<dyn Dataset>, store: &Arc<dyn Store>, options: &TokenOptions) -> Result<Self> {
        let (found, mut notes) = examine(&*files, store, options)?;
        let element = one_element(&found)?;
        let (mut paths, mut stats, mut runs, mut documents) =
            (Vec::new(), Vec::new(), Vec::new(), Documents::default());
        let (mut start, mut are_whole) = (0u64, true);
        for Examined { path, stat, runs: own, ends, .. } in found {
            let tokens = own.tokens();
            if let Some(ends) = ends {
                documents.extend(start, tokens, &ends).map_err(|error| error.at_path(&path))?;
            }
            start = start.checked_add(tokens).ok_or_else(|| Error::config("the files have more than 2^64 tokens"))?;
            are_whole &= options.document_end.is_none() || matches!(own, forebay_format::Runs::One { .. });
            paths.push(path);
            stats.push(stat);
            runs.push(own);
        }
        let stream = TokenStream::new(element.size_bytes(), runs)?;
        let TokenOptions { length, stride, has_targets, tail, document_end, .. } = *options;
        let (samples, documents) = match options.documents {
            DocumentMode::Packed(seed) => {
                let packing = Packing::new(&documents, length, seed)?;
                (Samples::Packed { packing, is_simple: are_whole }, Some(documents))
            }
            mode => {
                let windows = Windows::new(stream.len(), length, stride, has_targets, tail)?;
                let is_outlined = mode == DocumentMode::Marked && document_end.is_none();
                (Samples::Windows { windows, length }, is_outlined.then_some(documents))
            }
        };
        let made = match &samples {
            Samples::Windows { windows, .. } => windows.count(),
            Samples::Packed { packing, .. } => packing.len(),
        };
        if made == 0 {
            let (count, tokens) = (paths.len(), stream.len());
            let message = format!("{count} files have {tokens} tokens together, which make no sample of {length}");
            return Err(Error::new(Kind::NotFound, message).with_hint("look at the dtype, and at what the files are"));
        }
        if let Samples::Windows { windows, .. } = &samples
            && windows.unused() > 0
            && let Some(path) = paths.last()
        {
            let unused = windows.unused();
            let message = format!("ends with {unused} tokens that make no whole window, and are left out");
            notes.push(Note { path: path.clone(), message });
        }
        let words = [
            element.size_bytes() as u64,
            length,
            stride,
            u64::from(has_targets),
            stream.fingerprint(),
            documents.as_ref().map_or(0, Documents::fingerprint),
            match &samples {
                Samples::Windows { windows, .. } => windows.count(),
                Samples::Packed { packing, .. } => packing.fingerprint(),
            },
        ];
        let fingerprint = hash_words(&words);
        Ok(Self { files, paths, stats, element, stream, samples, documents, fingerprint, notes })
    }

    /// The type of the tokens in the files.
    pub fn element(&self) -> Element {
        self.element
    }

    /// What was noticed: tokens that are left out, files without any.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// How many tokens there are.
    pub fn token_count(&self) -> u64 {
        self.stream.len()
    }
}

/// The type of all files.
fn one_element(files: &[Examined]) -> Result<Element> {
    let Some(first) = files.first() else {
        return Err(Error::new(Kind::NotFound, "no file of tokens was found"));
    };
    match files.iter().find(|file| file.element != first.element) {
        Some(other) => {
            let (expected, got) = (first.element.name(), other.element.name());
            let message = format!("has tokens of {got} (expected {expected}, as {:?} has)", first.path);
            Err(Error::config(message).at_path(&other.path).with_hint("make a dataset of each kind of files"))
        }
        None => Ok(first.element),
    }
}

impl Dataset for Tokens {
    fn len(&self) -> u64 {
        match &self.samples {
            Samples::Windows { windows, .. } => windows.count(),
            Samples::Packed { packing, .. } => packing.len(),
        }
    }

    fn field_count_of(&self, sample: SampleId) -> u32 {
        self.piece_count(sample)
    }

    fn locate(&self, sample: SampleId, field: Field, locator: &mut Locator) {
        let piece = self.piece(sample, field);
        locator.path.clone_from(&self.paths[piece.file as usize]);
        (locator.range, locator.member) = (Some(piece.bytes), None);
    }

    fn outline(&self, sample: SampleId) -> Option<Vec<u8>> {
        let documents = self.documents.as_ref()?;
        Some(match &self.samples {
            Samples::Windows { windows, length } => {
                Segment::write(documents.segments(windows.range(sample.0), *length))
            }
            Samples::Packed { packing, .. } => {
                Segment::write(packing.pieces(sample.0).iter().map(|start| packing.segment(documents, *start)))
            }
        })
    }

    fn blocks(&self) -> Option<Blocks> {
        self.windows_by_file()
    }

    fn expected(&self, sample: SampleId, field: Field) -> Option<Expected> {
        let Stat { size_bytes, mtime_ns } = self.stats[self.piece(sample, field).file as usize];
        Some(Expected { size_bytes: Some(size_bytes), stamp_ns: Some(mtime_ns), by_etag: false })
    }

    fn identity(&self) -> DatasetIdentity {
        let (files, own) = (self.files.identity(), self.fingerprint);
        DatasetIdentity { samples: self.len(), fingerprint: format!("{}%{own:016x}", files.fingerprint), ..files }
    }

    fn root(&self) -> Option<PathBuf> {
        self.files.root()
    }
}
