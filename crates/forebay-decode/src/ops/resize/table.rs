//! Which pixels make an output pixel, and with what weights.

use std::ops::Range;

use super::super::Interpolation;
use super::PRECISION_BITS;

/// The weights of one axis: from one size to another with one filter.
#[derive(Default)]
pub(super) struct Table {
    key: Option<Key>,
    used: u64,
    /// First pixel and number of pixels, for each output pixel.
    spans: Vec<Span>,
    /// `stride` weights for each output pixel, 0 beyond its span.
    weights: Vec<i32>,
    /// The same by two, as the vector passes want them.
    pairs: Vec<Pair>,
    stride: usize,
    /// Pairs of the longest span.
    max_pairs: usize,
}

type Key = (u32, u32, Interpolation);

#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) len: u32,
}

/// Two neighbouring weights, each split as `high << LOW_BITS | low` so that both parts fit 16-bit multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Pair {
    /// The high parts: the first weight's in the lower 16 bits.
    pub(super) high: i32,
    /// The low parts, not negative, in the same places.
    pub(super) low: i32,
}

/// A weight has at most 24 bits with its sign: 11 low ones leave 13 high ones.
pub(super) const LOW_BITS: u32 = 11;

impl Pair {
    fn new(first: i32, second: i32) -> Self {
        let join = |first: i32, second: i32| (first & 0xFFFF) | (second << 16);
        let low = |weight: i32| weight & ((1 << LOW_BITS) - 1);
        Self { high: join(first >> LOW_BITS, second >> LOW_BITS), low: join(low(first), low(second)) }
    }
}

impl Table {
    /// The span of an output pixel.
    pub(super) fn span(&self, output: usize) -> Span {
        self.spans[output]
    }

    /// The weights of an output pixel's span.
    pub(super) fn weights(&self, output: usize) -> &[i32] {
        &self.weights[output * self.stride..][..self.spans[output].len as usize]
    }

    /// The same by two; a last one alone has 0 beside it.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only these vectors multiply pairs"))]
    pub(super) fn pairs(&self, output: usize) -> &[Pair] {
        &self.pairs[output * (self.stride / 2)..][..(self.spans[output].len as usize).div_ceil(2)]
    }

    /// The same, with zeros up to as many pairs as the longest span has: [`max_pairs`](Self::max_pairs).
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only these vectors multiply pairs"))]
    pub(super) fn even_pairs(&self, output: usize) -> &[Pair] {
        &self.pairs[output * (self.stride / 2)..][..self.max_pairs]
    }

    /// The weights themselves, with zeros up to two for each of [`max_pairs`](Self::max_pairs).
    #[cfg(target_arch = "aarch64")]
    pub(super) fn even_weights(&self, output: usize) -> &[i32] {
        &self.weights[output * self.stride..][..self.max_pairs * 2]
    }

    /// Pairs of the longest span.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        allow(dead_code, reason = "no vector passes here")
    )]
    pub(super) fn max_pairs(&self) -> usize {
        self.max_pairs
    }

    /// The input pixels that these output pixels depend on.
    pub(super) fn needed(&self, wanted: &Range<usize>) -> Range<usize> {
        // Not just the first and the last: a weight that is 0 within a filter makes one span shorter than its
        // neighbours.
        let spans = &self.spans[wanted.clone()];
        let start = spans.iter().map(|span| span.start).min().unwrap_or(0);
        let end = spans.iter().map(|span| span.start + span.len).max().unwrap_or(0);
        start as usize..end as usize
    }

    /// Pillow's weights, operation by operation: another order of the same arithmetic rounds differently.
    fn fill(&mut self, from: u32, to: u32, filter: Interpolation, exact: &mut Vec<f64>) {
        let scale = f64::from(from) / f64::from(to);
        let filter_scale = scale.max(1.0);
        let support = support(filter) * filter_scale;
        let inverse = 1.0 / filter_scale;
        self.stride = (support.ceil() as usize * 2 + 1).next_multiple_of(2);
        self.spans.clear();
        self.weights.clear();
        self.pairs.clear();
        self.max_pairs = 0;
        for output in 0..to {
            let center = (f64::from(output) + 0.5) * scale;
            let start = ((center - support + 0.5) as i64).max(0);
            let end = ((center + support + 0.5) as i64).min(i64::from(from));
            exact.clear();
            exact.extend((start..end).map(|x| weight(filter, (x as f64 - center + 0.5) * inverse)));
            let sum: f64 = exact.iter().sum();
            let fixed = |weight: f64| {
                let weight = if sum == 0.0 { weight } else { weight / sum } * f64::from(1u32 << PRECISION_BITS);
                if weight < 0.0 { (weight - 0.5) as i32 } else { (weight + 0.5) as i32 }
            };
            self.push(start as u32, exact.iter().copied().map(fixed));
        }
    }

    /// Adds an output pixel; zeros at both ends of its weights are left out, for they add nothing.
    fn push(&mut self, start: u32, weights: impl Iterator<Item = i32>) {
        let base = self.weights.len();
        let mut skipped = 0;
        for weight in weights {
            if weight == 0 && self.weights.len() == base {
                skipped += 1;
            } else {
                self.weights.push(weight);
            }
        }
        while self.weights.len() > base + 1 && self.weights.last() == Some(&0) {
            self.weights.pop();
        }
        if self.weights.len() == base {
            self.weights.push(0);
            skipped = 0;
        }
        let len = self.weights.len() - base;
        self.spans.push(Span { start: start + skipped, len: len as u32 });
        self.max_pairs = self.max_pairs.max(len.div_ceil(2));
        self.weights.resize(base + self.stride, 0);
        self.pairs.extend(self.weights[base..].chunks_exact(2).map(|pair| Pair::new(pair[0], pair[1])));
    }
}

