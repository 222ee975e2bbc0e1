//! The fixed beginning of a pipeline: decoding and all ops before the first random choice, whose result is the same in every
//! epoch and can be kept (`cache="decoded"`).
//!
//! It ends where pictures become tensors, too: bytes take a quarter of the memory of floats, and the conversion is cheap.

use std::time::{Duration, Instant};

use forebay_core::{Error, Result, Rng, Stage};

use super::head::{self, Head};
use super::{Pipeline, Scratch};
use crate::ops::{Form, Sizes};
use crate::{Detail, Image, Made, Op, Size, Timing, Value};

/// How many ops of a pipeline are fixed. `forms` are what each of them is given.
pub(super) fn count(ops: &[Op], forms: &[Form]) -> usize {
    let is_fixed = |(op, form): &(&Op, &Form)| matches!(form, Form::Image(_)) && op.is_fixed();
    ops.iter().zip(forms).take_while(is_fixed).count()
}

impl Pipeline {
    /// Refuses a pipeline of which no picture can be kept such that the batches stay what they are.
    pub fn check_fixed(&self) -> Result<()> {
        let resized = match self.head {
            Head::ResizedCrop | Head::Resize => 1,
            Head::ResizeCrop => 2,
            Head::Whole | Head::Crop => 0,
        };
        if self.detail == Detail::Fast && resized > self.fixed {
            let message =
                "cache: decode=\"fast\" decodes as much as each random crop shows, of which nothing can be kept";
            return Err(
                Error::config(message).with_hint("leave one of both out: cached pictures are not decoded again")
            );
        }
        Ok(())
    }

    /// The picture before the first random choice, and how long it took to decode.
    pub fn run_fixed(&self, bytes: &[u8], rng: &Rng, scratch: &mut Scratch) -> Result<(Image, Duration)> {
        let ops = &self.ops[..self.fixed];
        let made = head::begin(Head::new(ops), self.detail, ops, bytes, rng, scratch).and_then(|begun| {
            match self.advance(Value::Image(begun.image), begun.done, self.fixed, rng, scratch)? {
                Value::Image(mut image) => {
                    image.pixels.shrink_to_fit();
                    Ok((image, begun.decode))
                }
                other => Err(Error::internal(format!("a fixed op made {other:?} of a picture"))),
            }
        });
        scratch.give_back();
        made
    }

    /// Bytes of memory that [`run_from`](Self::run_from) takes at its peak.
    pub fn memory_bytes_from(&self, image: &Image) -> u64 {
        let size = Size { height: image.height, width: image.width };
        let (largest, sizes) = self.charge(self.fixed, Sizes::from(size), size);
        image.pixels.len() as u64 + largest + self.result_bytes(sizes)
    }

    /// The ops after the fixed ones, on what [`run_fixed`](Self::run_fixed) gave: the same result as
    /// [`run`](Self::run) and [`run_into`](Self::run_into) give for its bytes.
    pub fn run_from(&self, image: &Image, rng: &Rng, scratch: &mut Scratch, slot: Option<&mut [u8]>) -> Result<Made> {
        let start = Instant::now();
        let rest = Head::new(&self.ops[self.fixed..]);
        let begun = head::begin_from(rest, &self.ops, self.fixed, image, rng, scratch);
        let made = begun.map_err(|error| error.at_stage(Stage::Transform)).and_then(|begun| match slot {
            Some(slot) => {
                let layout = self.slot_layout(slot)?;
                self.finish_into(begun.image, begun.done, layout, rng, scratch, slot).map(|()| None)
            }
            None => self.finish(Value::Image(begun.image), begun.done, rng, scratch).map(Some),
        });
        scratch.give_back();
        Ok((made?, Timing { decode: Duration::ZERO, transform: start.elapsed() }))
    }
}
