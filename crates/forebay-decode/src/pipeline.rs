//! From bytes to a sample: decode, then every op in order.
//!
//! The pipeline is data that is checked and printed before anything runs. Two optimisations keep the result identical
//! to the last bit: `head` asks the decoder only for the part that the first crop needs, and `tail` writes flips,
//! conversion and normalisation in one pass into the sample's slot of the batch, in the batch's own type and order. If
//! the tail does not apply, `place` converts the result at the end.

use std::fmt;
use std::time::{Duration, Instant};

use forebay_core::{Error, Problems, Result, Rng, Stage};

use crate::ops::{Buffers, Form, Sizes, nest};
use crate::planes::Planes;
use crate::{Decoders, Dense, Detail, Dtype, Image, Landmarks, Layout, Op, Order, Output, Region, Size, Tensor, Value};

mod fixed;
mod head;
mod place;
mod tail;

use head::Head;
use tail::Tail;

/// A checked list of ops.
///
/// Cheap to share between threads: each brings its own [`Scratch`]. The result depends on bytes and [`Rng`] alone.
/// A failed sample leaves no state behind, except possibly a partly written slot.
///
/// ```
/// use forebay_decode::{Op, Pipeline};
///
/// let pipeline = Pipeline::new(vec![Op::CenterCrop { size: 224.into() }, Op::ToTensor])?;
/// assert_eq!(pipeline.to_string(), "decode → CenterCrop(size=(224, 224)) → ToTensor()");
/// assert_eq!(pipeline.layout().map(|layout| layout.size_bytes()), Some(3 * 224 * 224 * 4));
///
/// let wrong = Pipeline::new(vec![Op::Normalize { mean: vec![0.5], std: vec![0.5] }]).unwrap_err();
/// assert!(wrong.message().ends_with("expected a float32 tensor, got an image: put ToTensor before it"));
/// # Ok::<(), forebay_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Pipeline {
    ops: Vec<Op>,
    made: Form,
    output: Output,
    detail: Detail,
    head: Head,
    tail: Option<Tail>,
    /// How many ops from the first on have no random choice and make pictures of pictures.
    fixed: usize,
    /// The layout of samples in a batch, as a column has it.
    dense: Option<Dense>,
}

/// What one thread keeps between samples: decoders, buffers, resize tables.
#[derive(Default)]
pub struct Scratch {
    decoders: Decoders,
    image: Image,
    planes: Planes,
    buffers: Buffers,
    bytes: Vec<u8>,
}

impl Scratch {
    /// Larger buffers are freed after the sample that needed them: what a thread keeps is not charged to the memory
    /// budget. Enough for a photo of 2.8 megapixels (not measured).
    const MAX_KEPT_BYTES: usize = 8 << 20;

    /// Lends the landmarks of the next picture from an earlier decode, to be used and extended.
    pub fn lend(&mut self, landmarks: Landmarks) {
        self.decoders.lend(landmarks);
    }

    /// The same of the one picture that lies in these bytes, which stay where they are until [`Self::take_back`]: the other pictures of
    /// a sample are not lent it.
    pub fn lend_within(&mut self, bytes: &[u8], landmarks: Landmarks) {
        self.decoders.lend_within(bytes, landmarks);
    }

    /// Takes the landmarks back.
    pub fn take_back(&mut self) -> Option<Landmarks> {
        self.decoders.take_back()
    }

    /// Lends what an [`Annotator`](crate::Annotator) knew of these very bytes, which are decoded next, and stay where they are until
    /// [`Self::take_back_annotations`]. A sample may have several pictures.
    pub fn lend_annotation(&mut self, bytes: &[u8], annotation: &[u8]) {
        self.decoders.lend_annotation(bytes, annotation);
    }

    /// Forgets the annotations that were lent; gives how many were used.
    pub fn take_back_annotations(&mut self) -> u64 {
        self.decoders.take_back_annotations()
    }

