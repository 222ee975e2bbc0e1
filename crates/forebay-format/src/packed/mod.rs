//! Compressed files that are read from their midst: gzip and zstd, in segments of about a megabyte that are unpacked by
//! themselves.
//!
//! A file is unpacked once, from its beginning to its end. On the way its [`SeekTable`] is made: where each segment begins in the
//! compressed file, what a decoder has to know there, and a hash of what is in it. Of gzip that is the state between two blocks,
//! with the 32 KiB before it; zstd has frames, which are unpacked as a whole.

mod gzip;
#[cfg(test)]
mod tests;
mod zstd;

use std::ops::Range;

use forebay_core::{Error, Kind, Result};
use xxhash_rust::xxh3::Xxh3;

use crate::extents::take_word;
use crate::file_scan::{FileIndex, FileScanner};

/// A segment ends at the first possible place behind so many bytes.
const SEGMENT_BYTES: u64 = 1 << 20;
/// Segments are kept in memory while they are read from. In a gzip block or a zstd frame that is larger nothing can be found.
const MAX_SEGMENT_BYTES: u64 = 64 << 20;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Gzip,
    Zstd,
}

/// Where the segments of a compressed file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeekTable {
    packing: Packing,
    packed_bytes: u64,
    size_bytes: u64,
    segments: Vec<Segment>,
}

/// The beginning of a segment. It ends where the next one begins.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    /// In the compressed file.
    packed: u64,
    /// In what is unpacked.
    start: u64,
    hash: u64,
    entry: Entry,
}

/// What a decoder has to know where a segment begins.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    /// Nothing: a gzip member or a zstd frame begins there.
    Frame,
    /// Inside of a gzip member.
    Inside(gzip::Resume),
}

impl SeekTable {
    /// How long the file is when it is unpacked.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// How many segments it has.
    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// The segment that a byte of what is unpacked is in.
    pub fn segment_of(&self, position: u64) -> usize {
        self.segments.partition_point(|segment| segment.start <= position).saturating_sub(1)
    }

    /// Where a segment is in what is unpacked.
    pub fn range(&self, segment: usize) -> Range<u64> {
        self.segments[segment].start..self.segments.get(segment + 1).map_or(self.size_bytes, |next| next.start)
    }

    /// Where a segment is in the compressed file.
    pub fn packed_range(&self, segment: usize) -> Range<u64> {
        self.segments[segment].packed..self.segments.get(segment + 1).map_or(self.packed_bytes, |next| next.packed)
    }

    /// A segment, from the bytes of its [`SeekTable::packed_range`]. What differs from what it was is an error.
    pub fn unpack(&self, segment: usize, packed: &[u8]) -> Result<Vec<u8>> {
        let (range, known) = (self.range(segment), &self.segments[segment]);
        let mut unpacked = room_for(range.end - range.start)?;
        match self.packing {
            Packing::Gzip => gzip::unpack(&known.entry, packed, range.end - range.start, &mut unpacked)?,
            Packing::Zstd => zstd::unpack(packed, range.end - range.start, &mut unpacked)?,
        }
        if xxhash_rust::xxh3::xxh3_64(&unpacked) != known.hash {
            let message = "has other bytes than when it was indexed (a checksum does not fit)";
            return Err(damaged(message).with_hint("restore the file from its source, or let it be indexed again"));
        }
        Ok(unpacked)
    }
}

impl FileIndex for SeekTable {
    fn sample_count(&self) -> u64 {
        self.segments.len() as u64
    }

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn write(&self, out: &mut Vec<u8>) {
        let packing = match self.packing {
            Packing::Gzip => 0,
            Packing::Zstd => 1,
        };
        for word in [packing, self.size_bytes, self.segments.len() as u64] {
            out.extend(word.to_le_bytes());
        }
        for Segment { packed, start, hash, entry } in &self.segments {
            for word in [packed, start, hash] {
                out.extend(word.to_le_bytes());
            }
            match entry {
                Entry::Frame => out.extend(u64::MAX.to_le_bytes()),
                Entry::Inside(resume) => resume.write(out),
            }
        }
    }

