//! Pictures written again, smaller: decoded, scaled down, encoded, and decoded once more to see that they are good.
//!
//! What is written are pixels as a loader sees them (RGB of 8 bits), and the orientation that the picture had: cameras store it
//! beside pixels that are not turned, and readers that ignore it keep seeing the same. Other metadata (profiles, thumbnails,
//! places) are not kept.

mod coders;
mod orientation;

use std::time::{Duration, Instant};

use forebay_core::{Epoch, Error, Kind, Result, Rng, SampleId};

use crate::ops::{Buffers, Interpolation, ResizeTo, Size};
use crate::{Decoders, Format, Image, Op, Value};
use orientation::orientation;

/// How pictures are written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recoding {
    /// Neither side is longer than this; smaller pictures are not made larger.
    pub max_side: Option<u32>,
    /// The format; `None` keeps JPEG, PNG and WebP, and makes PNG of the others.
    pub format: Option<Coding>,
    /// From 1 to 100, of JPEG and WebP.
    pub quality: u8,
}

/// A format that pictures are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// JPEG: baseline, 4:2:0, with Huffman tables of its own.
    Jpeg,
    /// Lossy WebP.
    WebP,
    /// PNG, which keeps every pixel.
    Png,
}

impl Coding {
    /// The format.
    pub const fn format(self) -> Format {
        match self {
            Self::Jpeg => Format::Jpeg,
            Self::WebP => Format::WebP,
            Self::Png => Format::Png,
        }
    }

    /// The usual ending of such files, without the dot.
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Jpeg => "jpg",
            Self::WebP => "webp",
            Self::Png => "png",
        }
    }
}

/// A picture that was written again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recoded {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its format.
    pub coding: Coding,
    /// Whether that is the format that it had.
    pub is_same_format: bool,
    /// How long it took to decode before.
    pub decode_before: Duration,
    /// And how long it takes now.
    pub decode_after: Duration,
}

/// Checks pictures and writes them again. One per thread.
#[derive(Default)]
pub struct Recoder {
    decoders: Decoders,
    image: Image,
    buffers: Buffers,
}

impl std::fmt::Debug for Recoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recoder").finish_non_exhaustive()
    }
}

impl Recoder {
    /// Decodes all of a picture, as the loader would; how long that took.
    pub fn check(&mut self, bytes: &[u8]) -> Result<Duration> {
        let started = Instant::now();
        let header = self.decoders.header(bytes)?;
        self.decoders.decode(bytes, &header, None, &mut self.image)?;
        Ok(started.elapsed())
    }

    /// Writes a picture again. `None` where it is already as it should be, with the time that decoding it takes: then its bytes
    /// stay what they are.
    ///
    /// ```
    /// use forebay_decode::{Coding, Recoder, Recoding};
    ///
    /// let red = [b"P6 40 20 255\n".as_slice(), &[200, 30, 30].repeat(800)].concat();
    /// let how = Recoding { max_side: Some(10), format: Some(Coding::Jpeg), quality: 90 };
    /// let made = Recoder::default().recode(&red, &how)?.unwrap();
    /// assert!(made.bytes.starts_with(b"\xFF\xD8\xFF") && made.bytes.len() < red.len());
    /// assert!(Recoder::default().recode(&made.bytes, &how)?.is_none());
    /// # Ok::<(), forebay_core::Error>(())
    /// ```
    pub fn recode(&mut self, bytes: &[u8], how: &Recoding) -> Result<Option<Recoded>> {
        let decode_before = self.check(bytes)?;
        let header = self.decoders.header(bytes)?;
        let own = match header.format {
            Format::Jpeg => Some(Coding::Jpeg),
            Format::WebP => Some(Coding::WebP),
            Format::Png => Some(Coding::Png),
            _ => None,
        };
        let coding = how.format.or(own).unwrap_or(Coding::Png);
        let is_same_format = own == Some(coding);
        let target = how.max_side.and_then(|most| smaller(most, header.width, header.height));
        if target.is_none() && (is_same_format || how.format.is_none()) {
            return Ok(None);
        }
        if let Some(size) = target {
            self.resize(size)?;
        }
        let turned = orientation(header.format, bytes);
        let made = coders::encode(&self.image, coding, how.quality, turned)?;
        // What cannot be read is not written. It would be a bug of an encoder, and costs what it measures anyway.
        let decode_after = self
            .check(&made)
            .map_err(|error| Error::internal(format!("was written as {}, and then {error}", coding.format().name())))?;
        Ok(Some(Recoded { bytes: made, coding, is_same_format, decode_before, decode_after }))
    }

    fn resize(&mut self, size: Size) -> Result<()> {
        let (size, interpolation) = (ResizeTo::Exact(size), Interpolation::Bilinear);
        let op = Op::Resize { size, interpolation, max_size: None, antialias: true };
        // It makes no random choice.
        let mut rng = Rng::for_sample(0, Epoch(0), SampleId(0));
        match op.apply(Value::Image(std::mem::take(&mut self.image)), &mut rng, &mut self.buffers)? {
            Value::Image(image) => self.image = image,
            other => return Err(Error::internal(format!("a picture was resized to {other:?}"))),
        }
        Ok(())
    }
}

/// The size of a picture whose longer side becomes `most`, as of `T.Resize(None, max_size=most)`; `None` if it is not longer.
fn smaller(most: u32, width: u32, height: u32) -> Option<Size> {
    let long = width.max(height);
    let scaled = |side: u32| ((f64::from(most) * f64::from(side) / f64::from(long)) as u32).max(1);
    (long > most).then(|| Size { width: scaled(width), height: scaled(height) })
}

/// A picture that a format cannot hold.
fn too_large(coding: Coding, most: u32, image: &Image) -> Error {
    let (name, Image { width, height, .. }) = (coding.format().name(), image);
    let message = format!("is too large for {name} (expected at most {most} pixels a side, got {width}×{height})");
    Error::new(Kind::Exhausted, message).with_hint("scale it down as well, or write it in another format")
}

#[cfg(test)]
mod tests;