    fn give_back(&mut self) {
        let Self { image, planes, buffers, bytes, .. } = self;
        buffers.give_back();
        let kept = [&mut image.pixels, bytes].into_iter().chain(planes.bytes_mut()).chain(buffers.bytes_mut());
        for buffer in kept {
            if buffer.capacity() > Self::MAX_KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

/// How long one sample took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Bytes to pixels.
    pub decode: Duration,
    /// Pixels to the result.
    pub transform: Duration,
}

impl Pipeline {
    /// Checks the ops, and reports all errors at once. An [`Op::Compose`] is replaced by its ops.
    pub fn new(ops: Vec<Op>) -> Result<Self> {
        nest::check_limits(&ops)?;
        let ops = nest::flatten(ops);
        let mut problems = Problems::default();
        let mut form = Form::DECODED;
        let mut forms = Vec::with_capacity(ops.len());
        for (position, op) in ops.iter().enumerate() {
            forms.push(form);
            form = op.check(&(position + 1).to_string(), form, &mut problems);
        }
        problems.into_result()?;
        let (head, tail) = (Head::new(&ops), Tail::new(&ops, &forms));
        let (output, detail) = (Output::default(), Detail::default());
        let fixed = fixed::count(&ops, &forms);
        let pipeline = Self { head, tail, fixed, ops, made: form, output, detail, dense: None };
        Ok(Self { dense: pipeline.layout().map(Dense::from), ..pipeline })
    }

    /// The same ops on pictures decoded with this detail. [`Detail::Fast`] changes pixels of resized JPEGs only; random
    /// choices and the detection of damage stay the same.
    ///
    /// ```
    /// use forebay_decode::{Detail, Op, Pipeline};
    ///
    /// let fast = Pipeline::new(vec![Op::ToTensor])?.with_detail(Detail::Fast);
    /// assert_eq!(fast.to_string(), "fast decode → ToTensor()");
    /// # Ok::<(), forebay_core::Error>(())
    /// ```
    #[must_use]
    pub fn with_detail(self, detail: Detail) -> Self {
        Self { detail, ..self }
    }

    /// The same ops for batches of another type or order, which [`run_into`](Self::run_into) writes directly. If
    /// `uint8` is requested and the ops end in pictures, these become tensors.
    ///
    /// ```
    /// use forebay_decode::{Dtype, Op, Order, Output, Pipeline};
    ///
    /// let floats = Pipeline::new(vec![Op::CenterCrop { size: 8.into() }, Op::ToTensor])?;
    /// let halves = floats.with_output(Output { dtype: Some(Dtype::F16), order: Order::Interleaved })?;
    /// assert_eq!(halves.layout().map(|layout| layout.size_bytes()), Some(3 * 8 * 8 * 2));
    /// assert!(floats.with_output(Output { dtype: Some(Dtype::U8), ..Output::default() }).is_err());
    /// # Ok::<(), forebay_core::Error>(())
    /// ```
    pub fn with_output(&self, output: Output) -> Result<Self> {
        let mut ops = self.ops.clone();
        if output.dtype == Some(Dtype::U8) && matches!(self.made, Form::Image(_)) {
            ops.push(Op::ToImage);
        }
        let mut pipeline = Self::new(ops)?;
        if let Form::Tensor(_, dtype) = pipeline.made {
            output.layout(Layout { channels: 0, height: 0, width: 0, dtype, order: Order::Planar })?;
        }
        pipeline.tail = pipeline.tail.map(|tail| tail.with_output(output));
        pipeline.output = output;
        pipeline.dense = pipeline.layout().map(Dense::from);
        pipeline.detail = self.detail;
        Ok(pipeline)
    }

    /// The output settings of batches.
    pub fn output(&self) -> Output {
        self.output
    }

    /// The layout of the ops' result, if it is fixed.
    fn made_layout(&self) -> Option<Layout> {
        let Form::Tensor(shape, dtype) = self.made else { return None };
        let (channels, size) = (shape.channels?, shape.size?);
        Some(Layout { channels, height: size.height, width: size.width, dtype, order: Order::Planar })
    }

    /// Shape, type and order of every sample in a batch, if the ops fix them. ([`run`](Self::run) returns tensors as
    /// the ops make them.)
    pub fn layout(&self) -> Option<Layout> {
        // An impossible type was refused by `with_output`.
        self.made_layout().and_then(|made| self.output.layout(made).ok())
    }

    /// The same for a column.
    pub(crate) fn dense(&self) -> Option<&Dense> {
        self.dense.as_ref()
    }

    /// Whether only a part of each picture may be decoded.
    pub fn decodes_part(&self) -> bool {
        !matches!(self.head, Head::Whole | Head::Resize)
    }

    /// The ops.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Peak memory of one sample in bytes, as far as its header tells: charged before it is decoded.
    pub fn memory_bytes(&self, bytes: &[u8], scratch: &mut Scratch) -> Result<u64> {
        let header = scratch.decoders.header(bytes)?;
        header.check_filled(bytes)?;
        Ok(header.memory_bytes + self.memory_beside(Size { height: header.height, width: header.width }))
    }

    /// Bytes that the ops take beside a picture of this size, and those of the result.
    pub(crate) fn memory_beside(&self, whole: Size) -> u64 {
        let (largest, sizes) = self.charge(0, Sizes::from(whole), whole);
        largest + self.result_bytes(sizes)
    }

    /// Bytes that the ops from `from` on take beside a picture of one of these sizes, and the sizes that it may have then.
    fn charge(&self, from: usize, mut sizes: Sizes, whole: Size) -> (u64, Sizes) {
        // The tail writes into the batch, which is charged separately.
        let fused = self.tail.as_ref().filter(|tail| self.layout().is_some() && tail.end() == self.ops.len());
        let last = fused.map_or(self.ops.len(), Tail::start);
        let mut largest = 0;
        for op in self.ops.get(from..last).unwrap_or_default() {
            let Some((bytes, made)) = op.charge(sizes) else {
                // The result of a user's transform is usually as large as the picture.
                sizes = sizes.and(whole.into());
                break;
            };
            largest = largest.max(bytes);
            sizes = made;
        }
        // Planes are resized with tables for luma and for chroma, and then converted to pixels.
        let times = if self.detail == Detail::Fast { 2 } else { 1 };
        (largest * times, sizes)
    }

    /// Bytes of a result that has no place in a batch.
    fn result_bytes(&self, sizes: Sizes) -> u64 {
        match self.layout() {
            Some(_) => 0,
            None => sizes.largest().area() * 3 * size_of::<f32>() as u64,
        }
    }

    /// Whether bytes that failed to decode would fail with any random crop. Damage below the rows of a crop is not
    /// seen, so the file is bad as a whole only if decoding its first pixel fails, too.
    pub fn fails_always(&self, bytes: &[u8], scratch: &mut Scratch) -> bool {
        if !self.decodes_part() {
            return true;
        }
        let first = Region { x: 0, y: 0, width: 1, height: 1 };
        let Scratch { decoders, image, .. } = scratch;
        let decoded = decoders.header(bytes).and_then(|header| decoders.decode(bytes, &header, Some(first), image));
        scratch.give_back();
        decoded.is_err()
    }

    /// Decodes and transforms one sample.
    pub fn run(&self, bytes: &[u8], rng: &Rng, scratch: &mut Scratch) -> Result<(Value, Timing)> {
        let start = Instant::now();
        let made = head::begin(self.head, self.detail, &self.ops, bytes, rng, scratch).and_then(|begun| {
            let value = self.finish(Value::Image(begun.image), begun.done, rng, scratch)?;
            Ok((value, Timing { decode: begun.decode, transform: start.elapsed().saturating_sub(begun.decode) }))
        });
        scratch.give_back();
        made
    }

    /// Decodes and transforms one sample into its slot of a batch: `slot` has the size of [`layout`](Self::layout), and
    /// gets the elements in its order and in the machine's byte order.
    pub fn run_into(&self, bytes: &[u8], rng: &Rng, scratch: &mut Scratch, slot: &mut [u8]) -> Result<Timing> {
        let layout = self.slot_layout(slot)?;
        let start = Instant::now();
        let made = head::begin(self.head, self.detail, &self.ops, bytes, rng, scratch).and_then(|begun| {
            self.finish_into(begun.image, begun.done, layout, rng, scratch, slot)?;
            Ok(Timing { decode: begun.decode, transform: start.elapsed().saturating_sub(begun.decode) })
        });
        scratch.give_back();
        made
    }

    /// What is to be written into a slot of a batch.
    fn slot_layout(&self, slot: &[u8]) -> Result<Layout> {
        let layout = self.layout().ok_or_else(|| Error::internal("the pipeline has no fixed layout to write"))?;
        let (expected, got) = (layout.size_bytes(), slot.len());
        match expected == got {
            true => Ok(layout),
            false => Err(Error::internal(format!(
                "the slot has another size than the sample (expected {expected}, got {got})"
            ))),
        }
    }

    /// Transforms a decoded value.
    pub fn transform(&self, value: Value, rng: &Rng, scratch: &mut Scratch) -> Result<Value> {
        self.finish(value, 0, rng, scratch)
    }

    /// The ops from `from` on.
    fn finish(&self, mut value: Value, mut from: usize, rng: &Rng, scratch: &mut Scratch) -> Result<Value> {
        if let Some(tail) = self.tail.as_ref().filter(|tail| from <= tail.start()) {
            value = self.advance(value, from, tail.start(), rng, scratch)?;
            from = tail.start();
            if let Value::Image(image) = &value
                && tail.fits(image)
            {
                value = Value::Tensor(tail.tensor(image, rng, &mut scratch.bytes)?);
                from = tail.end();
            }
        }
        self.advance(value, from, self.ops.len(), rng, scratch)
    }

    /// The same, ending in a slot.
    fn finish_into(
        &self,
        image: Image,
        from: usize,
        layout: Layout,
        rng: &Rng,
        scratch: &mut Scratch,
        slot: &mut [u8],
    ) -> Result<()> {
        let mut value = Value::Image(image);
        let mut from = from;
        if let Some(tail) = self.tail.as_ref().filter(|tail| from <= tail.start() && tail.end() == self.ops.len()) {
            value = self.advance(value, from, tail.start(), rng, scratch)?;
            from = tail.start();
            if let Value::Image(image) = &mut value
                && tail.fits(image)
                && (image.width, image.height) == (layout.width, layout.height)
            {
                tail.write(image, rng, slot);
                // Returned to the scratch, so that the next sample can reuse its memory.
                std::mem::swap(&mut scratch.image, image);
                return Ok(());
            }
        }
        match self.finish(value, from, rng, scratch)? {
            Value::Tensor(tensor) => self.place(&tensor, slot),
            other => Err(Error::internal(format!("the pipeline promised {layout:?} and made {other:?}"))),
        }
    }

    /// Writes a tensor from [`transform`](Self::transform) into its slot of a batch.
    pub fn place(&self, tensor: &Tensor, slot: &mut [u8]) -> Result<()> {
        let (made, promised) = (tensor.layout(), self.made_layout());
        if promised.is_some_and(|promised| promised != made) {
            return Err(Error::internal(format!("the pipeline promised {promised:?} and made {made:?}")));
        }
        let layout = self.output.layout(made)?;
        if layout.size_bytes() != slot.len() {
            let message = format!("a tensor of {made:?} has another size than its slot of {} bytes", slot.len());
            return Err(Error::internal(message));
        }
        place::tensor(tensor, layout, slot);
        Ok(())
    }

    /// Ops `from` up to `to`, one by one.
    fn advance(&self, mut value: Value, from: usize, to: usize, rng: &Rng, scratch: &mut Scratch) -> Result<Value> {
        for position in from..to {
            let mut own = rng.fork(position as u64);
            value = self.ops[position]
                .apply(value, &mut own, &mut scratch.buffers)
                .map_err(|error| error.at_stage(Stage::Transform))?;
        }
        Ok(value)
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.detail == Detail::Fast { "fast decode" } else { "decode" })?;
        self.ops.iter().try_for_each(|op| write!(f, " → {op}"))?;
        self.output.dtype.iter().try_for_each(|dtype| write!(f, " → {}", dtype.name()))?;
        if self.output.order == Order::Interleaved { f.write_str(" → channels_last") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
