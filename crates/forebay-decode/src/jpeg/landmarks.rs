//! What is remembered of a JPEG that was decoded before: places in its code from which decoding can go on.

use xxhash_rust::xxh3::xxh3_64;

/// A place between two MCUs. The C side (`huffman.h`) has the same.
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

/// Places in the code of one picture, as far as it has been decoded: what lies before a crop and beside it can be jumped over
/// the next time. They are good for the very bytes they were found in, and forgotten when others come.
///
/// Only JPEGs have them, in one scan and without restart markers.
#[derive(Debug, Default)]
pub struct Landmarks {
    /// Length and hash of the bytes.
    bytes: Option<(usize, u64)>,
    all: Vec<Landmark>,
    is_used: bool,
}

impl Landmarks {
    /// Memory that they take.
    pub fn size_bytes(&self) -> usize {
        self.all.capacity() * size_of::<Landmark>()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether the picture decoded last was known by them.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Those of `bytes`. To hash them takes a hundredth of the time to decode them, and what is known is known for sure.
    pub(super) fn of(&mut self, bytes: &[u8]) -> &[Landmark] {
        if !self.all.is_empty() && self.bytes != Some((bytes.len(), xxh3_64(bytes))) {
            self.all.clear();
        }
        self.is_used = !self.all.is_empty();
        &self.all
    }

    /// More of them, behind those that are known.
    pub(super) fn add(&mut self, bytes: &[u8], noted: &[Landmark]) {
        if noted.is_empty() {
            return;
        }
        if self.all.is_empty() {
            self.bytes = Some((bytes.len(), xxh3_64(bytes)));
        }
        // Without room those that are known already have to do.
        if self.all.try_reserve_exact(noted.len()).is_ok() {
            self.all.extend_from_slice(noted);
        }
    }
}
