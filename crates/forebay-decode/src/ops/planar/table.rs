//! Samples and weights for each output pixel, if a sample may cover several pixels.

use std::ops::Range;

use forebay_core::Result;

use super::super::Interpolation;
use super::super::resize::{support, weight};
use crate::memory::{reserve, resize};

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

/// The weights of one axis. Those of several output pixels are interleaved in groups of [`LANES`]; if the pixels do not
/// fill the last group, the last one is repeated.
#[derive(Default)]
pub(super) struct Table {
    /// The first sample of each output pixel.
    starts: Vec<[i32; LANES]>,
    /// Two neighbouring weights each, the first in the lower half: `pair_count` for each group.
    pairs: Vec<[i32; LANES]>,
    /// Offset of the first weight's sample from the first sample of its four lanes.
    offsets: Vec<[u8; LANES]>,
    max_offset: u32,
    len: usize,
    /// Pairs of each output pixel, an even number; those beyond its own samples are 0.
    pair_count: usize,
    needed: Range<usize>,
    spans: Vec<Spans>,
    exact: Vec<[f32; LANES]>,
}

/// The samples of output pixels side by side.
struct Spans {
    /// How many there are.
    counts: [i32; LANES],
    /// Where the first one lies from the pixel's centre, in units of the filter.
    places: [f64; LANES],
    /// Which one is at the centre.
    middles: [i32; LANES],
}

/// Name of the table in memory errors.
const WEIGHTS: &str = "the weights of a resize";

impl Table {
    /// A larger table is freed after the sample that needed it: what a thread keeps is not charged to the memory
    /// budget.
    const MAX_KEPT_BYTES: usize = 1 << 20;

    /// Frees what exceeds a thread's limit.
    pub(super) fn give_back(&mut self) {
        let Self { starts, pairs, offsets, spans, exact, .. } = self;
        let lanes = starts.capacity() + pairs.capacity() + exact.capacity();
        let bytes =
            lanes * size_of::<[i32; LANES]>() + offsets.capacity() * LANES + spans.capacity() * size_of::<Spans>();
        if bytes > Self::MAX_KEPT_BYTES {
            *self = Self::default();
        }
    }

    /// Output pixels.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The samples that they depend on.
    pub(super) fn needed(&self) -> Range<usize> {
        self.needed.clone()
    }