    fn parse(bytes: &mut &[u8], packed_bytes: u64) -> Option<Self> {
        let packing = match take_word(bytes)? {
            0 => Packing::Gzip,
            1 => Packing::Zstd,
            _ => return None,
        };
        let (size_bytes, count) = (take_word(bytes)?, take_word(bytes)?);
        // Each takes 32 bytes at least, so a count that lies costs no memory.
        let mut segments = Vec::with_capacity(usize::try_from(count).ok().filter(|count| *count <= bytes.len() / 32)?);
        for _ in 0..count {
            let (packed, start, hash) = (take_word(bytes)?, take_word(bytes)?, take_word(bytes)?);
            let entry = match take_word(bytes)? {
                u64::MAX => Entry::Frame,
                head if packing == Packing::Gzip => Entry::Inside(gzip::Resume::parse(head, bytes)?),
                _ => return None,
            };
            segments.push(Segment { packed, start, hash, entry });
        }
        let table = Self { packing, packed_bytes, size_bytes, segments };
        table.is_consistent().then_some(table)
    }
}

impl SeekTable {
    /// Segments lie one behind the other, from the beginning on, and none is too long to be unpacked.
    fn is_consistent(&self) -> bool {
        let is_first_right = match self.segments.first() {
            Some(first) => first.start == 0 && first.packed == 0 && first.entry == Entry::Frame,
            None => self.size_bytes == 0,
        };
        let is_inside = self.segments.last().is_none_or(|last| last.packed < self.packed_bytes);
        is_first_right
            && is_inside
            && (0..self.segments.len()).all(|segment| {
                let (range, packed) = (self.range(segment), self.packed_range(segment));
                range.start < range.end && range.end - range.start <= MAX_SEGMENT_BYTES && packed.start < packed.end
            })
    }
}

/// Makes the seek table of a file.
pub struct PackedScanner {
    size_bytes: u64,
    position: u64,
    /// The first bytes, until it is known what they are.
    first: Vec<u8>,
    decoder: Option<Decoder>,
    made: Made,
}

enum Decoder {
    Gzip(Box<gzip::Scanner>),
    Zstd(zstd::Scanner),
}

impl PackedScanner {
    /// For a file of this size.
    pub fn new(size_bytes: u64) -> Self {
        Self { size_bytes, position: 0, first: Vec::new(), decoder: None, made: Made::default() }
    }

    fn decode(&mut self, bytes: &[u8]) -> Result<()> {
        if self.decoder.is_none() {
            self.first.extend_from_slice(bytes);
            if self.first.len() < 4 && self.position < self.size_bytes {
                return Ok(());
            }
            self.decoder = Some(decoder_of(&self.first)?);
            let first = std::mem::take(&mut self.first);
            return self.decode(&first);
        }
        match &mut self.decoder {
            Some(Decoder::Gzip(scanner)) => scanner.feed(bytes, &mut self.made),
            Some(Decoder::Zstd(scanner)) => scanner.feed(bytes, &mut self.made),
            None => Ok(()),
        }
    }
}

fn decoder_of(first: &[u8]) -> Result<Decoder> {
    let is_skippable = matches!(first, [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..]);
    match first {
        [0x1F, 0x8B, ..] => Ok(Decoder::Gzip(Box::default())),
        _ if first.starts_with(&zstd::MAGIC) || is_skippable => Ok(Decoder::Zstd(zstd::Scanner::default())),
        _ => {
            let message = "is neither gzip nor zstd, whatever its name says";
            Err(Error::new(Kind::Undecodable, message).with_hint("name it after what it is, or compress it"))
        }
    }
}

impl FileScanner for PackedScanner {
    type Index = SeekTable;

    const EXPECTED: &'static str = "";

