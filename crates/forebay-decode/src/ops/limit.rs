//! Limits on result sizes: errors of one sample that follow from its size.

use forebay_core::{Error, Kind, Result};

use super::Size;
use crate::MAX_PIXELS;

/// A result has at least one pixel and no more than a decoder would accept.
pub(crate) fn check_result(width: u64, height: u64, what: &str) -> Result<Size> {
    if width == 0 || height == 0 {
        let message = format!("has too extreme a shape for {what} (expected at least 1×1, got {width}×{height})");
        return Err(Error::new(Kind::Undecodable, message)
            .with_hint("give the exact height and width, or crop the picture before it is resized"));
    }
    match (u32::try_from(width), u32::try_from(height)) {
        (Ok(width), Ok(height)) if u64::from(width) * u64::from(height) <= MAX_PIXELS => Ok(Size { height, width }),
        _ => {
            let message =
                format!("would be too large after {what} (expected at most {MAX_PIXELS} pixels, got {width}×{height})");
            Err(Error::new(Kind::Exhausted, message)
                .with_hint("the picture is very long and thin: limit it with `max_size` or crop it first"))
        }
    }
}

/// The error of a crop that is larger than the picture.
pub(crate) fn too_small(wanted: Size, width: u64, height: u64) -> Error {
    let message = format!(
        "is smaller than the crop (expected at least {}×{}, got {width}×{height})",
        wanted.width, wanted.height
    );
    Error::new(Kind::Undecodable, message)
        .with_hint("resize before RandomCrop, or let it pad with `pad_if_needed=true`")
}
