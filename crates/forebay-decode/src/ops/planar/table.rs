//! Which samples make an output pixel, and with what weights, where a sample need not be one pixel.

use std::ops::Range;

use super::super::Interpolation;
use super::super::resize::{support, weight};

/// Weights are integers of this many fractional bits: they fit 16 with their sign, as the sum of two products fits 32.
pub(super) const PRECISION_BITS: u32 = 14;

/// Half a level, so that the shift down rounds.
pub(super) const HALF: i32 = 1 << (PRECISION_BITS - 1);

/// Output pixels whose weights lie side by side, as a vector takes them.
pub(super) const LANES: usize = 8;

/// One axis of a resize.
pub(super) struct Axis {
    /// The pixel at which the resized picture begins.
    pub(super) corner: u32,
    /// Pixels in a sample.
    pub(super) pitch: u32,
    /// The pixels that may be used: a sample may be if one of its pixels is.
    pub(super) usable: Range<u32>,
    /// Pixels of the picture.
    pub(super) from: u32,
    /// Pixels of the result.
    pub(super) to: u32,
    /// Those of them that are wanted.
    pub(super) wanted: Range<usize>,
    pub(super) interpolation: Interpolation,
}

/// The weights of one axis.
#[derive(Default)]
pub(super) struct Table {
    /// The first sample of each output pixel; up to a whole number of lanes, the last one again.
    starts: Vec<i32>,
    /// Two neighbouring weights each, the first in the lower half. By groups of lanes, then by pairs, then by lanes.
    pairs: Vec<i32>,
    len: usize,
    /// Pairs of each output pixel, an even number.
    pair_count: usize,
    needed: Range<usize>,
    exact: Vec<f32>,
}

impl Table {
    /// Output pixels.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The samples that they depend on.
    pub(super) fn needed(&self) -> Range<usize> {
        self.needed.clone()
    }

    /// Pairs of each output pixel; those beyond its own samples are 0.
    pub(super) fn pair_count(&self) -> usize {
        self.pair_count
    }

    /// The first samples of a group of lanes.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no vector passes here"))]
    pub(super) fn group_starts(&self, group: usize) -> &[i32; LANES] {
        &self.starts.as_chunks().0[group]
    }

    /// The weights of a group of lanes: one for each pair.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no vector passes here"))]
    pub(super) fn group_pairs(&self, group: usize) -> &[[i32; LANES]] {
        &self.pairs.as_chunks().0[group * self.pair_count..][..self.pair_count]
    }

    /// The first sample of an output pixel.
    pub(super) fn start(&self, output: usize) -> usize {
        self.starts[output] as usize
    }

    /// Its weights by two, each in 32 bits.
    pub(super) fn pairs(&self, output: usize) -> impl Iterator<Item = i32> {
        self.group_pairs(output / LANES).iter().map(move |lanes| lanes[output % LANES])
    }

    /// The same filter as `resize` has, over samples that are a pixel, or several, or lie across the edge of a crop:
    /// output pixel `n` has its centre where it has it among pixels.
    pub(super) fn fill(&mut self, axis: Axis) {
        let Axis { corner, pitch, usable, from, to, wanted, interpolation } = axis;
        let scale = f64::from(from) / f64::from(to) / f64::from(pitch);
        let filter_scale = scale.max(1.0);
        let reach = support(interpolation) * filter_scale;
        let (least, most) = (usable.start / pitch, usable.end.div_ceil(pitch));
        let begin = f64::from(corner) / f64::from(pitch);
        let center = |output: usize| begin + (output as f64 + 0.5) * scale;
        let span = |output: usize| {
            let start = ((center(output) - reach + 0.5).max(0.0) as u32).clamp(least, most - 1);
            let end = ((center(output) + reach + 0.5).max(0.0) as u32).clamp(start + 1, most);
            start as usize..end as usize
        };
        self.len = wanted.len();
        self.needed = wanted.clone().map(span).reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
        let longest = wanted.clone().map(|output| span(output).len()).max().unwrap_or(0);
        self.pair_count = longest.div_ceil(4) * 2;
        let groups = self.len.div_ceil(LANES);
        self.pairs.clear();
        self.pairs.resize(groups * self.pair_count * LANES, 0);
        self.starts.clear();
        for (at, output) in wanted.enumerate() {
            let span = span(output);
            self.starts.push(span.start as i32);
            let (center, inverse) = ((center(output) - 0.5) as f32, (1.0 / filter_scale) as f32);
            self.exact.clear();
            self.exact.extend(span.map(|sample| weight_of(interpolation, (sample as f32 - center) * inverse)));
            self.put(at);
        }
        let last = self.starts.last().copied().unwrap_or(0);
        self.starts.resize(groups * LANES, last);
    }

    /// Stores the exact weights of an output pixel, as integers that add up to 1.
    fn put(&mut self, at: usize) {
        let sum: f32 = self.exact.iter().sum();
        let one = (1 << PRECISION_BITS) as f32;
        let factor = if sum == 0.0 { one } else { one / sum };
        let (mut left, mut largest) = (1 << PRECISION_BITS, (0, 0));
        let place = |number: usize| (at / LANES * self.pair_count + number / 2) * LANES + at % LANES;
        let joined = |pair: i32, weight: i32, number: usize| match number % 2 {
            0 => pair & !0xFFFF | weight & 0xFFFF,
            _ => pair & 0xFFFF | weight << 16,
        };
        for (number, exact) in self.exact.iter().enumerate() {
            let weight = (exact * factor).round_ties_even() as i32;
            left -= weight;
            if weight > largest.1 {
                largest = (number, weight);
            }
            let place = place(number);
            self.pairs[place] = joined(self.pairs[place], weight, number);
        }
        // What rounding left, where it shows least: a grey wall stays as grey as it is.
        let place = place(largest.0);
        self.pairs[place] = joined(self.pairs[place], largest.1 + left, largest.0);
    }
}

fn weight_of(interpolation: Interpolation, x: f32) -> f32 {
    match interpolation {
        // By far the most common, and cheap.
        Interpolation::Bilinear => (1.0 - x.abs()).max(0.0),
        _ => weight(interpolation, f64::from(x)) as f32,
    }
}