    fn position(&self) -> Option<u64> {
        (self.position < self.size_bytes).then_some(self.position)
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        let left = usize::try_from(self.size_bytes - self.position).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(left)];
        self.position += bytes.len() as u64;
        self.decode(bytes)
    }

    fn finish(self) -> Result<SeekTable> {
        let (packing, is_whole) = match &self.decoder {
            Some(Decoder::Gzip(scanner)) => (Packing::Gzip, scanner.is_between_members()),
            Some(Decoder::Zstd(scanner)) => (Packing::Zstd, scanner.is_between_frames()),
            None => (Packing::Gzip, self.size_bytes == 0),
        };
        if !is_whole {
            let message = "is truncated: it ends in the midst of its compressed data";
            return Err(damaged(message).with_hint("restore the file from its source"));
        }
        let Made { segments, start, .. } = self.made.closed();
        Ok(SeekTable { packing, packed_bytes: self.size_bytes, size_bytes: start, segments })
    }
}

/// The segments so far, and the one that is not complete.
struct Made {
    segments: Vec<Segment>,
    /// Where the open one begins.
    packed: u64,
    start: u64,
    entry: Entry,
    bytes: u64,
    hash: Xxh3,
}

impl Default for Made {
    fn default() -> Self {
        Self { segments: Vec::new(), packed: 0, start: 0, entry: Entry::Frame, bytes: 0, hash: Xxh3::new() }
    }
}

impl Made {
    /// More bytes that were unpacked.
    fn add(&mut self, unpacked: &[u8]) -> Result<()> {
        self.hash.update(unpacked);
        self.bytes += unpacked.len() as u64;
        match self.bytes > MAX_SEGMENT_BYTES {
            true => Err(too_large()),
            false => Ok(()),
        }
    }

    /// Whether the segment should end at the next place where it can.
    fn is_due(&self) -> bool {
        self.bytes >= SEGMENT_BYTES
    }

    /// The segment ends, and the next one begins here in the compressed file.
    fn split(&mut self, packed: u64, entry: Entry) {
        let open = std::mem::replace(&mut self.entry, entry);
        self.segments.push(Segment { packed: self.packed, start: self.start, hash: self.hash.digest(), entry: open });
        (self.packed, self.start, self.bytes) = (packed, self.start + self.bytes, 0);
        self.hash.reset();
    }

    fn closed(mut self) -> Self {
        if self.bytes > 0 {
            self.split(self.packed, Entry::Frame);
        }
        self
    }
}

/// Unpacks what has to become so many bytes, into a list that is empty.
pub(crate) type Unpack = fn(&[u8], u64, &mut Vec<u8>) -> Result<()>;

/// Unpacks gzip members, which have to become so many bytes.
pub(crate) fn unpack_gzip(packed: &[u8], size_bytes: u64, out: &mut Vec<u8>) -> Result<()> {
    gzip::unpack(&Entry::Frame, packed, size_bytes, out)
}

/// Unpacks zstd frames, which have to become so many bytes.
pub(crate) fn unpack_zstd(packed: &[u8], size_bytes: u64, out: &mut Vec<u8>) -> Result<()> {
    zstd::unpack(packed, size_bytes, out)
}

fn too_large() -> Error {
    let message = format!("has a compressed part of more than {} MiB that cannot be divided", MAX_SEGMENT_BYTES >> 20);
    let hint =
        "zstd has to unpack a frame from its beginning: compress the file in smaller frames (pzstd does), or with gzip";
    Error::new(Kind::Undecodable, message).with_hint(hint)
}

fn damaged(message: &str) -> Error {
    Error::new(Kind::Corrupt, message)
}

fn room_for(size_bytes: u64) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(usize::try_from(size_bytes).unwrap_or(usize::MAX)).map_err(|_| no_memory(size_bytes))?;
    Ok(buffer)
}

fn no_memory(size_bytes: u64) -> Error {
    Error::new(Kind::Exhausted, format!("no memory was left for {size_bytes} bytes of it"))
}
