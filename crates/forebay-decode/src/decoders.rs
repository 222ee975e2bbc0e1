//! A thread's decoders: one of each format, created on first use and kept.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_core::{Error, Kind, Result};

use crate::bmp::Bmp;
use crate::decoder::{check_size, unknown_format};
use crate::gif::Gif;
use crate::jpeg::Jpeg;
use crate::planes::Planes;
use crate::png::Png;
use crate::pnm::Pnm;
use crate::tiff::Tiff;
use crate::webp::WebP;
use crate::{Decoder, Format, Header, Image, Landmarks, Region, Size};

/// The working memory of larger pictures is freed: what a thread keeps is not charged to the memory budget.
const MAX_KEPT_BYTES: u64 = 16 << 20;

/// Decodes pictures of every format, by their content. One per thread; creating one costs nothing.
///
/// It can be used after an error: a failure never affects later pictures. A decoder that panics is discarded, and the
/// picture is reported as corrupt.
///
/// ```
/// let mut decoders = forebay_decode::Decoders::default();
/// let error = decoders.header(b"<html>not found</html>").unwrap_err();
/// assert_eq!(error.to_string(), "is not an image of a known format (JPEG, PNG, WebP, GIF, BMP, TIFF, PNM)");
/// ```
#[derive(Default)]
pub struct Decoders {
    jpeg: Option<Jpeg>,
    png: Png,
    webp: WebP,
    gif: Gif,
    bmp: Bmp,
    tiff: Tiff,
    pnm: Pnm,
    landmarks: Option<Landmarks>,
    /// The addresses of the bytes that the picture of `landmarks` lies in; `None` for the next picture, wherever it is.
    lent_within: Option<Range<usize>>,
    /// Of pictures that are decoded next, each known by the place of its bytes.
    annotated: Vec<Landmarks>,
}

impl Decoders {
    /// Lends the landmarks of the next picture from an earlier decode, to be used and extended.
    pub fn lend(&mut self, landmarks: Landmarks) {
        (self.landmarks, self.lent_within) = (Some(landmarks), None);
    }

    /// The same of a picture in these bytes, which stay where they are until [`Self::take_back`]. Others may be decoded meanwhile.
    pub fn lend_within(&mut self, bytes: &[u8], landmarks: Landmarks) {
        let range = bytes.as_ptr_range();
        (self.landmarks, self.lent_within) = (Some(landmarks), Some(range.start.addr()..range.end.addr()));
    }

    fn is_lent_to(&self, bytes: &[u8]) -> bool {
        let range = bytes.as_ptr_range();
        let is_within = |within: &Range<usize>| within.start <= range.start.addr() && range.end.addr() <= within.end;
        self.lent_within.as_ref().is_none_or(is_within)
    }

    /// Takes the landmarks back, unless they were lost with a decoder that panicked.
    pub fn take_back(&mut self) -> Option<Landmarks> {
        self.lent_within = None;
        self.landmarks.take()
    }

    /// Lends what an [`Annotator`](crate::Annotator) knew of these very bytes, which stay where they are until
    /// [`Self::take_back_annotations`]: of several pictures, if need be.
    pub fn lend_annotation(&mut self, bytes: &[u8], annotation: &[u8]) {
        self.annotated.push(Landmarks::of_annotation(annotation, bytes));
    }

    /// Forgets the annotations that were lent; gives how many were used.
    pub fn take_back_annotations(&mut self) -> u64 {
        self.annotated.drain(..).filter(Landmarks::is_used).count() as u64
    }

    /// The landmarks of a picture: none of one that is no JPEG, or has none.
    pub(crate) fn find_landmarks(&mut self, bytes: &[u8], out: &mut Image) -> Result<Landmarks> {
        if Format::sniff(bytes) != Some(Format::Jpeg) {
            return Ok(Landmarks::default());
        }
        let header = self.header(bytes)?;
        header.check_filled(bytes)?;
        let found = self.guarded_jpeg(bytes, |jpeg| jpeg.find_landmarks(bytes, &header, out));
        self.give_back(&header);
        found
    }

    /// Reads the header, but no pixels. Refuses pictures without pixels or with too many.
    pub fn header(&mut self, bytes: &[u8]) -> Result<Header> {
        let format = Format::sniff(bytes).ok_or_else(|| unknown_format(bytes))?;
        let header = self.guarded(format, |decoder| decoder.header(bytes))?;
        check_size(format, header.width, header.height)?;
        Ok(header)
    }

