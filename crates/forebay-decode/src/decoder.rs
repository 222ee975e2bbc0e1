//! The `Decoder` trait, and choosing a decoder for given bytes: by content, never by name.

use forebay_core::{Error, Kind, Result};

use crate::Image;
use crate::pnm::is_space;

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
    /// TIFF, BigTIFF (first page).
    Tiff,
    /// Portable bitmap, greymap or pixmap: PBM, PGM, PPM (first picture).
    Pnm,
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

/// The picture's properties from its first bytes.
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
    /// The smallest size that a complete file of such a picture can have, however well it is compressed.
    pub coded_bytes: u64,
}

/// Turns the bytes of one format into RGB.
///
/// # Contract
/// - `header` reads no pixel data and allocates nothing that depends on the picture's size.
/// - `decode` fills `out` with 3-channel RGB equal to Pillow's `Image.open(…).convert("RGB")` (JPEG: ±2 levels,
///   lossless formats: exactly) and returns the region it decoded: `wanted` or any region that contains it.
/// - Truncated or damaged data is [`Kind::Corrupt`] with the library's message as detail, never a grey picture.
///   Data wholly outside `wanted` need not be examined, except that a missing end of the picture's own data is always
///   noticed. Data after the picture (GIF's later frames and trailer, PNG's later chunks) may be missing.
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
    /// The format whose signature these bytes have.
    pub fn sniff(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0xFF, 0xD8, 0xFF, ..] => Some(Self::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Some(Self::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            [b'B', b'M', ..] => Some(Self::Bmp),
            [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Some(Self::Tiff),
            [b'P', b'1'..=b'6', space, ..] if is_space(*space) => Some(Self::Pnm),
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
            Self::Pnm => "PNM",
        }
    }
}

impl Header {
    /// Refuses a picture that its bytes cannot fill, before anything is allocated for it. `bytes` is the whole file.
    pub(crate) fn check_filled(&self, bytes: &[u8]) -> Result<()> {
        let (expected, got) = (self.coded_bytes, bytes.len() as u64);
        if got >= expected {
            return Ok(());
        }
        let Self { width, height, .. } = self;
        let detail = format!("expected at least {expected} bytes for {width}×{height} pixels, got {got}");
        Err(truncated(self.format, detail))
    }

    /// All of the picture.
    pub const fn whole(&self) -> Region {
        Region { x: 0, y: 0, width: self.width, height: self.height }
    }

    /// The region to decode; a region outside the picture is the caller's bug.
    pub(crate) fn region(&self, wanted: Option<Region>) -> Result<Region> {
        let Some(wanted) = wanted else { return Ok(self.whole()) };
        let inside = |start: u32, length: u32, end: u32| length > 0 && start < end && length <= end - start;
        if inside(wanted.x, wanted.width, self.width) && inside(wanted.y, wanted.height, self.height) {
            return Ok(wanted);
        }
        let Region { x, y, width, height } = wanted;
        let message =
            format!("region {width}×{height} at ({x}, {y}) leaves the picture of {}×{}", self.width, self.height);
        Err(Error::internal(message))
    }
}

/// Refuses pictures without pixels, and those with too many, before anything is allocated for them.
pub(crate) fn check_size(format: Format, width: u32, height: u32) -> Result<()> {
    if width == 0 || height == 0 {
        return Err(Error::new(Kind::Corrupt, format!("has no pixels ({}, {width}×{height})", format.name())));
    }
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        let message = format!("is too large (expected at most {MAX_PIXELS} pixels, got {width}×{height})");
        let hint = "the limit is fixed, as Pillow's for decompression bombs: scale the picture down or cut it into tiles, open it \
                    yourself with `loader`, or leave it out";
        return Err(Error::new(Kind::Exhausted, message).with_hint(hint));
    }
    Ok(())
}

/// The error for bytes that end too early.
pub(crate) fn truncated(format: Format, detail: impl Into<String>) -> Error {
    Error::new(Kind::Corrupt, format!("is truncated ({})", format.name())).with_detail(detail)
}

/// The error for bytes that contradict their format.
pub(crate) fn damaged(format: Format, detail: impl Into<String>) -> Error {
    Error::new(Kind::Corrupt, format!("is damaged ({})", format.name())).with_detail(detail)
}

/// The error for an intact file of a kind that is not decoded.
pub(crate) fn unsupported(format: Format, detail: impl Into<String>) -> Error {
    let detail = detail.into();
    not_decoded(&format!("this kind of {} ({detail})", format.name())).with_detail(detail)
}

fn not_decoded(what: &str) -> Error {
    Error::new(Kind::Undecodable, format!("may well be good: forebay does not decode {what}"))
        .with_hint("convert it to a common kind, open it yourself with `loader`, or exclude it with `is_valid_file`")
}

/// The image format of these bytes, among those that are not decoded.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    Some(match bytes {
        [_, _, _, _, b'f', b't', b'y', b'p', b'a', b'v', b'i', b'f' | b's', ..] => "AVIF",
        [_, _, _, _, b'f', b't', b'y', b'p', b'h' | b'm', b'e' | b'i', b'i' | b'f', _, ..] => "HEIF",
        [0xFF, 0x0A, ..] | [0, 0, 0, 12, b'J', b'X', b'L', b' ', ..] => "JPEG XL",
        [0xFF, 0x4F, 0xFF, 0x51, ..] | [0, 0, 0, 12, b'j', b'P', b' ', b' ', ..] => "JPEG 2000",
        [b'8', b'B', b'P', b'S', ..] => "Photoshop files",
        [b'q', b'o', b'i', b'f', ..] => "QOI",
        [b'P', b'7', b'\n', ..] => "PAM",
        [b'P', b'F' | b'f', b'\n', ..] => "PFM",
        [0x76, 0x2F, 0x31, 0x01, ..] => "OpenEXR",
        [b'D', b'D', b'S', b' ', ..] => "DDS",
        [0, 0, 1, 0, _, 0, ..] => "ICO",
        _ => return None,
    })
}

