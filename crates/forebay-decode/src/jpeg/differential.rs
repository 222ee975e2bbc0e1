//! Compares our entropy decoder with libjpeg-turbo's on the same bytes: for tests and fuzzers.

use super::*;
use crate::planes::Plane;

/// Larger pictures are skipped: they take long, and show nothing new.
const MAX_BYTES: u64 = 32 << 20;
const MAX_FUZZED_BYTES: u64 = 2 << 20;

/// Decodes `data` with our entropy decoder and with libjpeg-turbo's: whole, in part, as planes, with landmarks of an earlier
/// decode, with those of an annotation, and with wrong ones. Returns whether there was anything to decode.
///
/// # Panics
/// If they differ in a pixel, or in the reported damage.
#[cfg_attr(not(feature = "fuzzing"), expect(unreachable_pub, reason = "public with the feature"))]
pub fn huffman_differential(data: &[u8]) -> bool {
    let mut contenders = Contenders::new();
    let is_tried = contenders.own.header(data).is_ok_and(|header| header.memory_bytes <= MAX_FUZZED_BYTES);
    if is_tried {
        // The regions are derived from the bytes: the same on every run.
        contenders.check("these bytes", data, &mut Random(xxhash_rust::xxh3::xxh3_64(data) | 1));
    }
    is_tried
}

/// xorshift64: the same pictures and the same damage on every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

pub(super) type Outcome = std::result::Result<(Region, Vec<u8>), (String, String, Option<String>)>;

pub(super) fn outcome(jpeg: &mut Jpeg, bytes: &[u8], wanted: impl Fn(&Header) -> Option<Region>) -> Outcome {
    let words = |error: Error| (format!("{:?}", error.kind()), error.to_string(), error.detail().map(str::to_owned));
    let header = jpeg.header(bytes).map_err(words)?;
    if header.memory_bytes > MAX_BYTES {
        return Err((String::new(), "too large for a test".to_owned(), None));
    }
    let mut out = Image::default();
    let region = jpeg.decode(bytes, &header, wanted(&header), &mut out).map_err(words)?;
    Ok((region, out.pixels))
}

/// A part as planes: their samples, without padding; nothing for pictures without planes. For an error, only what does
/// not depend on how many rows are decoded at a time.
fn planes_outcome(jpeg: &mut Jpeg, bytes: &[u8], part: impl Fn(&Header) -> Region, to: Size) -> Option<PlanesOutcome> {
    let words = |error: Error| (format!("{:?}", error.kind()), error.detail().map(str::to_owned));
    let header = jpeg.header(bytes).ok().filter(|header| header.memory_bytes <= MAX_BYTES)?;
    let part = part(&header);
    let from = Size { height: part.height, width: part.width };
    let mut planes = Planes::default();
    let decoded = match jpeg.decode_planes(bytes, &header, part, (from, to), &mut planes) {
        Ok(false) => return None,
        Ok(true) => Ok(()),
        Err(error) => Err(words(error)),
    };
    Some(decoded.map(|()| {
        let samples = |plane: &Plane| -> Vec<u8> {
            let axis = |start: u32, length: u32, pitch: u32| start / pitch..(start + length).div_ceil(pitch);
            let (columns, rows) = (axis(part.x, part.width, plane.pitch.0), axis(part.y, part.height, plane.pitch.1));
            rows.flat_map(|row| plane.from(columns.start as usize, row as usize)[..columns.len()].to_vec()).collect()
        };
        planes.each().iter().map(samples).collect()
    }))
}

type PlanesOutcome = std::result::Result<Vec<Vec<u8>>, (String, Option<String>)>;

/// The decoders are reused for all pictures, so that leftover state would show.
pub(super) struct Contenders {
    own: Jpeg,
    plain: Jpeg,
    original: Jpeg,
    /// Ours, with landmarks from an earlier decode.
    knowing: Jpeg,
    /// Ours, with landmarks from an annotation.
    annotated: Jpeg,
    /// Ours, after decoding with landmarks that are wrong.
    misled: Jpeg,
    /// How many had planes, and how many had landmarks in their annotation.
    pub(super) planar: usize,
    pub(super) with_landmarks: usize,
}