    /// Decodes at least `wanted` (all of it when `None`) of the picture that `header` describes, into `out`, whose
    /// memory is reused. Returns the region that `out` then holds. After an error the content of `out` is unspecified.
    pub fn decode(&mut self, bytes: &[u8], header: &Header, wanted: Option<Region>, out: &mut Image) -> Result<Region> {
        let wanted = wanted.map(|wanted| header.region(Some(wanted))).transpose()?;
        header.check_filled(bytes)?;
        let decoded = match header.format {
            Format::Jpeg => self.guarded_jpeg(bytes, |jpeg| jpeg.decode(bytes, header, wanted, out)),
            format => self.guarded(format, |decoder| decoder.decode(bytes, header, wanted, out)),
        };
        self.give_back(header);
        decoded
    }

    /// Decodes `wanted` as planes, for resizing from `from` to `to`; returns `false`, with nothing decoded, if the
    /// format has no planes.
    pub(crate) fn decode_planes(
        &mut self,
        bytes: &[u8],
        header: &Header,
        wanted: Region,
        sizes: (Size, Size),
        out: &mut Planes,
    ) -> Result<bool> {
        if header.format != Format::Jpeg {
            return Ok(false);
        }
        header.check_filled(bytes)?;
        let decoded = self.guarded_jpeg(bytes, |jpeg| jpeg.decode_planes(bytes, header, wanted, sizes, out));
        self.give_back(header);
        decoded
    }

    /// Frees the working memory of a large picture.
    fn give_back(&mut self, header: &Header) {
        if header.memory_bytes > MAX_KEPT_BYTES {
            let (landmarks, annotated) = (self.landmarks.take(), std::mem::take(&mut self.annotated));
            let lent_within = self.lent_within.take();
            *self = Self { landmarks, lent_within, annotated, ..Self::default() };
        }
    }

    /// Calls the decoder of `format`, and catches panics: damaged bytes must not end the thread.
    fn guarded<T>(&mut self, format: Format, call: impl FnOnce(&mut dyn Decoder) -> Result<T>) -> Result<T> {
        self.guard(format, |decoders| call(decoders.of(format)?))
    }

    /// The same for JPEG, with the landmarks of these bytes.
    fn guarded_jpeg<T>(&mut self, bytes: &[u8], call: impl FnOnce(&mut Jpeg) -> Result<T>) -> Result<T> {
        self.guard(Format::Jpeg, |decoders| {
            let annotated = decoders.annotated.iter().position(|landmarks| landmarks.is_annotation_of(bytes));
            let is_lent = annotated.is_none() && decoders.is_lent_to(bytes);
            let landmarks = match annotated {
                Some(at) => Some(std::mem::take(&mut decoders.annotated[at])),
                None if is_lent => decoders.landmarks.take(),
                None => None,
            };
            let jpeg = decoders.jpeg()?;
            jpeg.landmarks = landmarks;
            let called = call(jpeg);
            let landmarks = jpeg.landmarks.take();
            match annotated {
                Some(at) => decoders.annotated[at] = landmarks.unwrap_or_default(),
                None if is_lent => decoders.landmarks = landmarks,
                None => {}
            }
            called
        })
    }

    fn guard<T>(&mut self, format: Format, call: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let called = catch_unwind(AssertUnwindSafe(|| call(self)));
        called.unwrap_or_else(|panic| {
            *self = Self::default();
            let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
            let words = words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(Error::new(Kind::Corrupt, format!("made the {} decoder panic", format.name())).with_detail(words))
        })
    }

    fn jpeg(&mut self) -> Result<&mut Jpeg> {
        Ok(match &mut self.jpeg {
            Some(jpeg) => jpeg,
            empty => empty.insert(Jpeg::new()?),
        })
    }

    fn of(&mut self, format: Format) -> Result<&mut dyn Decoder> {
        Ok(match format {
            Format::Jpeg => self.jpeg()?,
            Format::Png => &mut self.png,
            Format::WebP => &mut self.webp,
            Format::Gif => &mut self.gif,
            Format::Bmp => &mut self.bmp,
            Format::Tiff => &mut self.tiff,
            Format::Pnm => &mut self.pnm,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_corrupt_picture_and_the_next_one_is_decoded() {
        let mut decoders = Decoders::default();
        let error = decoders.guarded::<()>(Format::Gif, |_| panic!("index out of bounds")).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert_eq!(error.to_string(), "made the GIF decoder panic");
        assert_eq!(error.detail(), Some("index out of bounds"));
        let bitmap = b"BM\0\0\0\0\0\0\0\0\x1A\0\0\0\x0C\0\0\0\x01\0\x01\0\x01\0\x18\0\x03\x02\x01";
        let header = decoders.header(bitmap).unwrap();
        let mut out = Image::default();
        decoders.decode(bitmap, &header, None, &mut out).unwrap();
        assert_eq!(out, Image { width: 1, height: 1, channels: 3, pixels: vec![1, 2, 3] });
    }
}
