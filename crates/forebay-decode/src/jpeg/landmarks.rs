//! Landmarks of a JPEG that was decoded before: positions in its entropy-coded data at which decoding can start.

use xxhash_rust::xxh3::xxh3_64;

/// A position between two MCUs. Matches the C side (`huffman.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Landmark {
    mcu: u32,
    offset: u32,
    dc: [i16; 3],
    bits: u8,
    unused: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawLandmarks {
    pub(super) all: *mut Landmark,
    pub(super) count: u32,
    pub(super) room: u32,
}

/// Positions in the coded data of one picture, as far as it has been decoded: data before and beside a crop can be
/// skipped the next time. They are valid only for the exact bytes they were found in, and cleared for others.
///
/// Only JPEGs with one scan and without restart markers have them.
#[derive(Debug, Default)]
pub struct Landmarks {
    /// Length and hash of the bytes.
    bytes: Option<(usize, u64)>,
    all: Vec<Landmark>,
    is_used: bool,
}

impl Landmarks {
    /// Their memory in bytes.
    pub fn size_bytes(&self) -> usize {
        self.all.capacity() * size_of::<Landmark>()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether landmarks existed for the picture decoded last.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// The landmarks for `bytes`. Hashing takes a hundredth of the decoding time, and makes sure that they match.
    pub(super) fn of(&mut self, bytes: &[u8]) -> &[Landmark] {
        if !self.all.is_empty() && self.bytes != Some((bytes.len(), xxh3_64(bytes))) {
            self.all.clear();
        }
        self.is_used = !self.all.is_empty();
        &self.all
    }

    /// Adds landmarks after the existing ones.
    pub(super) fn add(&mut self, bytes: &[u8], noted: &[Landmark]) {
        if noted.is_empty() {
            return;
        }
        if self.all.is_empty() {
            self.bytes = Some((bytes.len(), xxh3_64(bytes)));
        }
        // Without memory the existing ones have to do.
        if self.all.try_reserve_exact(noted.len()).is_ok() {
            self.all.extend_from_slice(noted);
        }
    }
}
