//! JPEG, by libjpeg-turbo: whole pictures, or only the rows and columns around a wanted region.
//!
//! The C side (`jpeg/shim.c`) turns libjpeg's longjmps into return codes and decides which of its warnings mean damage.
//! This side owns the memory and composes the errors. Pixels are never scaled; planes, for `decode="fast"`, may be.

#[cfg(any(test, feature = "fuzzing"))]
mod differential;
mod landmarks;

use std::ffi::{CStr, c_char, c_int};
use std::ptr::NonNull;

use forebay_core::{Error, Kind, Result};
// Not called from Rust: it links the library that the shim uses.
use turbojpeg_sys as _;

#[cfg(feature = "fuzzing")]
pub use differential::huffman_differential;
pub use landmarks::Landmarks;
use landmarks::{Landmark, MAX_LANDMARKS, RawLandmarks};

use crate::decoder::{check_size, truncated, unsupported};
use crate::memory::resize;
use crate::pixels::{cmyk_to_rgb, prepare, rgb_mut};
use crate::planes::{MAX_PLANES, Planes};
use crate::{Decoder, Format, Header, Image, Region, Size};

/// Bytes of junk between coded data and the next marker that are accepted as padding. Cameras write a few; a decoder
/// that lost its place leaves more. Measured with 4 KiB of zeros at 2500 places in 250 photo-like files: 99.4 % are
/// noticed with this tolerance as without any, 99.2 % with 16. (Up to 7 more bytes at the end of a picture go
/// unnoticed, because libjpeg has already read them when it finishes.)
const MAX_EXTRANEOUS_BYTES: u32 = 8;

/// libjpeg-turbo's memory besides coefficients and result: tables, and a few rows of blocks per component.
const WORKING_BYTES: u64 = 64 << 10;
const WORKING_BYTES_PER_COLUMN: u64 = 256;

/// Minimum distance between landmarks (`NEAR_BYTES` of the C side; with less room, fewer are recorded), and the limit
/// of landmarks recorded at a time.
const NOTE_BYTES: usize = 512;

#[repr(C)]
struct Decompressor {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Default)]
struct Shape {
    width: u32,
    height: u32,
    components: u32,
    multi_scan: u32,
    has_landmarks: u32,
    coefficient_bytes: u64,
    data_offset: u64,
    least_blocks: u64,
}

#[repr(C)]
struct Trouble {
    row: u32,
    scan: u32,
    message: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawPlane {
    x: u32,
    y: u32,
    stride: u32,
    mcu_rows: u32,
    pitch_x: u32,
    pitch_y: u32,
}

#[repr(C)]
#[derive(Default)]
struct RawPlanes {
    count: u32,
    mcu_rows: u32,
    plane: [RawPlane; MAX_PLANES],
}

const DONE: c_int = 0;
const TRUNCATED: c_int = 2;
const UNSUPPORTED: c_int = 3;
const NO_MEMORY: c_int = 4;
const NOT_PLANAR: c_int = 5;

unsafe extern "C" {
    fn forebay_jpeg_new(max_extraneous_bytes: u32) -> Option<NonNull<Decompressor>>;
    fn forebay_jpeg_free(decompressor: NonNull<Decompressor>);
    fn forebay_jpeg_trouble(decompressor: NonNull<Decompressor>, trouble: *mut Trouble);
    fn forebay_jpeg_header(d: NonNull<Decompressor>, data: *const u8, size: usize, shape: *mut Shape) -> c_int;
    fn forebay_jpeg_begin(
        d: NonNull<Decompressor>,
        data: *const u8,
        size: usize,
        y: u32,
        x: *mut u32,
        width: *mut u32,
        channels: *mut u32,
    ) -> c_int;
    fn forebay_jpeg_lend(d: NonNull<Decompressor>, data: *const u8, known: RawLandmarks, noted: RawLandmarks);
    fn forebay_jpeg_noted(d: NonNull<Decompressor>) -> u32;
    fn forebay_jpeg_rows(d: NonNull<Decompressor>, rows: *mut u8, stride: usize, count: u32) -> c_int;
    fn forebay_jpeg_begin_planes(
        d: NonNull<Decompressor>,
        data: *const u8,
        size: usize,
        block: u32,
        x: u32,
        y: u32,
        width: u32,
        height: u32,
        planes: *mut RawPlanes,
    ) -> c_int;
    fn forebay_jpeg_planes(d: NonNull<Decompressor>, planes: *const RawPlanes, samples: *const *mut u8) -> c_int;
    fn forebay_jpeg_finish(d: NonNull<Decompressor>, is_last_row: c_int) -> c_int;
    #[cfg(any(test, feature = "fuzzing"))]
    fn forebay_jpeg_use_original(d: NonNull<Decompressor>);
    #[cfg(any(test, feature = "fuzzing"))]
    fn forebay_jpeg_use_plain(d: NonNull<Decompressor>);
    #[cfg(test)]
    fn forebay_jpeg_own_mcus(d: NonNull<Decompressor>) -> u64;
    #[cfg(all(test, address_sanitizer))]
    fn forebay_jpeg_overrun(d: NonNull<Decompressor>, offset: c_int);
    #[cfg(test)]
    fn forebay_jpeg_memory_asked(d: NonNull<Decompressor>) -> u64;
}

/// A decompressor, reused for many pictures.
pub(crate) struct Jpeg {
    raw: NonNull<Decompressor>,
    /// Some rows of grey or CMYK before their conversion to RGB.
    stored: Vec<u8>,
    /// Whether CMYK is stored as it is, as inside TIFF, rather than inverted, as Adobe has it and Pillow expects.
    pub(crate) ink_is_plain: bool,
    /// The landmarks of the current picture, if they are kept.
    pub(crate) landmarks: Option<Landmarks>,
    /// Buffer for new landmarks.
    noted: Vec<Landmark>,
}

// SAFETY: the decompressor is reached through `&mut self` only, and libjpeg keeps no thread-local state.
unsafe impl Send for Jpeg {}

impl Drop for Jpeg {
    fn drop(&mut self) {
        // SAFETY: made by forebay_jpeg_new, freed once, not used after.
        unsafe { forebay_jpeg_free(self.raw) }
    }
}

impl Jpeg {
    /// A decompressor without a picture.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: no precondition.
        let raw = unsafe { forebay_jpeg_new(MAX_EXTRANEOUS_BYTES) };
        let raw = raw.ok_or_else(|| Error::new(Kind::Exhausted, "memory for a JPEG decoder ran out"))?;
        Ok(Self { raw, stored: Vec::new(), ink_is_plain: false, landmarks: None, noted: Vec::new() })
    }

