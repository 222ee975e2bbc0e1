//! The end of a pipeline in one pass: flips, conversion to a tensor, scaling and normalising, from interleaved bytes
//! straight to planes.
//!
//! Every change of an element by itself is a function of its byte and channel, so a whole chain of them is a table
//! of 256 results per channel, made once. Flips commute with it. Erasing is done in place afterwards.

use forebay_core::Rng;

use crate::ops::convert::{Lookup, Pointwise, truncate};
use crate::ops::{Form, erase};
use crate::{Image, Op, Tensor, TensorData};
use formula::Formula;

#[cfg(target_arch = "x86_64")]
mod avx2;
mod formula;
mod portable;

/// The fused ops.
#[derive(Clone, Debug)]
pub(super) struct Tail {
    start: usize,
    end: usize,
    lookup: Lookup,
    /// The same as arithmetic, where it gives the same floats.
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
    /// The longest run of ops around the first conversion that one pass can do; `forms` is what each op gets.
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
                // Only the first one converts; a tensor stays as it is.
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
        Some(Self { start, end, lookup, formula, flips, erasings })
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
        let channels = match &self.lookup {
            Lookup::U8(tables) => tables.len(),
            Lookup::F32(tables) => tables.len(),
        };
        let elements = image.width as usize * image.height as usize * channels;
        image.channels as usize == channels && image.pixels.len() == elements && elements > 0
    }

    /// Writes the result: all of `slot`, in the machine's byte order.
    pub(super) fn write(&self, image: &Image, rng: &Rng, slot: &mut [u8]) {
        let (mut mirrored, mut upside_down) = (false, false);
        for flip in &self.flips {
            let flips = rng.fork(flip.position as u64).chance(flip.p);
            *(if flip.horizontal { &mut mirrored } else { &mut upside_down }) ^= flips;
        }
        let walk = Walk { mirrored, upside_down };
        match &self.lookup {
            Lookup::U8(tables) => portable::planes(image, tables, walk, slot),
            Lookup::F32(tables) => float_planes(image, tables, self.formula.as_ref(), walk, slot),
        }
        for (position, op) in &self.erasings {
            self.erase(op, image, &mut rng.fork(*position as u64), slot);
        }
    }

    /// The result as a tensor of its own.
    pub(super) fn tensor(&self, image: &Image, rng: &Rng, bytes: &mut Vec<u8>) -> Tensor {
        let element_bytes = match &self.lookup {
            Lookup::U8(_) => 1,
            Lookup::F32(_) => 4,
        };
        bytes.resize(image.pixels.len() * element_bytes, 0);
        self.write(image, rng, bytes);
        let data = match &self.lookup {
            Lookup::U8(_) => TensorData::U8(bytes.clone()),
            Lookup::F32(_) => {
                let float = |bytes: &[u8]| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                TensorData::F32(bytes.chunks_exact(4).map(float).collect())
            }
        };
        Tensor { channels: image.channels, height: image.height, width: image.width, data }
    }

    fn erase(&self, op: &Op, image: &Image, rng: &mut Rng, slot: &mut [u8]) {
        let Op::RandomErasing { p, scale, ratio, value } = op else { return };
        let patch = if rng.chance(*p) { erase::choose(*scale, *ratio, (image.width, image.height), rng) } else { None };
        let Some(patch) = patch else { return };
        let width = image.width as usize;
        let plane = width * image.height as usize;
        let bytes = matches!(self.lookup, Lookup::U8(_));
        erase::fill(patch, image.channels as usize, value, rng, |channel, y, x, value| {
            let at = channel * plane + y * width + x;
            if bytes {
                slot[at] = truncate(value);
            } else {
                slot[at * 4..][..4].copy_from_slice(&value.to_ne_bytes());
            }
        });
    }
}

/// How the source is walked.
#[derive(Clone, Copy, Debug)]
struct Walk {
    mirrored: bool,
    upside_down: bool,
}

/// Three interleaved channels to three planes of floats, with vectors where there are any for it.
fn float_planes(image: &Image, tables: &[[f32; 256]], formula: Option<&Formula>, walk: Walk, slot: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if let (Some(formula), true) = (formula, avx2::is_available()) {
        return avx2::planes(image, formula, tables, walk, slot);
    }
    let _ = formula;
    portable::planes(image, tables, walk, slot);
}