    /// Pairs of each output pixel; those beyond its own samples are 0.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        allow(dead_code, reason = "no vector passes here")
    )]
    pub(super) fn pair_count(&self) -> usize {
        self.pair_count
    }

    /// The first samples of each group.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        allow(dead_code, reason = "no vector passes here")
    )]
    pub(super) fn starts(&self) -> &[[i32; LANES]] {
        &self.starts
    }

    /// How far behind the first sample of lane 0, or of lane 4, each lane's first sample lies.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        allow(dead_code, reason = "no vector passes here")
    )]
    pub(super) fn offsets(&self, group: usize) -> &[u8; LANES] {
        &self.offsets[group]
    }

    /// The largest of them. They are right up to 255.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        allow(dead_code, reason = "no vector passes here")
    )]
    pub(super) fn max_offset(&self) -> u32 {
        self.max_offset
    }

    /// The weights of a group.
    pub(super) fn group_pairs(&self, group: usize) -> &[[i32; LANES]] {
        &self.pairs[group * self.pair_count..][..self.pair_count]
    }

    /// The first sample of an output pixel.
    pub(super) fn start(&self, output: usize) -> usize {
        self.starts[output / LANES][output % LANES] as usize
    }

    /// Its weights by two, each in 32 bits.
    pub(super) fn pairs(&self, output: usize) -> impl Iterator<Item = i32> {
        self.group_pairs(output / LANES).iter().map(move |lanes| lanes[output % LANES])
    }

    /// The same filter as `resize` has, over samples that are a pixel, or several, or lie across the edge of a crop:
    /// output pixel `n` has its centre where it has it among pixels.
    pub(super) fn fill(&mut self, axis: &Axis, vector: bool) -> Result<()> {
        #[cfg(target_arch = "x86_64")]
        if vector {
            // SAFETY: the caller has seen that the processor has AVX2.
            return unsafe { self.fill_avx2(axis) };
        }
        let _ = vector;
        self.fill_any(axis)
    }

    /// The same code, for which the compiler may use AVX2: the same numbers.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn fill_avx2(&mut self, axis: &Axis) -> Result<()> {
        self.fill_any(axis)
    }

    #[inline(always)]
    fn fill_any(&mut self, axis: &Axis) -> Result<()> {
        let groups = axis.wanted.len().div_ceil(LANES);
        self.starts.clear();
        self.offsets.clear();
        self.spans.clear();
        reserve(&mut self.starts, groups, WEIGHTS)?;
        reserve(&mut self.offsets, groups, WEIGHTS)?;
        reserve(&mut self.spans, groups, WEIGHTS)?;
        let inverse = self.find_spans(axis);
        self.pairs.clear();
        reserve(&mut self.pairs, groups * self.pair_count, WEIGHTS)?;
        resize(&mut self.exact, self.pair_count * 2, [0.0; LANES], WEIGHTS)?;
        match axis.interpolation {
            // By far the most common, cheap, and without jumps that a rounded place could be on the wrong side of.
            Interpolation::Bilinear => {
                let inverse = inverse as f32;
                self.weigh(|place, tap| (1.0 - (place as f32 + tap as f32 * inverse).abs()).max(0.0));
            }
            other => self.weigh(|place, tap| weight(other, place + f64::from(tap) * inverse) as f32),
        }
        Ok(())
    }

    /// Which samples make each output pixel. Gives how much of the filter's unit a sample is.
    #[inline(always)]
    fn find_spans(&mut self, axis: &Axis) -> f64 {
        let Axis { corner, pitch, ref usable, from, to, ref wanted, interpolation } = *axis;
        let scale = f64::from(from) / f64::from(to) / f64::from(pitch);
        let inverse = 1.0 / scale.max(1.0);
        let reach = support(interpolation) * scale.max(1.0);
        let (least, most) = ((usable.start / pitch) as i32, usable.end.div_ceil(pitch) as i32);
        let begin = f64::from(corner) / f64::from(pitch);
        self.len = wanted.len();
        let (mut first, mut last, mut longest, mut max_offset) = (i32::MAX, 0, 0, 0);
        for group in wanted.clone().step_by(LANES) {
            let (mut starts, mut counts) = ([0; LANES], [0; LANES]);
            let (mut places, mut middles) = ([0.0; LANES], [0; LANES]);
            for lane in 0..LANES {
                let center = begin + ((group + lane).min(wanted.end - 1) as f64 + 0.5) * scale;
                let start = ((center - reach + 0.5) as i32).clamp(least, most - 1);
                let end = ((center + reach + 0.5) as i32).clamp(start + 1, most);
                (starts[lane], counts[lane]) = (start, end - start);
                places[lane] = (f64::from(start) + 0.5 - center) * inverse;
                middles[lane] = ((center - f64::from(start)) as i32).clamp(0, end - start - 1);
                (first, last, longest) = (first.min(start), last.max(end), longest.max(end - start));
            }
            let offsets: [i32; LANES] = std::array::from_fn(|lane| starts[lane] - starts[lane / 4 * 4]);
            max_offset = offsets.iter().fold(max_offset, |max, offset| max.max(*offset));
            self.starts.push(starts);
            self.offsets.push(offsets.map(|offset| offset as u8));
            self.spans.push(Spans { counts, places, middles });
        }
        self.needed = first.min(last) as usize..last as usize;
        self.pair_count = (longest as usize).div_ceil(4) * 2;
        self.max_offset = max_offset as u32;
        inverse
    }

    /// Their weights, as integers that add up to 1.
    #[inline(always)]
    fn weigh(&mut self, filter: impl Fn(f64, i32) -> f32) {
        const ONE: f32 = (1 << PRECISION_BITS) as f32;
        let Self { pairs, spans, exact, .. } = self;
        for Spans { counts, places, middles } in spans {
            let mut sums = [0.0; LANES];
            for (tap, exact) in exact.iter_mut().enumerate() {
                for lane in 0..LANES {
                    let weight = filter(places[lane], tap as i32);
                    exact[lane] = if (tap as i32) < counts[lane] { weight } else { 0.0 };
                    sums[lane] += exact[lane];
                }
            }
            let factors = sums.map(|sum| if sum == 0.0 { 0.0 } else { ONE / sum });
            // Rounded: down, from a number that is not negative.
            let whole = |weight: f32, factor: f32| (weight * factor + (ONE * 4.0 + 0.5)) as i32 - (4 << PRECISION_BITS);
            // The sample at the centre gets the rounding error, so that a uniform area stays uniform.
            let mut left = [1 << PRECISION_BITS; LANES];
            for exact in exact.iter() {
                for lane in 0..LANES {
                    left[lane] -= whole(exact[lane], factors[lane]);
                }
            }
            for (pair, [first, second]) in exact.as_chunks::<2>().0.iter().enumerate() {
                pairs.push(std::array::from_fn(|lane| {
                    let rest = |tap: usize| if tap as i32 == middles[lane] { left[lane] } else { 0 };
                    let first = whole(first[lane], factors[lane]) + rest(pair * 2);
                    let second = whole(second[lane], factors[lane]) + rest(pair * 2 + 1);
                    (first & 0xFFFF) | (second << 16)
                }));
            }
        }
    }
}