/// The error for bytes of an unknown format; it quotes the first bytes.
pub(crate) fn unknown_format(bytes: &[u8]) -> Error {
    const SIGNATURES: [(Format, &[u8]); 16] = [
        (Format::Jpeg, b"\xFF\xD8\xFF"),
        (Format::Png, b"\x89PNG\r\n\x1A\n"),
        (Format::Gif, b"GIF87a"),
        (Format::Gif, b"GIF89a"),
        (Format::Bmp, b"BM"),
        (Format::Tiff, b"II*\0"),
        (Format::Tiff, b"MM\0*"),
        (Format::Tiff, b"II+\0"),
        (Format::Tiff, b"MM\0+"),
        (Format::WebP, b"RIFF"),
        (Format::Pnm, b"P1"),
        (Format::Pnm, b"P2"),
        (Format::Pnm, b"P3"),
        (Format::Pnm, b"P4"),
        (Format::Pnm, b"P5"),
        (Format::Pnm, b"P6"),
    ];
    if bytes.is_empty() {
        return Error::new(Kind::Corrupt, "is empty (0 bytes)");
    }
    let begun = |&&(format, signature): &&(Format, &[u8])| {
        signature.starts_with(bytes) || (format == Format::WebP && bytes.starts_with(signature) && bytes.len() < 12)
    };
    if let Some((format, _)) = SIGNATURES.iter().find(begun) {
        return truncated(*format, format!("only {} bytes", bytes.len()));
    }
    if let Some(name) = other_format(bytes) {
        return not_decoded(name);
    }
    let start = &bytes[..bytes.len().min(12)];
    Error::new(Kind::Undecodable, "is not an image of a known format (JPEG, PNG, WebP, GIF, BMP, TIFF, PNM)")
        .with_detail(format!("begins with \"{}\"", start.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_end_in_a_signature_are_truncated_and_others_unknown() {
        for bytes in [&b"\xFF\xD8"[..], b"\x89PNG\r", b"GIF", b"B", b"II", b"RIFF\x01\x02\x03\x04WEB", b"P", b"P6"] {
            assert_eq!(Format::sniff(bytes), None);
            assert_eq!(unknown_format(bytes).kind(), Kind::Corrupt, "{}", bytes.escape_ascii());
        }
        for bytes in [&b"<html>"[..], b"\0\0\0\0", b"RIFF\x01\x02\x03\x04WAVEfmt ", b"RIFX", b"P7\n", b"P6x", b"PK"] {
            assert_eq!(Format::sniff(bytes), None);
            assert_eq!(unknown_format(bytes).kind(), Kind::Undecodable, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn images_of_other_formats_are_named_and_nobody_is_told_to_delete_them() {
        for (bytes, name) in [
            (&b"\0\0\0\x20ftypavif\0\0\0\0"[..], "AVIF"),
            (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIF"),
            (b"\0\0\0\x18ftypmif1\0\0\0\0", "HEIF"),
            (b"\0\0\0\x0CJXL \r\n\x87\n", "JPEG XL"),
            (b"\0\0\0\x0CjP  \r\n\x87\n", "JPEG 2000"),
            (b"P7\nWIDTH 4\n", "PAM"),
        ] {
            let error = unknown_format(bytes);
            assert_eq!(error.to_string(), format!("may well be good: forebay does not decode {name}"));
            assert_eq!(error.kind(), Kind::Undecodable);
            assert!(!error.hint().contains("delete"), "{}", error.hint());
        }
        // A file of unknown format may well be intact.
        assert!(!unknown_format(b"<html>").hint().contains("delete"));
    }

    #[test]
    fn a_region_lies_inside_the_picture_or_is_refused() {
        let header = Header { format: Format::Png, width: 10, height: 5, memory_bytes: 0, coded_bytes: 0 };
        let region = |x, y, width, height| header.region(Some(Region { x, y, width, height })).is_ok();
        assert!(region(0, 0, 10, 5) && region(9, 4, 1, 1));
        assert!(!region(0, 0, 11, 5) && !region(9, 0, 2, 1) && !region(0, 4, 1, 2));
        assert!(
            !region(0, 0, 0, 1) && !region(10, 0, 1, 1) && !region(u32::MAX, 0, 2, 1) && !region(1, 0, u32::MAX, 1)
        );
    }

    #[test]
    fn sizes_are_limited_by_pixels_not_by_sides() {
        assert!(check_size(Format::Png, 178_956_970, 1).is_ok());
        assert_eq!(check_size(Format::Png, 178_956_971, 1).unwrap_err().kind(), Kind::Exhausted);
        assert_eq!(check_size(Format::Png, u32::MAX, u32::MAX).unwrap_err().kind(), Kind::Exhausted);
        assert_eq!(check_size(Format::Png, 0, 7).unwrap_err().kind(), Kind::Corrupt);
    }
}
