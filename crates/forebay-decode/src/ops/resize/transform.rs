//! The transform `Resize`, and the way to resize a part of a picture.

use forebay_core::{Result, Rng};

use super::{Job, Source, target};
use crate::ops::check::Check;
use crate::ops::table::args;
use crate::ops::transform::Transform;
use crate::ops::window::Window;
use crate::ops::{Buffers, Form, Interpolation, ResizeTo, Size};
use crate::{Image, Value};

/// Resizes a part of an image to `to`, all of it.
pub(crate) fn resample(
    mut image: Image,
    part: Window,
    to: Size,
    interpolation: Interpolation,
    buffers: &mut Buffers,
) -> Result<Image> {
    let channels = image.channels as usize;
    let stride = image.width as usize * channels;
    let start = part.top as usize * stride + part.left as usize * channels;
    let source = Source { pixels: &image.pixels[start..], stride, channels, origin: (0, 0) };
    let job = Job::whole(Size { height: part.height, width: part.width }, to, interpolation);
    buffers.resampler.run(source, &job, &mut buffers.spare.pixels)?;
    std::mem::swap(&mut image.pixels, &mut buffers.spare.pixels);
    (image.width, image.height) = (to.width, to.height);
    Ok(image)
}

impl Transform for args::Resize<'_> {
    fn is_fixed(&self) -> bool {
        true
    }

    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        let max_size = *self.max_size;
        check.expect(max_size != Some(0), || "expected max_size of at least 1, got 0".into());
        match *self.size {
            ResizeTo::Exact(size) => {
                check.size("size", size);
                check.expect(max_size.is_none(), || {
                    format!(
                        "expected no max_size beside height and width, got {}: give size as one number to keep the ratio",
                        max_size.unwrap_or(0)
                    )
                });
                form.sized(Some(size))
            }
            ResizeTo::Edge(edge) => {
                check.size("size", edge.into());
                check.expect(max_size.is_none_or(|most| most > edge), || {
                    format!("expected max_size greater than size {edge}, got {}", max_size.unwrap_or(0))
                });
                form.sized(None)
            }
            ResizeTo::LongEdge => {
                check.expect(max_size.is_some(), || "expected max_size when size is None, got None".into());
                form.sized(None)
            }
        }
    }

    fn memory(&self, size: Size) -> Option<(u64, Size)> {
        let to = target(*self.size, *self.max_size, size.width, size.height).ok()?;
        Some((Job::whole(size, to, *self.interpolation).memory_bytes(), to))
    }

    fn image(&self, image: Image, _rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        let to = target(*self.size, *self.max_size, image.width, image.height)?;
        let all = Window { left: 0, top: 0, width: image.width, height: image.height };
        resample(image, all, to, *self.interpolation, buffers).map(Value::Image)
    }
}
