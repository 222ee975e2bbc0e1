//! The [`Transform`] trait, implemented for each transform's arguments in its own file, and the code common to all.
//!
//! This is the plain execution of one op on one value, the reference for the pipeline's planned and fused paths.

use std::sync::Arc;

use forebay_core::{Error, Problems, Result, Rng};

use super::blur::Blur;
use super::check::Check;
use super::planar::Planar;
use super::resize::Resampler;
use super::{Custom, Form, Op, Size, Sizes, Takes};
use crate::{Image, Tensor, TensorData, Value};

/// Buffers kept between pictures, so that nothing is allocated for each.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) resampler: Resampler,
    pub(crate) planar: Planar,
    /// Output of ops that cannot work in place.
    pub(crate) spare: Image,
    pub(crate) blur: Blur,
}

impl Buffers {
    /// Frees tables beyond what a thread may keep.
    pub(crate) fn give_back(&mut self) {
        self.resampler.give_back();
        self.planar.give_back();
    }

    /// The buffers that grow with the picture.
    pub(crate) fn bytes_mut(&mut self) -> impl Iterator<Item = &mut Vec<u8>> {
        [&mut self.spare.pixels, self.resampler.between_mut()].into_iter().chain(self.planar.bytes_mut())
    }
}

/// The op that arguments belong to.
pub(crate) trait Of {
    fn op(&self) -> &Op;
}

/// The code of a transform, implemented for its arguments.
///
/// # Contract
/// - `check` refuses everything that would fail for every sample, and returns what is known about the result.
/// - `memory` is never less than what `image` allocates for a picture of that size.
/// - The result depends on the arguments, the value and `rng` alone, which is this op's own stream.
pub(crate) trait Transform: Of {
    /// Reports what is wrong with this op for the input `form`, and returns what is known about its result. Not called
    /// with tensors if the op takes images only.
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form;

    /// Whether it makes the same picture of a picture every time, without a random choice.
    fn is_fixed(&self) -> bool {
        false
    }

    /// Memory of this op in addition to a picture of this size, its result included, and the largest possible size of
    /// the result. `None` if it is unknown: for a user's transform, and for sizes that will be refused. Zero for an op
    /// that works in place.
    fn memory(&self, size: Size) -> Option<(u64, Size)> {
        Some((0, size))
    }

    /// The same for several sizes that a picture may have here.
    fn charge(&self, sizes: Sizes) -> Option<(u64, Sizes)> {
        sizes.each(|size| self.memory(size))
    }

    /// Transforms any value.
    fn apply(&self, value: Value, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        match self.op().known(value)? {
            Value::Image(image) => self.image(image, rng, buffers),
            Value::Tensor(tensor) => self.tensor(tensor, rng, buffers).map(Value::Tensor),
            other => Ok(other),
        }
    }

    /// Transforms a picture.
    fn image(&self, _image: Image, _rng: &mut Rng, _buffers: &mut Buffers) -> Result<Value> {
        Err(self.op().unfit("an image"))
    }

    /// Transforms a tensor.
    fn tensor(&self, _tensor: Tensor, _rng: &mut Rng, _buffers: &mut Buffers) -> Result<Tensor> {
        Err(self.op().unfit("a tensor"))
    }
}

impl Op {
    /// Reports what is wrong with this op for the input `form`, and returns what is known about its result. `place` is
    /// its position: 2.1 is the first op nested in the second.
    pub(crate) fn check(&self, place: &str, form: Form, problems: &mut Problems) -> Form {
        let mut check = Check::new(problems, self.name(), place);
        if self.takes() == Some(Takes::Images) {
            check.picture(form);
        }
        self.visit(|transform| transform.check(form, &mut check))
    }

    /// Whether it makes the same picture of a picture every time.
    pub(crate) fn is_fixed(&self) -> bool {
        self.visit(|transform| transform.is_fixed())
    }

    /// Memory of this op in addition to a picture of any of these sizes, and the possible sizes afterwards.
    pub(crate) fn charge(&self, sizes: Sizes) -> Option<(u64, Sizes)> {
        self.visit(|transform| transform.charge(sizes))
    }

    /// Runs the op. `rng` is its own stream.
    pub(crate) fn apply(&self, value: Value, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        self.visit(|transform| transform.apply(value, rng, buffers))
    }

    fn takes(&self) -> Option<Takes> {
        self.row().map(|row| row.takes)
    }

    /// The value, if native ops support it.
    pub(crate) fn known(&self, value: Value) -> Result<Value> {
        match &value {
            Value::Image(_) | Value::Tensor(_) if is_whole(&value) => Ok(value),
            Value::Image(_) | Value::Tensor(_) => {
                Err(self.unfit("one without pixels, or with another number of them than its shape says"))
            }
            _ => Err(self.unfit("an object of a transform's own")),
        }
    }

    /// The error for a value that could not be foreseen, because a user's transform precedes the op.
    pub(crate) fn unfit(&self, got: &str) -> Error {
        let expected = match self.takes() {
            Some(Takes::Images) => "an image",
            Some(Takes::Tensors) => "a tensor",
            Some(Takes::FloatTensors) => "a float32 tensor with as many channels as it has values",
            _ => "an image or a tensor",
        };
        Error::config(format!("{}: expected {expected}, got {got}", self.name()))
            .with_hint("a transform of your own stands before it: return what the next transform expects")
    }
}

/// Checks that the value has at least one element, and as many as its shape says; a user's transform may return
/// anything.
fn is_whole(value: &Value) -> bool {
    let count = |channels: u32, height: u32, width: u32| channels as usize * height as usize * width as usize;
    let (expected, got, channels) = match value {
        Value::Image(Image { width, height, channels, pixels }) => {
            (count(*channels, *height, *width), pixels.len(), matches!(channels, 1 | 3))
        }
        Value::Tensor(tensor) => {
            let got = match &tensor.data {
                TensorData::U8(data) => data.len(),
                TensorData::F32(data) => data.len(),
            };
            (tensor.layout().elements(), got, true)
        }
        _ => return true,
    };
    channels && expected == got && got > 0
}

/// A user's callable, with the op it belongs to.
pub(crate) struct Own<'a> {
    pub(crate) op: &'a Op,
    pub(crate) custom: &'a Arc<dyn Custom>,
}

impl Of for Own<'_> {
    fn op(&self) -> &Op {
        self.op
    }
}

impl Transform for Own<'_> {
    fn check(&self, _form: Form, _check: &mut Check<'_>) -> Form {
        Form::Unknown
    }

    fn memory(&self, _size: Size) -> Option<(u64, Size)> {
        None
    }

    fn apply(&self, value: Value, rng: &mut Rng, _buffers: &mut Buffers) -> Result<Value> {
        self.custom.apply(value, rng.next_u64())
    }
}
