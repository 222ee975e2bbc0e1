//! Probes a sample for a manifest: the hash of its bytes, and the size and format in its image header.
//!
//! A large file is read piece by piece, each a job with its own attempts and deadline, so that memory depends on the number of
//! threads and not on the size of files, and a file that takes minutes is not overdue.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_core::{Error, Expected, Kind, Result, Stage};
use forebay_decode::{Decoders, Format, Header};
use forebay_format::{Content, ContentHash, Picture, ScanOptions, content_hash};
use forebay_store::{Bytes, ReadRequest, Stat, Store, Sum};

/// Files up to this are read at once, larger ones in pieces of it: as a mirror does.
pub(super) const PIECE_BYTES: u64 = 8 << 20;

/// A sample to probe, and the progress of that.
#[derive(Clone)]
pub(super) struct HeaderProbe {
    pub(super) sample: u64,
    path: PathBuf,
    expected: Expected,
    at: At,
    /// The checksum of all its bytes, if it was not the server's.
    doubt: Option<String>,
}

#[derive(Clone)]
enum At {
    Start,
    /// In the middle of a large one.
    Piece(Box<SoFar>),
    /// The whole file has to be in memory.
    Whole,
}

#[derive(Clone)]
struct SoFar {
    stat: Stat,
    done: u64,
    hash: ContentHash,
    sum: Option<Sum>,
    picture: Option<Picture>,
}

/// The result of one step.
pub(super) enum ProbeStep {
    /// The next step.
    Continue(HeaderProbe),
    /// The result.
    Done(Content),
}

impl AsRef<Path> for HeaderProbe {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl HeaderProbe {
    pub(super) fn new(sample: u64, path: PathBuf, expected: Expected) -> Self {
        Self { sample, path, expected, at: At::Start, doubt: None }
    }

    /// The bytes that the next step takes in memory, beyond a piece.
    pub(super) fn whole_bytes(&self) -> u64 {
        if matches!(self.at, At::Whole) { self.expected.size_bytes.unwrap_or(0) } else { 0 }
    }

    /// The next step, and how many bytes it read.
    pub(super) fn step(&self, store: &dyn Store, within: Duration) -> Result<(ProbeStep, u64)> {
        match &self.at {
            At::Start if self.expected.size_bytes.is_some_and(|size| size > PIECE_BYTES) => self.begin(store, within),
            At::Start | At::Whole => self.whole(store, within),
            At::Piece(so_far) => {
                let (start, stat) = (so_far.done, so_far.stat);
                let end = stat.size_bytes.min(start + PIECE_BYTES);
                let piece = self.read_range(store, start..end, stat, within)?;
                self.take(SoFar::clone(so_far), &piece)
            }
        }
    }

    fn continue_at(&self, at: At) -> ProbeStep {
        ProbeStep::Continue(Self { at, ..self.clone() })
    }

    fn check(&self, stat: Stat) -> Result<()> {
        match self.expected.differs(stat.size_bytes, stat.mtime_ns) {
            Some(what) => Err(Error::new(Kind::Changed, format!("changed while the folder was scanned ({what})"))),
            None => Ok(()),
        }
    }

    /// What a header says. An image that is none is an error, anything else is no picture.
    fn picture(&self, header: Result<Header>) -> Result<Option<Picture>> {
        let picture = |Header { width, height, format, .. }| Picture { width, height, format: format.name().into() };
        match header {
            Ok(header) => Ok(Some(picture(header))),
            Err(error) if self.is_image() => Err(error.at_stage(Stage::Decode)),
            Err(_) => Ok(None),
        }
    }

    fn is_image(&self) -> bool {
        self.path.file_name().is_some_and(|name| ScanOptions::images().has_extension(name))
    }

    fn whole(&self, store: &dyn Store, within: Duration) -> Result<(ProbeStep, u64)> {
        let read = || {
            store.read(&self.path, within, &mut |size| {
                // What has grown since it was examined may be more than there is memory for.
                let stamp_ns = self.expected.stamp_ns.unwrap_or_default();
                self.check(Stat { size_bytes: size, mtime_ns: stamp_ns })?;
                Ok(Vec::with_capacity(size as usize))
            })
        };
        let mut object = read()?;
        self.check(object.stat)?;
        let mut header = Decoders::default().header(&object.bytes);
        if header.is_err() && self.is_image() {
            // A decode error is guilty of nothing until one fresh read agrees.
            drop(object);
            object = read()?;
            header = Decoders::default().header(&object.bytes);
        }
        let picture = self.picture(header)?;
        let content = Content { xxh3: content_hash(&object.bytes), picture };
        Ok((ProbeStep::Done(content), object.stat.size_bytes))
    }

    fn read_range(&self, store: &dyn Store, range: Range<u64>, stat: Stat, within: Duration) -> Result<Bytes> {
        let request = ReadRequest::new(&self.path, within).with_range(range).with_expected(stat);
        Ok(store.fetch(&request, &mut |_| Ok(Vec::new()))?.bytes)
    }

    /// The first piece of a large file, which has the header of most pictures.
    fn begin(&self, store: &dyn Store, within: Duration) -> Result<(ProbeStep, u64)> {
        let stat = store.stat(&self.path)?;
        self.check(stat)?;
        let read = || self.read_range(store, 0..PIECE_BYTES, stat, within);
        let mut piece = read()?;
        let mut header = Decoders::default().header(&piece);
        if let Err(error) = &header
            && error.kind() == Kind::Corrupt
            && Format::sniff(&piece).is_some()
        {
            // TIFF has its directory anywhere, WebP needs the whole file, JPEG may have more in front than this.
            return Ok((self.continue_at(At::Whole), piece.len() as u64));
        }
        if header.is_err() && self.is_image() {
            piece = read()?;
            header = Decoders::default().header(&piece);
        }
        let picture = self.picture(header)?;
        let sum = store.sum(&self.path)?;
        self.take(SoFar { stat, done: 0, hash: ContentHash::default(), sum, picture }, &piece)
    }

    /// Takes the next piece.
    fn take(&self, mut so_far: SoFar, piece: &[u8]) -> Result<(ProbeStep, u64)> {
        let count = piece.len() as u64;
        so_far.hash.update(piece);
        so_far.sum.iter_mut().for_each(|sum| sum.update(piece));
        so_far.done += count;
        if so_far.done < so_far.stat.size_bytes {
            return Ok((self.continue_at(At::Piece(Box::new(so_far))), count));
        }
        if let Some(sum) = so_far.sum {
            let (name, expected) = sum.expected();
            let bytes = so_far.stat.size_bytes;
            let message = format!("came as {bytes} bytes that are not those stored ({name}: expected {expected}, got");
            match (sum.doubt(self.doubt.as_deref()), &self.doubt) {
                (None, _) => {}
                (Some(got), Some(_)) => {
                    let hint = "a proxy or the network changes it, or the server's copy is damaged: \
                                `storage_options.verify_checksums=false` takes it as it comes";
                    return Err(Error::new(Kind::Unavailable, format!("{message} {got})")).with_hint(hint));
                }
                (Some(got), None) => {
                    let again = Self { at: At::Start, doubt: Some(got), ..self.clone() };
                    return Ok((ProbeStep::Continue(again), count));
                }
            }
        }
        let content = Content { xxh3: so_far.hash.finish(), picture: so_far.picture };
        Ok((ProbeStep::Done(content), count))
    }
}

#[cfg(test)]
mod tests;