impl Contenders {
    pub(super) fn new() -> Self {
        let [own, plain, original, knowing, annotated, misled] =
            std::array::from_fn(|_| Jpeg::new().expect("memory for a decompressor"));
        // SAFETY: live decompressors without a picture.
        unsafe {
            forebay_jpeg_use_plain(plain.raw);
            forebay_jpeg_use_original(original.raw);
        }
        Self { own, plain, original, knowing, annotated, misled, planar: 0, with_landmarks: 0 }
    }

    /// MCUs that each decoded by our code.
    #[cfg(test)]
    pub(super) fn own_mcus(&self) -> [u64; 4] {
        // SAFETY: live decompressors.
        [&self.own, &self.plain, &self.original, &self.knowing].map(|jpeg| unsafe { forebay_jpeg_own_mcus(jpeg.raw) })
    }

    /// The picture's annotation: one that has landmarks is sound.
    fn annotation(&mut self, name: &str, bytes: &[u8], is_sound: bool) -> Vec<u8> {
        let found = self.annotated.header(bytes).and_then(|header| match header.memory_bytes {
            0..=MAX_BYTES => self.annotated.find_landmarks(bytes, &header, &mut Image::default()),
            _ => Ok(Landmarks::default()),
        });
        let found = found.unwrap_or_default();
        assert!(is_sound || found.is_empty(), "{name}: a damaged picture has landmarks");
        self.with_landmarks += usize::from(!found.is_empty());
        let annotation = found.to_annotation();
        assert_eq!(Landmarks::of_annotation(&annotation, bytes).to_annotation(), annotation, "{name}");
        annotation
    }

    /// Decodes with landmarks that are not the picture's: whatever comes out, nothing of it is left.
    fn mislead(&mut self, bytes: &[u8], annotation: &[u8], random: &mut Random, part: impl Fn(&Header) -> Region) {
        for _ in 0..4 {
            let wrong = Landmarks::wrong(annotation, bytes, random);
            self.misled.landmarks = Some(wrong);
            let _any = outcome(&mut self.misled, bytes, |header| Some(part(header)));
            let _any = planes_outcome(&mut self.misled, bytes, &part, Size::from(8));
        }
        self.misled.landmarks = None;
    }

    pub(super) fn check(&mut self, name: &str, bytes: &[u8], random: &mut Random) -> bool {
        // Landmarks of the last picture must do no harm. Sometimes they are cleared, so that they are collected while
        // decoding a part, and used for other parts.
        if random.below(4) == 0 {
            self.knowing.landmarks = Some(Landmarks::default());
        }
        let (a, b) = (random.next() as u32 >> 1, random.next() as u32 >> 1);
        let part = |header: &Header| {
            let (x, y) = (a % header.width, b % header.height);
            Some(Region { x, y, width: 1 + b % (header.width - x), height: 1 + a % (header.height - y) })
        };
        let expected = outcome(&mut self.original, bytes, |_| None);
        let region = outcome(&mut self.original, bytes, part);
        let annotation = self.annotation(name, bytes, expected.is_ok());
        self.mislead(bytes, &annotation, random, |header| part(header).unwrap_or(header.whole()));
        self.annotated.landmarks = Some(Landmarks::of_annotation(&annotation, bytes));
        for jpeg in [&mut self.own, &mut self.plain, &mut self.knowing, &mut self.annotated, &mut self.misled] {
            assert!(outcome(jpeg, bytes, part) == region, "{name}, a part: expected {:?}", region.as_ref().err());
            assert!(outcome(jpeg, bytes, |_| None) == expected, "{name}: expected {:?}", expected.as_ref().err());
            assert!(outcome(jpeg, bytes, part) == region, "{name}, a part, again");
        }
        // The same for planes: every decoder gives the same samples, and damage is reported as for pixels. (Row numbers
        // may differ where the first difference depends on the number of rows.)
        let to = Size::from(1 + a % 64);
        let wanted = |header: &Header| part(header).unwrap_or(header.whole());
        if let Some(expected) = planes_outcome(&mut self.original, bytes, wanted, to) {
            for jpeg in [&mut self.own, &mut self.plain, &mut self.knowing, &mut self.annotated, &mut self.misled] {
                assert!(planes_outcome(jpeg, bytes, wanted, to).as_ref() == Some(&expected), "{name}, planes");
            }
            let words = region.as_ref().err().map(|(kind, _, detail)| (kind.clone(), detail.clone()));
            let got = expected.err();
            assert!(got == words, "{name}, planes: expected {words:?}, got {got:?}");
            self.planar += 1;
        }
        expected.is_ok()
    }
}
