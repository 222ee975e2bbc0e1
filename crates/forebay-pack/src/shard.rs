//! One shard: samples are appended in their order, and its index is made on the way. It has its name when all of it is on the disk.

use std::path::Path;

use forebay_core::{Error, Failure, Result};
use forebay_format::{ShardIndex, ShardIndexBuilder};
use forebay_store::{Stat, Writing};
use xxhash_rust::xxh3::xxh3_64;

use crate::records::{Finished, Record, Saved};
use crate::tar::{END, header, padding};
use crate::target::{Halt, Target};

/// So much is written at once where any size will do. Not measured.
const PIECE_BYTES: usize = 4 << 20;

/// A field of a sample, as it will be.
pub(crate) struct PackedField {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// For the index; `None` where it has none of any field.
    pub(crate) annotation: Option<Vec<u8>>,
}

/// A shard that is being written.
pub(crate) struct ShardWriter<'a> {
    target: &'a Target,
    halt: &'a Halt,
    name: String,
    writing: Box<dyn Writing>,
    piece_bytes: usize,
    /// What is not written yet; it begins at `written`.
    buffer: Vec<u8>,
    written: u64,
    index: ShardIndexBuilder,
    samples: u64,
    failures: Vec<Failure>,
    saved: Saved,
}

impl<'a> ShardWriter<'a> {
    /// Begins a shard that takes about so many bytes.
    pub(crate) fn begin(target: &'a Target, halt: &'a Halt, name: &str, stat: Stat) -> Result<Self> {
        let writing = halt.retried(target.retry, || target.sink.begin(Path::new(name), stat))?;
        let piece_bytes = writing.piece_bytes().map_or(PIECE_BYTES, |size| size as usize);
        Ok(Self {
            target,
            halt,
            name: name.to_owned(),
            writing,
            piece_bytes,
            buffer: Vec::new(),
            written: 0,
            index: ShardIndexBuilder::new(true),
            samples: 0,
            failures: Vec::new(),
            saved: Saved::default(),
        })
    }

    /// Appends a sample.
    pub(crate) fn append(&mut self, key: &str, fields: &[PackedField], saved: &Saved) -> Result<()> {
        let header_at = self.position();
        fields.iter().try_for_each(|field| self.append_field(key, field))?;
        self.index.end_sample(Some((key, header_at)))?;
        self.samples += 1;
        self.saved.add(saved);
        Ok(())
    }

    fn append_field(&mut self, key: &str, PackedField { name, bytes, annotation }: &PackedField) -> Result<()> {
        let size = bytes.len() as u64;
        self.write(&header(&format!("{key}.{name}"), size))?;
        self.index.push_part(name, self.position(), size, Some(xxh3_64(bytes)), None)?;
        annotation.iter().try_for_each(|annotation| self.index.annotate_last(annotation))?;
        self.write(bytes)?;
        self.write(padding(size))
    }

    /// Notes a sample that is not in the shard.
    pub(crate) fn leave_out(&mut self, failure: Failure) {
        self.failures.push(failure);
    }

    pub(crate) fn failures(&self) -> &[Failure] {
        &self.failures
    }

    fn position(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        let most = self.piece_bytes;
        self.buffer.try_reserve(bytes.len().min(most)).map_err(|_| {
            Error::new(forebay_core::Kind::Exhausted, format!("no memory was left for {most} bytes of a shard"))
        })?;
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(most - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = rest;
            if self.buffer.len() == most {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let Self { writing, buffer, written, .. } = self;
        self.halt.retried(self.target.retry, || writing.write(*written, buffer))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Completes it. Where it is read back, that is done before it gets its name; until then it is the part file that
    /// [`forebay_store::Sink::part`] names.
    pub(crate) fn finish(mut self) -> Result<Record> {
        if let Err(error) = self.complete() {
            drop(self.discard());
            return Err(error);
        }
        let (samples, failed, size_bytes) = (self.samples, self.failures.len() as u64, self.written);
        let finished = Finished { name: self.name, size_bytes, samples, failed, saved: self.saved };
        let index: ShardIndex = self.index.finish(Vec::new())?;
        Ok(Record { finished, failures: self.failures, index })
    }

    fn complete(&mut self) -> Result<()> {
        self.write(&END)?;
        if !self.buffer.is_empty() {
            self.flush()?;
        }
        self.writing.set_size(self.written);
        let writing = &mut self.writing;
        self.halt.retried(self.target.retry, || writing.finish())
    }

    /// Removes what there is of it; the samples that would not have been in it.
    pub(crate) fn discard(mut self) -> Vec<Failure> {
        // It is on the way out with an error of its own, and the next run removes what is left.
        let _removed = self.writing.discard();
        self.failures
    }
}
