//! The end of a pipeline in one pass: flips, conversion to a tensor, scaling, normalising and the batch's own type, from
//! interleaved bytes straight to planes or pixels.
//!
//! Every elementwise op is a function of the byte and its channel, so a chain of them is a table of 256 results per
//! channel, computed once. Flips commute with it. Erasing is done in place afterwards.

use forebay_core::{Result, Rng};

use super::place;
use crate::memory::{collect, resize};
use crate::ops::convert::{Element, Lookup, Pointwise, truncate};
use crate::ops::{Form, erase};
use crate::{Dtype, Image, Op, Order, Output, Tensor, TensorData};
use formula::Formula;
use portable::Stored;

#[cfg(target_arch = "x86_64")]
mod avx2;
mod formula;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(target_arch = "x86_64")]
use avx2 as simd;
#[cfg(target_arch = "aarch64")]
use neon as simd;

/// The fused ops.
#[derive(Clone, Debug)]
pub(super) struct Tail {
    start: usize,
    end: usize,
    /// Results for a tensor.
    lookup: Lookup,
    /// Results for a slot: the same in the batch's type.
    stored: Lookup,
    order: Order,
    /// The table as arithmetic, if that gives the same floats.
    formula: Option<Formula>,
    flips: Vec<Flip>,
    erasings: Vec<(usize, Op)>,
}

#[derive(Clone, Copy, Debug)]
struct Flip {
    position: usize,
    horizontal: bool,
    p: f64,
}

impl Flip {
    fn of(position: usize, op: &Op) -> Option<Self> {
        match op {
            Op::RandomHorizontalFlip { p } => Some(Self { position, horizontal: true, p: *p }),
            Op::RandomVerticalFlip { p } => Some(Self { position, horizontal: false, p: *p }),
            _ => None,
        }
    }
}

impl Tail {
    /// The longest run of ops around the first conversion that one pass can do; `forms` are the inputs of each op.
    pub(super) fn new(ops: &[Op], forms: &[Form]) -> Option<Self> {
        let conversion = ops.iter().position(|op| matches!(op, Op::ToTensor | Op::ToImage))?;
        let Form::Image(shape) = forms[conversion] else { return None };
        let channels = shape.channels? as usize;
        let mut start = conversion;
        while start > 0 && Flip::of(start - 1, &ops[start - 1]).is_some() {
            start -= 1;
        }
        let (mut flips, mut chain, mut erasings) = (Vec::new(), Vec::new(), Vec::new());
        let mut end = start;
        for (position, op) in ops.iter().enumerate().skip(start) {
            if let Some(flip) = Flip::of(position, op).filter(|_| erasings.is_empty()) {
                flips.push(flip);
            } else if matches!(op, Op::ToTensor | Op::ToImage) {
                // Only the first conversion counts; a tensor stays as it is.
                chain.extend(Pointwise::of(op).filter(|_| position == conversion));
            } else if let Some(change) = Pointwise::of(op).filter(|_| erasings.is_empty()) {
                chain.push(change);
            } else if let Op::RandomErasing { .. } = op {
                erasings.push((position, op.clone()));
            } else {
                break;
            }
            end = position + 1;
        }
        let lookup = Lookup::new(&chain, channels);
        let formula = Formula::new(&chain, &lookup);
        let (stored, order) = (lookup.clone(), Order::Planar);
        Some(Self { start, end, lookup, stored, order, formula, flips, erasings })
    }

    /// The same, with slots of another type and order.
    pub(super) fn with_output(self, output: Output) -> Self {
        let stored = output.dtype.map_or_else(|| self.lookup.clone(), |dtype| self.lookup.stored_as(dtype));
        Self { stored, order: output.order, ..self }
    }

    /// The first op it does.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// The first op after it.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Whether the picture has the channels that the tables were made for.
    pub(super) fn fits(&self, image: &Image) -> bool {
        let channels = self.lookup.channels();
        let elements = image.width as usize * image.height as usize * channels;
        image.channels as usize == channels && image.pixels.len() == elements && elements > 0
    }

