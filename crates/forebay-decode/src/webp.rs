//! WebP, by libwebp: whole pictures, or only the rows and columns around a wanted region. Of an animation, the first
//! frame on a black canvas, as in Pillow without its alpha channel.

use std::ffi::c_int;

use forebay_core::{Error, Result};
use libwebp_sys as sys;

use crate::decoder::{check_size, damaged, truncated, unsupported};
use crate::memory::no_memory;
use crate::pixels::prepare;
use crate::{Decoder, Format, Header, Image, Region};

/// libwebp's memory per pixel at worst (lossless: the picture in ARGB), and its fixed part.
const WORKING_BYTES_PER_PIXEL: u64 = 4;
const WORKING_BYTES: u64 = 512 << 10;

/// In a lossy picture every macroblock of 16×16 pixels has a mode, which takes more than a bit. (A lossless picture may
/// take only a few bytes.)
const MAX_LOSSY_PIXELS_PER_BYTE: u64 = 256 * 8;

/// Decodes WebP; keeps nothing.
#[derive(Default)]
pub(crate) struct WebP;

/// The position of the first frame in the file and on the canvas.
struct Frame<'a> {
    canvas: (u32, u32),
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    data: &'a [u8],
}

/// Reads the container. A file shorter than it says is truncated, whatever is missing.
fn first_frame(bytes: &[u8]) -> Result<Frame<'_>> {
    let data = sys::WebPData { bytes: bytes.as_ptr(), size: bytes.len() };
    let mut state = sys::WebPDemuxState::WEBP_DEMUX_PARSE_ERROR;
    // SAFETY: `data` describes `bytes`, which outlive the demuxer: it is deleted below. 1 allows partial files.
    let demuxer =
        unsafe { sys::WebPDemuxInternal(&raw const data, 1, &raw mut state, sys::WEBP_DEMUX_ABI_VERSION as c_int) };
    let result = match state {
        _ if demuxer.is_null() && state == sys::WebPDemuxState::WEBP_DEMUX_PARSE_ERROR => {
            Err(damaged(Format::WebP, "the chunks do not make a WebP file"))
        }
        sys::WebPDemuxState::WEBP_DEMUX_PARSE_ERROR => Err(damaged(Format::WebP, "a chunk contradicts another")),
        sys::WebPDemuxState::WEBP_DEMUX_DONE if !demuxer.is_null() => {
            // SAFETY: the demuxer is live and done.
            unsafe { frame_of(demuxer, bytes) }
        }
        _ => Err(truncated(Format::WebP, format!("the container says more than its {} bytes", bytes.len()))),
    };
    // SAFETY: made above, not used after; null is allowed.
    unsafe { sys::WebPDemuxDelete(demuxer) };
    result
}

/// # Safety
/// `demuxer` is live, done, and was made of `bytes`.
unsafe fn frame_of(demuxer: *mut sys::WebPDemuxer, bytes: &[u8]) -> Result<Frame<'_>> {
    // SAFETY: the demuxer is live (the caller's promise).
    let canvas = unsafe {
        (
            sys::WebPDemuxGetI(demuxer, sys::WebPFormatFeature::WEBP_FF_CANVAS_WIDTH),
            sys::WebPDemuxGetI(demuxer, sys::WebPFormatFeature::WEBP_FF_CANVAS_HEIGHT),
        )
    };
    // SAFETY: a C struct of integers and pointers; all zero is its documented initial state.
    let mut iterator: sys::WebPIterator = unsafe { std::mem::zeroed() };
    // SAFETY: the demuxer is live, the iterator writable.
    if unsafe { sys::WebPDemuxGetFrame(demuxer, 1, &raw mut iterator) } == 0 {
        return Err(damaged(Format::WebP, "holds no frame"));
    }
    // The frame's bytes are located in `bytes` again, so that the compiler checks their lifetime.
    let start = (iterator.fragment.bytes as usize).wrapping_sub(bytes.as_ptr() as usize);
    let data = bytes.get(start..).and_then(|rest| rest.get(..iterator.fragment.size));
    let inside = |start: c_int, length: c_int, end: u32| {
        start >= 0 && length > 0 && (start as u32).checked_add(length as u32).is_some_and(|sum| sum <= end)
    };
    let fits =
        inside(iterator.x_offset, iterator.width, canvas.0) && inside(iterator.y_offset, iterator.height, canvas.1);
    let frame = data.filter(|_| fits).map(|data| Frame {
        canvas,
        x: iterator.x_offset as usize,
        y: iterator.y_offset as usize,
        width: iterator.width as usize,
        height: iterator.height as usize,
        data,
    });
    // SAFETY: filled by WebPDemuxGetFrame above.
    unsafe { sys::WebPDemuxReleaseIterator(&raw mut iterator) };
    frame.ok_or_else(|| damaged(Format::WebP, "the first frame leaves the canvas"))
}

impl Decoder for WebP {
    fn header(&mut self, bytes: &[u8]) -> Result<Header> {
        let frame = first_frame(bytes)?;
        let (width, height) = frame.canvas;
        check_size(Format::WebP, width, height)?;
        let pixels = u64::from(width) * u64::from(height);
        let memory_bytes = pixels * (3 + WORKING_BYTES_PER_PIXEL) + WORKING_BYTES;
        let coded_bytes = (frame.width * frame.height) as u64 / MAX_LOSSY_PIXELS_PER_BYTE;
        // Whether it is lossy matters only if there are so few bytes.
        let coded_bytes = if coded_bytes > bytes.len() as u64 && !is_lossy(&frame) { 0 } else { coded_bytes };
        Ok(Header { format: Format::WebP, width, height, memory_bytes, coded_bytes })
    }