    /// Lends the picture's landmarks to the decompressor until [`Self::take_notes`].
    fn lend_landmarks(&mut self, bytes: &[u8]) {
        let none = RawLandmarks { all: std::ptr::null_mut(), count: 0, room: 0 };
        let (mut known, mut noted) = (none, none);
        if let Some(landmarks) = &mut self.landmarks {
            let of = landmarks.of(bytes);
            // Only read by the C side.
            known = RawLandmarks { all: of.as_ptr().cast_mut(), count: of.len() as u32, room: 0 };
            self.noted.clear();
            if landmarks.is_noting() {
                // Without memory no landmarks are recorded, and the picture is decoded all the same.
                let _noted = self.noted.try_reserve((bytes.len() / NOTE_BYTES + 1).min(MAX_LANDMARKS));
                noted = RawLandmarks { all: self.noted.as_mut_ptr(), count: 0, room: self.noted.capacity() as u32 };
            }
        }
        // SAFETY: both live, and stay where they are, until the picture is decoded: `self` is borrowed by that alone. The
        // next picture is lent others.
        unsafe { forebay_jpeg_lend(self.raw, bytes.as_ptr(), known, noted) };
    }

    /// Keeps the landmarks found in a picture that was decoded without damage.
    fn take_notes(&mut self, bytes: &[u8]) {
        let Some(landmarks) = &mut self.landmarks else { return };
        // SAFETY: the decompressor has written as many as it says, within the capacity that it was told.
        unsafe { self.noted.set_len(forebay_jpeg_noted(self.raw) as usize) };
        landmarks.add(bytes, &self.noted);
    }

    fn shape(&mut self, bytes: &[u8]) -> Result<Shape> {
        let mut shape = Shape::default();
        // SAFETY: `bytes` is readable for its length; the shim keeps no pointer into it after it returns.
        let code = unsafe { forebay_jpeg_header(self.raw, bytes.as_ptr(), bytes.len(), &raw mut shape) };
        match code {
            DONE => Ok(shape),
            code => Err(self.error(code, &Shape::default())),
        }
    }

