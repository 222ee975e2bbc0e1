//! WebP, by libwebp: whole pictures, or only the rows and columns around a wanted region. Of an animation the first
//! frame, on a black canvas, as Pillow without its alpha channel.

use std::ffi::c_int;

use forebay_core::{Error, Kind, Result};
use libwebp_sys as sys;

use crate::decoder::{check_size, damaged, truncated, unsupported};
use crate::pixels::prepare;
use crate::{Decoder, Format, Header, Image, Region};

/// What libwebp holds per pixel at worst (lossless: the picture in ARGB), and besides.
const WORKING_BYTES_PER_PIXEL: u64 = 4;
const WORKING_BYTES: u64 = 512 << 10;

/// Decodes WebP; keeps nothing.
#[derive(Default)]
pub(crate) struct WebP;

/// Where the first frame lies, in the file and on the canvas.
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
    // The frame's bytes are found again in `bytes`, so that their lifetime is the compiler's business.
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
        let (width, height) = first_frame(bytes)?.canvas;
        check_size(Format::WebP, width, height)?;
        let pixels = u64::from(width) * u64::from(height);
        let memory_bytes = pixels * (3 + WORKING_BYTES_PER_PIXEL) + WORKING_BYTES;
        Ok(Header { format: Format::WebP, width, height, memory_bytes })
    }

    fn decode(&mut self, bytes: &[u8], header: &Header, wanted: Option<Region>, out: &mut Image) -> Result<Region> {
        let wanted = header.region(wanted)?;
        let frame = first_frame(bytes)?;
        if frame.canvas != (header.width, header.height) {
            return Err(Error::internal("the header given belongs to another WebP"));
        }
        if (frame.width, frame.height) == (header.width as usize, header.height as usize) {
            let region = with_margin(wanted, header);
            prepare(out, region.width, region.height);
            let part = (region != header.whole()).then_some(region);
            decode_frame(&frame, part, &mut out.pixels, region.width as usize * 3)?;
            return Ok(region);
        }
        prepare(out, header.width, header.height);
        out.pixels.fill(0);
        let stride = header.width as usize * 3;
        decode_frame(&frame, None, &mut out.pixels[frame.y * stride + frame.x * 3..], stride)?;
        Ok(header.whole())
    }
}

/// What has to be decoded for the pixels of `wanted` to be those of the whole picture: colours of lossy pictures are
/// there for every other pixel and row, and those at the edge of what is decoded are made without their neighbours.
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

/// Decodes a frame, or a region of it. Rows below the region are not looked at.
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
    // SAFETY: the frame's bytes are readable; the output is `pixels`, whose length libwebp is told and checks.
    let status = unsafe { sys::WebPDecode(frame.data.as_ptr(), frame.data.len(), &raw mut config) };
    // SAFETY: initialised above; frees what libwebp itself allocated, not `pixels`.
    unsafe { sys::WebPFreeDecBuffer(&raw mut config.output) };
    match status {
        sys::VP8StatusCode::VP8_STATUS_OK => Ok(()),
        // libwebp says so of many damaged files too; whether there is memory can be tried.
        sys::VP8StatusCode::VP8_STATUS_OUT_OF_MEMORY if !available(frame) => {
            Err(Error::new(Kind::Exhausted, "needs more memory than there is (WebP)"))
        }
        sys::VP8StatusCode::VP8_STATUS_NOT_ENOUGH_DATA | sys::VP8StatusCode::VP8_STATUS_SUSPENDED => {
            Err(truncated(Format::WebP, format!("{status:?}")))
        }
        sys::VP8StatusCode::VP8_STATUS_UNSUPPORTED_FEATURE => Err(unsupported(Format::WebP, format!("{status:?}"))),
        _ => Err(damaged(Format::WebP, format!("{status:?}"))),
    }
}

fn available(frame: &Frame<'_>) -> bool {
    let bytes = frame.width as u64 * frame.height as u64 * WORKING_BYTES_PER_PIXEL + WORKING_BYTES;
    Vec::<u8>::new().try_reserve_exact(bytes as usize).is_ok()
}