    fn decode(&mut self, bytes: &[u8], header: &Header, wanted: Option<Region>, out: &mut Image) -> Result<Region> {
        let wanted = header.region(wanted)?;
        let frame = first_frame(bytes)?;
        if frame.canvas != (header.width, header.height) {
            return Err(Error::internal("the header given belongs to another WebP"));
        }
        if (frame.width, frame.height) == (header.width as usize, header.height as usize) {
            let region = with_margin(wanted, header);
            prepare(out, region.width, region.height)?;
            let part = (region != header.whole()).then_some(region);
            decode_frame(&frame, part, &mut out.pixels, region.width as usize * 3)?;
            return Ok(region);
        }
        prepare(out, header.width, header.height)?;
        out.pixels.fill(0);
        let stride = header.width as usize * 3;
        decode_frame(&frame, None, &mut out.pixels[frame.y * stride + frame.x * 3..], stride)?;
        Ok(header.whole())
    }
}

/// Whether the frame is certain to be lossy.
fn is_lossy(frame: &Frame<'_>) -> bool {
    const LOSSY: c_int = 1;
    // SAFETY: a C struct of integers, for which all zero is valid.
    let mut features: sys::WebPBitstreamFeatures = unsafe { std::mem::zeroed() };
    let version = sys::WEBP_DECODER_ABI_VERSION as c_int;
    // SAFETY: the frame's bytes are readable for their length, `features` is writable.
    let status =
        unsafe { sys::WebPGetFeaturesInternal(frame.data.as_ptr(), frame.data.len(), &raw mut features, version) };
    status == sys::VP8StatusCode::VP8_STATUS_OK && features.format == LOSSY
}

/// The region to decode so that the pixels of `wanted` equal those of the whole picture. Lossy pictures have chroma for
/// every other pixel and row, and chroma at the edge of the decoded region is interpolated without its neighbours.
fn with_margin(wanted: Region, header: &Header) -> Region {
    const MARGIN: u32 = 2;
    let span = |start: u32, length: u32, end: u32| {
        let first = (start & !1).saturating_sub(MARGIN);
        (first, (start + length + MARGIN).next_multiple_of(2).min(end) - first)
    };
    let (x, width) = span(wanted.x, wanted.width, header.width);
    let (y, height) = span(wanted.y, wanted.height, header.height);
    Region { x, y, width, height }
}

/// Decodes a frame, or a region of it. Rows below the region are not examined.
fn decode_frame(frame: &Frame<'_>, region: Option<Region>, pixels: &mut [u8], stride: usize) -> Result<()> {
    let (width, height) =
        region.map_or((frame.width, frame.height), |region| (region.width as usize, region.height as usize));
    assert!(pixels.len() >= stride * (height - 1) + width * 3, "room for the frame");
    // SAFETY: a C struct of integers, pointers and unions of them, for which all zero is valid;
    // WebPInitDecoderConfigInternal fills it.
    let mut config: sys::WebPDecoderConfig = unsafe { std::mem::zeroed() };
    // SAFETY: `config` is writable.
    let known = unsafe { sys::WebPInitDecoderConfigInternal(&raw mut config, sys::WEBP_DECODER_ABI_VERSION as c_int) };
    if known == 0 {
        return Err(Error::internal("libwebp is of another version than its header"));
    }
    config.output.colorspace = sys::WEBP_CSP_MODE::MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.width = width as c_int;
    config.output.height = height as c_int;
    if let Some(region) = region {
        config.options.use_cropping = 1;
        config.options.crop_left = region.x as c_int;
        config.options.crop_top = region.y as c_int;
        config.options.crop_width = region.width as c_int;
        config.options.crop_height = region.height as c_int;
    }
    config.output.u.RGBA =
        sys::WebPRGBABuffer { rgba: pixels.as_mut_ptr(), stride: stride as c_int, size: pixels.len() };
    clear_errno();
    // SAFETY: the frame's bytes are readable; the output is `pixels`, whose length libwebp is told and checks.
    let status = unsafe { sys::WebPDecode(frame.data.as_ptr(), frame.data.len(), &raw mut config) };
    // libwebp reports some damaged files as out of memory, and some lack of memory as damage. Its allocations are the C
    // library's, so errno tells.
    let ran_out = is_errno_no_memory();
    // SAFETY: initialised above; frees what libwebp itself allocated, not `pixels`.
    unsafe { sys::WebPFreeDecBuffer(&raw mut config.output) };
    match status {
        sys::VP8StatusCode::VP8_STATUS_OK => Ok(()),
        _ if ran_out => Err(no_memory(frame.width * frame.height * WORKING_BYTES_PER_PIXEL as usize, "its WebP")),
        sys::VP8StatusCode::VP8_STATUS_NOT_ENOUGH_DATA | sys::VP8StatusCode::VP8_STATUS_SUSPENDED => {
            Err(truncated(Format::WebP, format!("{status:?}")))
        }
        sys::VP8StatusCode::VP8_STATUS_UNSUPPORTED_FEATURE => Err(unsupported(Format::WebP, format!("{status:?}"))),
        _ => Err(damaged(Format::WebP, format!("{status:?}"))),
    }
}

fn errno() -> *mut c_int {
    // SAFETY: gives the place of this thread's own error number, which lives as long as the thread.
    #[cfg(not(target_vendor = "apple"))]
    return unsafe { libc::__errno_location() };
    // SAFETY: the same.
    #[cfg(target_vendor = "apple")]
    return unsafe { libc::__error() };
}

fn clear_errno() {
    // SAFETY: a valid place that only this thread uses.
    unsafe { *errno() = 0 }
}

fn is_errno_no_memory() -> bool {
    // SAFETY: a valid place that only this thread uses.
    unsafe { *errno() == libc::ENOMEM }
}