    /// Writes the result into its slot: all of it, in the machine's byte order.
    pub(super) fn write(&self, image: &Image, rng: &Rng, slot: &mut [u8]) {
        // A batch of such samples is larger than the caches, and is not read before it is complete. Non-temporal stores
        // save reading memory that will be overwritten: 3 to 5 % of the processor time (measured with 600 KB a sample).
        const LARGE_BYTES: usize = 128 << 10;
        self.write_as(&self.stored, self.order, image, rng, slot.len() >= LARGE_BYTES, slot);
    }

    /// The result as a tensor of its own, before the batch's type and order.
    pub(super) fn tensor(&self, image: &Image, rng: &Rng, bytes: &mut Vec<u8>) -> Result<Tensor> {
        let is_bytes = matches!(self.lookup, Lookup::U8(_));
        let len = image.pixels.len();
        resize(bytes, len * if is_bytes { 1 } else { size_of::<f32>() }, 0, "its tensor")?;
        self.write_as(&self.lookup, Order::Planar, image, rng, false, bytes);
        let data = if is_bytes {
            TensorData::U8(collect(bytes.iter().copied(), len, "its tensor")?)
        } else {
            let floats = bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
            TensorData::F32(collect(floats, len, "its tensor")?)
        };
        Ok(Tensor { channels: image.channels, height: image.height, width: image.width, data })
    }

    fn write_as(&self, lookup: &Lookup, order: Order, image: &Image, rng: &Rng, past_caches: bool, slot: &mut [u8]) {
        let (mut mirrored, mut upside_down) = (false, false);
        for flip in &self.flips {
            let flips = rng.fork(flip.position as u64).chance(flip.p);
            *(if flip.horizontal { &mut mirrored } else { &mut upside_down }) ^= flips;
        }
        let (walk, formula) = (Walk { mirrored, upside_down }, self.formula.as_ref());
        let dtype = match lookup {
            Lookup::U8(tables) => spread(image, tables, formula, order, walk, past_caches, slot),
            Lookup::F32(tables) => spread(image, tables, formula, order, walk, past_caches, slot),
            Lookup::F16(tables) => spread(image, tables, formula, order, walk, past_caches, slot),
            Lookup::BF16(tables) => spread(image, tables, formula, order, walk, past_caches, slot),
        };
        for (position, op) in &self.erasings {
            self.erase(op, dtype, order, image, &mut rng.fork(*position as u64), slot);
        }
    }

    fn erase(&self, op: &Op, dtype: Dtype, order: Order, image: &Image, rng: &mut Rng, slot: &mut [u8]) {
        let Op::RandomErasing { p, scale, ratio, value } = op else { return };
        let patch = if rng.chance(*p) { erase::choose(*scale, *ratio, (image.width, image.height), rng) } else { None };
        let Some(patch) = patch else { return };
        let (width, channels) = (image.width as usize, image.channels as usize);
        let plane = width * image.height as usize;
        let is_bytes = matches!(self.lookup, Lookup::U8(_));
        erase::fill(patch, channels, value, rng, |channel, y, x, value| {
            let at = match order {
                Order::Planar => channel * plane + y * width + x,
                Order::Interleaved => (y * width + x) * channels + channel,
            };
            // The result becomes the batch's type only after that of a tensor.
            let element = if is_bytes { Element::U8(truncate(value)) } else { Element::F32(value) };
            place::element(element, dtype, &mut slot[at * dtype.size_bytes()..][..dtype.size_bytes()]);
        });
    }
}

/// How the source is traversed.
#[derive(Clone, Copy, Debug)]
struct Walk {
    mirrored: bool,
    upside_down: bool,
}

/// Interleaved bytes to planes or pixels, with vector instructions if available. Returns which.
fn spread<T: Stored>(
    image: &Image,
    tables: &[[T; 256]],
    formula: Option<&Formula>,
    order: Order,
    walk: Walk,
    past_caches: bool,
    slot: &mut [u8],
) -> Dtype {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if let (Some(formula), true) = (formula, simd::is_available()) {
        simd::write(image, formula, tables, order, walk, past_caches, slot);
        return T::DTYPE;
    }
    let _ = (formula, past_caches);
    portable::write(image, tables, order, walk, slot);
    T::DTYPE
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests;