/// Tables made before, the least recently used one replaced: its memory is used again, so nothing is allocated once
/// sizes repeat.
#[derive(Default)]
pub(super) struct Tables {
    tables: Vec<Table>,
    exact: Vec<f64>,
    clock: u64,
}

impl Tables {
    /// About 1 MiB for 224 output pixels; a table costs microseconds to make (not measured beyond that).
    const MAX_TABLES: usize = 64;

    /// The place of the table for this axis; valid until the next `find` but one.
    pub(super) fn find(&mut self, from: u32, to: u32, filter: Interpolation) -> usize {
        self.clock += 1;
        let key = Some((from, to, filter));
        let at = self.tables.iter().position(|table| table.key == key).unwrap_or_else(|| {
            let at = if self.tables.len() < Self::MAX_TABLES {
                self.tables.push(Table::default());
                self.tables.len() - 1
            } else {
                let oldest = self.tables.iter().enumerate().min_by_key(|(_, table)| table.used);
                oldest.map_or(0, |(at, _)| at)
            };
            self.tables[at].fill(from, to, filter, &mut self.exact);
            self.tables[at].key = key;
            at
        });
        self.tables[at].used = self.clock;
        at
    }

    /// The table at a place that `find` gave.
    pub(super) fn get(&self, at: usize) -> &Table {
        &self.tables[at]
    }
}

/// How far a filter reaches to either side, in pixels of the larger of both pictures.
pub(crate) fn support(filter: Interpolation) -> f64 {
    match filter {
        Interpolation::Nearest | Interpolation::NearestExact | Interpolation::Box => 0.5,
        Interpolation::Bilinear | Interpolation::Hamming => 1.0,
        Interpolation::Bicubic => 2.0,
        Interpolation::Lanczos => 3.0,
    }
}

/// The filter itself.
pub(crate) fn weight(filter: Interpolation, x: f64) -> f64 {
    use std::f64::consts::PI;
    let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
    match filter {
        Interpolation::Nearest | Interpolation::NearestExact | Interpolation::Box => {
            if x > -0.5 && x <= 0.5 {
                1.0
            } else {
                0.0
            }
        }
        Interpolation::Bilinear => (1.0 - x.abs()).max(0.0),
        Interpolation::Hamming => match x.abs() {
            0.0 => 1.0,
            x if x >= 1.0 => 0.0,
            x => (x * PI).sin() / (x * PI) * (0.54 + 0.46 * (x * PI).cos()),
        },
        Interpolation::Bicubic => {
            const A: f64 = -0.5;
            match x.abs() {
                x if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
                x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
                _ => 0.0,
            }
        }
        Interpolation::Lanczos => {
            if (-3.0..3.0).contains(&x) {
                sinc(x) * sinc(x / 3.0)
            } else {
                0.0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_weights_join_to_the_weight() {
        for weight in [0, 1, -1, 2047, 2048, -2049, 1 << 22, -(1 << 21), 5_000_000] {
            let pair = Pair::new(weight, -weight);
            let part = |packed: i32, second: bool| if second { packed >> 16 } else { i32::from(packed as i16) };
            for (second, expected) in [(false, weight), (true, -weight)] {
                assert_eq!((part(pair.high, second) << LOW_BITS) + part(pair.low, second), expected);
            }
        }
    }

    #[test]
    fn tables_are_replaced_one_by_one_and_stay_right() {
        let mut tables = Tables::default();
        for round in 0..3u32 {
            for size in 1..100u32 {
                let at = tables.find(size, 7, Interpolation::Bilinear);
                let table = tables.get(at);
                assert_eq!(table.needed(&(0..7)), 0..size as usize, "round {round}");
                for output in 0..7 {
                    let sum: i32 = table.weights(output).iter().sum();
                    assert!((sum - (1 << PRECISION_BITS)).abs() < 16, "{sum}");
                }
            }
        }
        assert_eq!(tables.tables.len(), Tables::MAX_TABLES);
    }
}
