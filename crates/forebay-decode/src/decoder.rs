//! What a decoder is, and which one decodes given bytes: by content, never by name.

use forebay_core::{Error, Kind, Result};

use crate::Image;

/// The formats forebay decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// JPEG (baseline, progressive, arithmetic; grey, YCbCr, RGB, CMYK, YCCK).
    Jpeg,
    /// PNG (1 to 16 bits, grey, palette, RGB, alpha).
    Png,
    /// WebP (lossy, lossless; first frame).
    WebP,
    /// GIF (first frame).
    Gif,
    /// Windows bitmap.
    Bmp,
    /// TIFF (first page).
    Tiff,
}

/// A rectangle of a picture, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Left edge.
    pub x: u32,
    /// Top edge.
    pub y: u32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

/// What the first bytes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The format.
    pub format: Format,
    /// Columns of the picture.
    pub width: u32,
    /// Rows of the picture.
    pub height: u32,
    /// Bytes that decoding all of it takes at its peak, the RGB result included: charged before allocation.
    pub memory_bytes: u64,
}

/// Turns the bytes of one format into RGB.
///
/// # Contract
/// - `header` reads no pixel data and allocates nothing that depends on the picture's size.
/// - `decode` fills `out` with 3-channel RGB equal to Pillow's `Image.open(…).convert("RGB")` (JPEG: ±2 levels,
///   lossless formats: exactly) and returns the region it decoded: `wanted` or any region that contains it.
/// - Truncated or damaged data is [`Kind::Corrupt`] with the library's words as detail, never a grey picture.
///   What lies wholly outside `wanted` need not be looked at, except that a missing end is always noticed.
/// - Nothing panics, whatever the bytes; nothing is printed.
pub trait Decoder: Send {
    /// Reads the header.
    fn header(&mut self, bytes: &[u8]) -> Result<Header>;
    /// Decodes at least `wanted` (all of it when `None`).
    fn decode(&mut self, bytes: &[u8], header: &Header, wanted: Option<Region>, out: &mut Image) -> Result<Region>;
}

/// Pictures with more pixels than this are refused: Pillow's limit for "decompression bombs".
pub const MAX_PIXELS: u64 = 178_956_970;

impl Format {
    /// The format that these bytes begin like.
    pub fn sniff(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0xFF, 0xD8, 0xFF, ..] => Some(Self::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Some(Self::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            [b'B', b'M', ..] => Some(Self::Bmp),
            [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => Some(Self::Tiff),
            _ => None,
        }
    }

    /// The name used in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
            Self::Tiff => "TIFF",
        }
    }
}

/// The error for bytes of no known format; it shows how they begin.
pub(crate) fn unknown_format(bytes: &[u8]) -> Error {
    if bytes.is_empty() {
        return Error::new(Kind::Corrupt, "is empty (0 bytes)");
    }
    let start = &bytes[..bytes.len().min(12)];
    Error::new(Kind::Undecodable, "is not an image of a known format (JPEG, PNG, WebP, GIF, BMP, TIFF)")
        .with_detail(format!("begins with \"{}\"", start.escape_ascii()))
}
