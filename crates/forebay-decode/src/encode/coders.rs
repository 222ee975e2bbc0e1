//! The encoders: libjpeg-turbo by its own interface, which keeps its longjmps to itself, libwebp, and the png crate. Each gives the
//! same bytes for the same pixels on every processor.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use forebay_core::{Error, Result};
use libwebp_sys as webp;
use turbojpeg_sys as turbo;

use super::orientation::{exif, jpeg_segment};
use super::{Coding, too_large};
use crate::Image;

const MAX_JPEG_SIDE: u32 = 65_535;
const MAX_WEBP_SIDE: u32 = 16_383;

/// Encodes RGB of 8 bits.
pub(super) fn encode(image: &Image, coding: Coding, quality: u8, orientation: u8) -> Result<Vec<u8>> {
    let Image { width, height, channels, pixels } = image;
    if *channels != 3 || pixels.len() != *width as usize * *height as usize * 3 || pixels.is_empty() {
        return Err(Error::internal("a picture to encode is not of three channels, or not whole"));
    }
    match coding {
        Coding::Jpeg => jpeg(image, quality, orientation),
        Coding::WebP => webp(image, quality, orientation),
        Coding::Png => png(image, orientation),
    }
}

fn check_side(image: &Image, coding: Coding, most: u32) -> Result<()> {
    if image.width.max(image.height) > most { Err(too_large(coding, most, image)) } else { Ok(()) }
}

/// A TurboJPEG instance, freed when it is dropped.
struct Compressor(turbo::tjhandle);

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: made by tj3Init, not used after.
        unsafe { turbo::tj3Destroy(self.0) }
    }
}

/// Memory that TurboJPEG allocated.
struct Allocated(*mut u8, usize);

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: null, or allocated by TurboJPEG; not used after.
        unsafe { turbo::tj3Free(self.0.cast::<c_void>()) }
    }
}

fn jpeg(image: &Image, quality: u8, orientation: u8) -> Result<Vec<u8>> {
    check_side(image, Coding::Jpeg, MAX_JPEG_SIDE)?;
    // SAFETY: no precondition.
    let compressor = Compressor(unsafe { turbo::tj3Init(turbo::TJINIT_TJINIT_COMPRESS as c_int) });
    let failed = || {
        // SAFETY: the handle is live or null; the text is of static or of the instance's memory, and NUL-terminated.
        let said = unsafe { CStr::from_ptr(turbo::tj3GetErrorStr(compressor.0)) };
        Error::internal(format!("could not be encoded (JPEG): {}", said.to_string_lossy()))
    };
    if compressor.0.is_null() {
        return Err(failed());
    }
    for (parameter, value) in [
        (turbo::TJPARAM_TJPARAM_QUALITY, c_int::from(quality)),
        (turbo::TJPARAM_TJPARAM_SUBSAMP, turbo::TJSAMP_TJSAMP_420),
        (turbo::TJPARAM_TJPARAM_OPTIMIZE, 1),
    ] {
        // SAFETY: the handle is live.
        if unsafe { turbo::tj3Set(compressor.0, parameter as c_int, value as c_int) } != 0 {
            return Err(failed());
        }
    }
    let mut made = Allocated(ptr::null_mut(), 0);
    // SAFETY: the pixels are `height` packed rows of `width` RGB pixels, as was checked; the result is allocated by the callee.
    let code = unsafe {
        turbo::tj3Compress8(
            compressor.0,
            image.pixels.as_ptr(),
            image.width as c_int,
            0,
            image.height as c_int,
            turbo::TJPF_TJPF_RGB,
            &raw mut made.0,
            (&raw mut made.1).cast(),
        )
    };
    if code != 0 || made.0.is_null() {
        return Err(failed());
    }
    // SAFETY: the callee has written so many bytes there.
    let bytes = unsafe { std::slice::from_raw_parts(made.0, made.1) };
    if orientation == 1 {
        return Ok(bytes.to_vec());
    }
    // Behind the start and JFIF's own segment.
    let at = match bytes {
        [0xFF, 0xD8, 0xFF, 0xE0, high, low, ..] => 4 + usize::from(u16::from_be_bytes([*high, *low])),
        _ => 2,
    };
    Ok([&bytes[..at], &jpeg_segment(orientation), &bytes[at..]].concat())
}

fn webp(image: &Image, quality: u8, orientation: u8) -> Result<Vec<u8>> {
    check_side(image, Coding::WebP, MAX_WEBP_SIDE)?;
    let (width, height) = (image.width as c_int, image.height as c_int);
    let mut out: *mut u8 = ptr::null_mut();
    // SAFETY: the pixels are `height` rows of `3 * width` bytes, as was checked; the result is allocated by the callee.
    let size = unsafe {
        webp::WebPEncodeRGB(image.pixels.as_ptr(), width, height, width * 3, f32::from(quality), &raw mut out)
    };
    if size == 0 || out.is_null() {
        return Err(Error::internal("could not be encoded (WebP)"));
    }
    // SAFETY: the callee has written so many bytes there.
    let bytes = unsafe { std::slice::from_raw_parts(out, size) }.to_vec();
    // SAFETY: allocated by libwebp, not used after.
    unsafe { webp::WebPFree(out.cast::<c_void>()) };
    Ok(if orientation == 1 { bytes } else { extended(image, &bytes, orientation) })
}

/// A WebP file with metadata has a header chunk that says so.
fn extended(image: &Image, simple: &[u8], orientation: u8) -> Vec<u8> {
    const HAS_EXIF: u8 = 8;
    let exif = exif(orientation);
    let mut header = vec![HAS_EXIF, 0, 0, 0];
    header.extend(&(image.width - 1).to_le_bytes()[..3]);
    header.extend(&(image.height - 1).to_le_bytes()[..3]);
    let chunk = |name: &[u8], content: &[u8]| [name, &(content.len() as u32).to_le_bytes()[..], content].concat();
    let content = [b"WEBP".to_vec(), chunk(b"VP8X", &header), simple[12..].to_vec(), chunk(b"EXIF", &exif)].concat();
    chunk(b"RIFF", &content)
}

fn png(image: &Image, orientation: u8) -> Result<Vec<u8>> {
    let failed = |error: png::EncodingError| Error::internal(format!("could not be encoded (PNG): {error}"));
    let mut info = png::Info::with_size(image.width, image.height);
    (info.color_type, info.bit_depth) = (png::ColorType::Rgb, png::BitDepth::Eight);
    if orientation != 1 {
        info.exif_metadata = Some(exif(orientation).into());
    }
    let mut bytes = Vec::new();
    let encoder = png::Encoder::with_info(&mut bytes, info).map_err(failed)?;
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(&image.pixels).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(bytes)
}