    /// The error of a failure. A `shape` without rows means that it happened in the header.
    fn error(&self, code: c_int, shape: &Shape) -> Error {
        let mut trouble = Trouble { row: 0, scan: 0, message: std::ptr::null() };
        // SAFETY: `trouble` is writable.
        unsafe { forebay_jpeg_trouble(self.raw, &raw mut trouble) };
        // SAFETY: the shim points to its zero-terminated buffer, which lives as long as `self.raw`.
        let detail = unsafe { CStr::from_ptr(trouble.message) }.to_string_lossy().into_owned();
        let place = match shape {
            Shape { height: 0, .. } => "in its header".to_owned(),
            Shape { multi_scan: 0, height, .. } => format!("at row {} of {height}", trouble.row),
            _ => format!("in scan {}", trouble.scan),
        };
        match code {
            TRUNCATED => Error::new(Kind::Corrupt, format!("is truncated (JPEG ends {place})")),
            UNSUPPORTED => return unsupported(Format::Jpeg, detail),
            NO_MEMORY => Error::new(Kind::Exhausted, format!("needs more memory than there is (JPEG, {place})")),
            _ => Error::new(Kind::Corrupt, format!("is damaged (JPEG, {place})")),
        }
        .with_detail(detail)
    }
}

impl Decoder for Jpeg {
    fn header(&mut self, bytes: &[u8]) -> Result<Header> {
        let shape = self.shape(bytes)?;
        check_size(Format::Jpeg, shape.width, shape.height)?;
        let (width, height) = (u64::from(shape.width), u64::from(shape.height));
        let memory_bytes =
            width * height * 3 + shape.coefficient_bytes + WORKING_BYTES + WORKING_BYTES_PER_COLUMN * width;
        // Each block of a Huffman-coded scan takes a bit.
        let coded_bytes = shape.data_offset + shape.least_blocks / 8;
        Ok(Header { format: Format::Jpeg, width: shape.width, height: shape.height, memory_bytes, coded_bytes })
    }

    fn decode(&mut self, bytes: &[u8], header: &Header, wanted: Option<Region>, out: &mut Image) -> Result<Region> {
        let shape = self.shape(bytes)?;
        if (shape.width, shape.height) != (header.width, header.height) {
            return Err(Error::internal("the header given belongs to another JPEG"));
        }
        // Decoding that stops early would not notice a missing end. So without an end marker everything is decoded,
        // which ends in an error that tells where.
        let ended = ends(bytes, shape.data_offset);
        let mut region = header.region(wanted.filter(|_| ended))?;
        let mut channels = 0;
        self.lend_landmarks(bytes);
        // SAFETY: `bytes` is readable for its length and outlives forebay_jpeg_finish below, or the failure that
        // makes the shim forget it; the next picture begins with forebay_jpeg_header, which sets the pointer anew.
        let code = unsafe {
            forebay_jpeg_begin(
                self.raw,
                bytes.as_ptr(),
                bytes.len(),
                region.y,
                &raw mut region.x,
                &raw mut region.width,
                &raw mut channels,
            )
        };
        if code != DONE {
            return Err(self.error(code, &shape));
        }
        prepare(out, region.width, region.height)?;
        let code = match channels {
            3 => self.rows(&mut out.pixels, region.width as usize * 3, region.height),
            channels => self.other_rows(channels as usize, out)?,
        };
        if code != DONE {
            return Err(self.error(code, &shape));
        }
        let is_last_row = region.y + region.height == shape.height;
        // SAFETY: no precondition beyond a live decompressor.
        match unsafe { forebay_jpeg_finish(self.raw, is_last_row.into()) } {
            DONE if ended => {
                self.take_notes(bytes);
                Ok(region)
            }
            DONE => Err(truncated(Format::Jpeg, "no end marker")),
            code => Err(self.error(code, &shape)),
        }
    }
}

impl Jpeg {
    /// All landmarks of a picture, by getting past all of its codes, without pixels but for its last rows. None of one that has
    /// none, or that is damaged anywhere.
    pub(crate) fn find_landmarks(&mut self, bytes: &[u8], header: &Header, out: &mut Image) -> Result<Landmarks> {
        if self.shape(bytes)?.has_landmarks == 0 {
            return Ok(Landmarks::default());
        }
        self.landmarks = Some(Landmarks::default());
        let corner = Region { x: 0, y: header.height - 1, width: 1, height: 1 };
        let decoded = self.decode(bytes, header, Some(corner), out);
        let found = self.landmarks.take().unwrap_or_default();
        decoded.map(|_| found)
    }

