//! Landmarks of a JPEG: positions in its entropy-coded data at which decoding can start.

use xxhash_rust::xxh3::xxh3_64;

mod coded;

/// The most that are recorded, or read. They are 500 bytes apart at least.
pub(super) const MAX_LANDMARKS: usize = 1 << 16;
const COMPONENTS: usize = 3;

/// A position between two MCUs. Matches the C side (`huffman.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Landmark {
    mcu: u32,
    offset: u32,
    dc: [i16; COMPONENTS],
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

/// Positions in the coded data of one picture: data before and beside a crop can be skipped. They are valid only for the exact
/// bytes they were found in, and not used for others.
///
/// Either they are recorded as far as the picture is decoded, to be used the next time; or all of them are known from before
/// ([`Landmarks::of_annotation`]). Only JPEGs with one scan and without restart markers have them.
#[derive(Debug, Default)]
pub struct Landmarks {
    bytes: Option<Bytes>,
    /// In the order of the data.
    all: Vec<Landmark>,
    is_used: bool,
}

/// The bytes that landmarks are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bytes {
    /// Those of this length and hash.
    Hashed(usize, u64),
    /// Those in memory from this address on, of this length: the caller has compared them, and they stay.
    There(usize, usize),
}

impl Bytes {
    fn hashed(bytes: &[u8]) -> Self {
        Self::Hashed(bytes.len(), xxh3_64(bytes))
    }

    fn there(bytes: &[u8]) -> Self {
        Self::There(bytes.as_ptr().addr(), bytes.len())
    }
}

impl Landmarks {
    /// All landmarks of a picture, from what an [`Annotator`](crate::Annotator) made of the very same `bytes`: the caller has
    /// compared them with a checksum. They hold for as long as `bytes` stay where they are.
    ///
    /// An annotation is not trusted beyond that. A wrong one may give wrong pixels, or an error for a good picture. One that
    /// makes no sense is no landmarks.
    pub fn of_annotation(annotation: &[u8], bytes: &[u8]) -> Self {
        let all = coded::parse(annotation, bytes.len()).unwrap_or_default();
        Self { bytes: Some(Bytes::there(bytes)), all, is_used: false }
    }

    /// The annotation for [`Landmarks::of_annotation`]: nothing, if there are no landmarks.
    pub fn to_annotation(&self) -> Vec<u8> {
        coded::write(&self.all)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

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

    /// Whether they are those of an annotation of the bytes at this place.
    pub(crate) fn is_annotation_of(&self, bytes: &[u8]) -> bool {
        self.bytes == Some(Bytes::there(bytes))
    }

    /// Whether those that are found while decoding are added.
    pub(super) fn is_noting(&self) -> bool {
        !matches!(self.bytes, Some(Bytes::There(..)))
    }

    /// The landmarks for `bytes`. Where they have to be hashed, that takes a hundredth of the decoding time.
    pub(super) fn of(&mut self, bytes: &[u8]) -> &[Landmark] {
        let is_theirs = match self.bytes {
            _ if self.all.is_empty() => true,
            Some(Bytes::Hashed(..)) => self.bytes == Some(Bytes::hashed(bytes)),
            Some(Bytes::There(..)) => self.is_annotation_of(bytes),
            None => false,
        };
        if !is_theirs {
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
            self.bytes = Some(Bytes::hashed(bytes));
        }
        // Without memory the existing ones have to do.
        if self.all.try_reserve_exact(noted.len()).is_ok() {
            self.all.extend_from_slice(noted);
        }
    }

    /// For tests and fuzzers: landmarks that are accepted and wrong, some of them those of the annotation.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn wrong(annotation: &[u8], bytes: &[u8], random: &mut super::differential::Random) -> Self {
        let mut found = Self::of_annotation(annotation, bytes);
        let size = bytes.len();
        let mut offsets: Vec<u32> = (0..random.below(200)).map(|_| 1 + random.below(size) as u32).collect();
        offsets.extend([size as u32, size as u32 - 1]);
        let most = if random.below(2) == 0 { 8 } else { 1 + random.below(3_000) };
        for offset in offsets {
            let dc = std::array::from_fn(|_| random.next() as i16);
            found.all.push(Landmark { mcu: 0, offset, dc, bits: random.below(64) as u8, unused: 0 });
        }
        found.all.sort_by_key(|landmark| landmark.offset);
        found.all.dedup_by_key(|landmark| landmark.offset);
        let mut mcu = 0;
        for landmark in &mut found.all {
            mcu += 1 + random.below(most) as u32;
            landmark.mcu = mcu;
        }
        // Most pictures have fewer MCUs: lists that go beyond are left out as a whole.
        let count = random.below(found.all.len() + 1);
        found.all.drain(..random.below(count + 1));
        found.all.truncate(count);
        found
    }
}