    /// Decodes `wanted` as separate luma and chroma planes, each block with as few samples as are enough for resizing
    /// from `from` to `to`; returns `false`, with nothing decoded, for pictures of other colours. The same data is
    /// decoded as for pixels, so the same damage is seen.
    pub(crate) fn decode_planes(
        &mut self,
        bytes: &[u8],
        header: &Header,
        wanted: Region,
        (from, to): (Size, Size),
        out: &mut Planes,
    ) -> Result<bool> {
        let shape = self.shape(bytes)?;
        let is_whole = (shape.width, shape.height) == (header.width, header.height);
        if !is_whole || !matches!(shape.components, 1 | 3) || !ends(bytes, shape.data_offset) {
            // The pixel path reports this error.
            return Ok(false);
        }
        let Region { x, y, width, height } = header.region(Some(wanted))?;
        let mut raw = RawPlanes::default();
        self.lend_landmarks(bytes);
        // SAFETY: as in `decode`: `bytes` outlives what is begun here.
        let code = unsafe {
            let (data, size) = (bytes.as_ptr(), bytes.len());
            forebay_jpeg_begin_planes(self.raw, data, size, block(from, to), x, y, width, height, &raw mut raw)
        };
        match code {
            DONE => {}
            NOT_PLANAR => return Ok(false),
            code => return Err(self.error(code, &shape)),
        }
        let mut samples = [std::ptr::null_mut(); MAX_PLANES];
        out.count = raw.count as usize;
        for ((plane, raw_plane), samples) in out.planes.iter_mut().zip(&raw.plane).zip(&mut samples).take(out.count) {
            let rows = (raw_plane.mcu_rows * raw.mcu_rows) as usize;
            *samples = plane.prepare(raw_plane.stride as usize, rows)?.as_mut_ptr();
            plane.origin = (raw_plane.x, raw_plane.y);
            plane.pitch = (raw_plane.pitch_x, raw_plane.pitch_y);
        }
        // SAFETY: each of `count` planes has room for `mcu_rows` times its own rows of `stride` samples, which is what
        // the shim writes.
        let code = unsafe { forebay_jpeg_planes(self.raw, &raw const raw, samples.as_ptr()) };
        if code != DONE {
            return Err(self.error(code, &shape));
        }
        let is_last_row = y + height == shape.height;
        // SAFETY: no precondition beyond a live decompressor.
        match unsafe { forebay_jpeg_finish(self.raw, is_last_row.into()) } {
            DONE => {
                self.take_notes(bytes);
                Ok(true)
            }
            code => Err(self.error(code, &shape)),
        }
    }

    fn rows(&mut self, pixels: &mut [u8], stride: usize, count: u32) -> c_int {
        assert!(pixels.len() >= stride * count as usize, "room for every row");
        // SAFETY: `pixels` has room for `count` rows, and `stride` is the row length that forebay_jpeg_begin gave.
        unsafe { forebay_jpeg_rows(self.raw, pixels.as_mut_ptr(), stride, count) }
    }

    /// Rows of grey or CMYK, on their way to RGB.
    fn other_rows(&mut self, channels: usize, out: &mut Image) -> Result<c_int> {
        const ROWS: usize = 16;
        let stride = out.width as usize * channels;
        let mut stored = std::mem::take(&mut self.stored);
        resize(&mut stored, stride * ROWS, 0, "its rows")?;
        let mut code = DONE;
        for rgb in out.pixels.chunks_mut(out.width as usize * 3 * ROWS) {
            let stored = &mut stored[..rgb.len() / 3 * channels];
            code = self.rows(stored, stride, (stored.len() / stride) as u32);
            if code != DONE {
                break;
            }
            if channels == 1 {
                rgb_mut(rgb).iter_mut().zip(stored).for_each(|(rgb, grey)| *rgb = [*grey; 3]);
                continue;
            }
            // Pillow treats every CMYK JPEG as Adobe's kind: inverted.
            if !self.ink_is_plain {
                stored.iter_mut().for_each(|value| *value = !*value);
            }
            cmyk_to_rgb(stored, rgb);
        }
        self.stored = stored;
        Ok(code)
    }
}

/// The samples across that a block of 8 pixels needs to have enough for each pixel of the result. Sizes other than
/// powers of two exist, but without vector instructions: slower than 8.
fn block(from: Size, to: Size) -> u32 {
    let is_enough = |block: &u32| {
        let enough = |from: u32, to: u32| u64::from(from) * u64::from(*block) >= u64::from(to) * 8;
        enough(from.width, to.width) && enough(from.height, to.height)
    };
    [1, 2, 4].into_iter().find(is_enough).unwrap_or(8)
}

/// Whether an end marker follows the beginning of the data. Anything after it is ignored: cameras append previews and
/// videos. An end marker before the data is that of a thumbnail.
fn ends(bytes: &[u8], data_offset: u64) -> bool {
    let data = bytes.get(data_offset as usize..).unwrap_or_default();
    data.windows(2).rev().any(|pair| pair == [0xFF, 0xD9])
}

#[cfg(test)]
mod tests;
