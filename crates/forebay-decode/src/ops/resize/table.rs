//! Pixels and weights of each output pixel.

use std::ops::Range;

use forebay_core::{Error, Kind, Result};

use super::super::Interpolation;
use super::PRECISION_BITS;
use crate::memory::reserve;

/// A larger table is refused: it would need a side of a million pixels or more, and half a second to compute.
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// The input pixels of an output pixel, and their weights.
#[derive(Clone, Copy)]
struct Axis {
    from: u32,
    filter: Interpolation,
    scale: f64,
    support: f64,
    inverse: f64,
}

impl Axis {
    fn new(from: u32, to: u32, filter: Interpolation) -> Self {
        let scale = f64::from(from) / f64::from(to);
        let filter_scale = scale.max(1.0);
        Self { from, filter, scale, support: support(filter) * filter_scale, inverse: 1.0 / filter_scale }
    }

    /// An upper bound for the pixels of an output pixel, an even number.
    fn stride(&self) -> usize {
        (self.support.ceil() as usize * 2 + 1).next_multiple_of(2)
    }

    fn center(&self, output: usize) -> f64 {
        (output as f64 + 0.5) * self.scale
    }

    /// The input pixels within the filter. Both ends never decrease from one output pixel to the next.
    fn reach(&self, output: usize) -> Range<i64> {
        let center = self.center(output);
        ((center - self.support + 0.5) as i64).max(0)..((center + self.support + 0.5) as i64).min(self.from.into())
    }

    /// The weights of those pixels. Pillow's, operation by operation: another order of the same arithmetic rounds
    /// differently.
    fn weights(&self, output: usize, exact: &mut Vec<f64>) -> impl Iterator<Item = i32> {
        let center = self.center(output);
        exact.clear();
        exact.extend(self.reach(output).map(|x| weight(self.filter, (x as f64 - center + 0.5) * self.inverse)));
        let sum: f64 = exact.iter().sum();
        exact.iter().map(move |&weight| {
            let weight = if sum == 0.0 { weight } else { weight / sum } * f64::from(1u32 << PRECISION_BITS);
            if weight < 0.0 { (weight - 0.5) as i32 } else { (weight + 0.5) as i32 }
        })
    }

    /// The non-zero ones, as [`Table::push`] keeps them.
    fn span(&self, output: usize, exact: &mut Vec<f64>) -> Range<i64> {
        let start = self.reach(output).start;
        let (mut first, mut end) = (None, 0);
        for (at, weight) in (start..).zip(self.weights(output, exact)) {
            if weight != 0 {
                first.get_or_insert(at);
                end = at + 1;
            }
        }
        first.map_or(start..start + 1, |first| first..end)
    }
}

/// Bytes of a table, and of its temporary memory.
pub(super) fn table_bytes(from: u32, to: u32, filter: Interpolation) -> u64 {
    let stride = Axis::new(from, to, filter).stride() as u64;
    let each = size_of::<i32>() as u64 * stride + size_of::<Pair>() as u64 * stride / 2 + size_of::<Span>() as u64;
    u64::from(to) * each + stride * size_of::<f64>() as u64
}

/// Refuses sides for which the table would be too large.
pub(super) fn check_table(from: u32, to: u32, filter: Interpolation) -> Result<()> {
    let bytes = table_bytes(from, to, filter);
    if bytes <= MAX_TABLE_BYTES {
        return Ok(());
    }
    let message = format!(
        "has too long a side to be resized (expected weights of at most {MAX_TABLE_BYTES} bytes, got {bytes} from {from} \
         to {to} pixels)"
    );
    let hint = "the picture is very long and thin: crop it before it is resized, or leave it out";
    Err(Error::new(Kind::Exhausted, message).with_hint(hint))
}

/// The weights of one axis: from one size to another with one filter.
#[derive(Default)]
pub(super) struct Table {
    key: Option<Key>,
    used: u64,
    /// First pixel and number of pixels, for each output pixel.
    spans: Vec<Span>,
    /// `stride` weights for each output pixel, 0 beyond its span.
    weights: Vec<i32>,
    /// The same in pairs, for the vector passes.
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

    /// The same in pairs; an odd last one is paired with 0.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only these vectors multiply pairs"))]
    pub(super) fn pairs(&self, output: usize) -> &[Pair] {
        &self.pairs[output * (self.stride / 2)..][..(self.spans[output].len as usize).div_ceil(2)]
    }

    /// The same, padded with zero pairs to the longest span: [`max_pairs`](Self::max_pairs).
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only these vectors multiply pairs"))]
    pub(super) fn even_pairs(&self, output: usize) -> &[Pair] {
        &self.pairs[output * (self.stride / 2)..][..self.max_pairs]
    }

    /// The weights themselves, padded with zeros to two for each of [`max_pairs`](Self::max_pairs).
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
        // Not only the first and the last: a zero weight within a filter makes one span shorter than its neighbours.
        let spans = &self.spans[wanted.clone()];
        let start = spans.iter().map(|span| span.start).min().unwrap_or(0);
        let end = spans.iter().map(|span| span.start + span.len).max().unwrap_or(0);
        start as usize..end as usize
    }

    /// Bytes that it takes.
    fn size_bytes(&self) -> usize {
        let Self { spans, weights, pairs, .. } = self;
        spans.capacity() * size_of::<Span>()
            + weights.capacity() * size_of::<i32>()
            + pairs.capacity() * size_of::<Pair>()
    }

    fn fill(&mut self, from: u32, to: u32, filter: Interpolation, exact: &mut Vec<f64>) -> Result<()> {
        check_table(from, to, filter)?;
        let axis = Axis::new(from, to, filter);
        self.key = None;
        self.stride = axis.stride();
        self.spans.clear();
        self.weights.clear();
        self.pairs.clear();
        self.max_pairs = 0;
        let (to, what) = (to as usize, "the weights of a resize");
        reserve(&mut self.spans, to, what)?;
        reserve(&mut self.weights, to * self.stride, what)?;
        reserve(&mut self.pairs, to * self.stride / 2, what)?;
        exact.clear();
        reserve(exact, self.stride, what)?;
        for output in 0..to {
            self.push(axis.reach(output).start as u32, axis.weights(output, exact));
        }
        self.key = Some((from, to as u32, filter));
        Ok(())
    }

    /// Adds an output pixel; zeros at both ends of its weights are dropped.
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

/// A cache of tables. The least recently used one is replaced and its memory reused, so nothing is allocated once sizes
/// repeat.
#[derive(Default)]
pub(super) struct Tables {
    tables: Vec<Table>,
    exact: Vec<f64>,
    clock: u64,
    /// Of all tables.
    size_bytes: usize,
}

impl Tables {
    /// About 1 MiB for 224 output pixels; a table costs microseconds to make (not measured beyond that).
    const MAX_TABLES: usize = 64;

    /// The limit of what a thread keeps from sample to sample, which is not charged to the memory budget: 64 tables of
    /// photos of 8,000 pixels a side.
    const MAX_KEPT_BYTES: usize = 8 << 20;

    /// The index of the table for this axis; valid until the second next `find`.
    pub(super) fn find(&mut self, from: u32, to: u32, filter: Interpolation) -> Result<usize> {
        self.clock += 1;
        let key = Some((from, to, filter));
        let at = match self.tables.iter().position(|table| table.key == key) {
            Some(at) => at,
            None => {
                if self.tables.len() < Self::MAX_TABLES {
                    // Never used, and so the oldest.
                    self.tables.push(Table::default());
                }
                let at = self.oldest();
                let before = self.tables[at].size_bytes();
                let filled = self.tables[at].fill(from, to, filter, &mut self.exact);
                self.size_bytes = self.size_bytes - before + self.tables[at].size_bytes();
                filled?;
                at
            }
        };
        self.tables[at].used = self.clock;
        Ok(at)
    }

    fn oldest(&self) -> usize {
        self.tables.iter().enumerate().min_by_key(|(_, table)| table.used).map_or(0, |(at, _)| at)
    }

    /// Frees what exceeds a thread's limit, least recently used first.
    pub(super) fn give_back(&mut self) {
        while self.size_bytes > Self::MAX_KEPT_BYTES {
            let table = self.tables.swap_remove(self.oldest());
            self.size_bytes -= table.size_bytes();
        }
        if self.exact.capacity() * size_of::<f64>() > Self::MAX_KEPT_BYTES {
            self.exact = Vec::new();
        }
    }

    /// The input pixels that these output pixels depend on: without a table, so that none is computed for a picture
    /// that cannot be decoded.
    pub(super) fn needed(
        &mut self,
        from: u32,
        to: u32,
        filter: Interpolation,
        wanted: &Range<usize>,
    ) -> Result<Range<usize>> {
        check_table(from, to, filter)?;
        let axis = Axis::new(from, to, filter);
        self.exact.clear();
        reserve(&mut self.exact, axis.stride(), "the weights of a resize")?;
        // Not only the first and the last: a zero weight within a filter makes one span shorter than its neighbours.
        let (mut start, mut end) = (i64::MAX, 0);
        for output in wanted.clone() {
            if axis.reach(output).start >= start {
                break;
            }
            start = start.min(axis.span(output, &mut self.exact).start);
        }
        for output in wanted.clone().rev() {
            if axis.reach(output).end <= end {
                break;
            }
            end = end.max(axis.span(output, &mut self.exact).end);
        }
        Ok(start.min(end) as usize..end as usize)
    }

    /// The table at a place that `find` gave.
    pub(super) fn get(&self, at: usize) -> &Table {
        &self.tables[at]
    }
}

/// The radius of a filter, in pixels of the larger of both pictures.
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
                let at = tables.find(size, 7, Interpolation::Bilinear).unwrap();
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

    #[test]
    fn what_is_needed_is_what_the_table_says() {
        let mut tables = Tables::default();
        let filters = [
            Interpolation::Box,
            Interpolation::Bilinear,
            Interpolation::Hamming,
            Interpolation::Bicubic,
            Interpolation::Lanczos,
        ];
        for filter in filters {
            for (from, to) in [(1, 9), (9, 1), (7, 7), (100, 33), (33, 100), (224, 256), (500, 224), (1000, 3)] {
                let at = tables.find(from, to, filter).unwrap();
                for start in 0..to as usize {
                    for end in [start + 1, (start + 5).min(to as usize), to as usize] {
                        let expected = tables.get(at).needed(&(start..end));
                        let got = tables.needed(from, to, filter, &(start..end)).unwrap();
                        assert_eq!(got, expected, "{filter} from {from} to {to}, {start}..{end}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_size_of_a_table_is_known_before_it_is_made() {
        for (from, to, filter) in [
            (100_000, 32, Interpolation::Lanczos),
            (7, 3000, Interpolation::Bilinear),
            (500, 224, Interpolation::Bicubic),
        ] {
            let mut table = Table::default();
            table.fill(from, to, filter, &mut Vec::new()).unwrap();
            let (bytes, bound) = (table.size_bytes() as u64, table_bytes(from, to, filter));
            assert!(bytes <= bound && bound <= bytes * 2, "{bytes} bytes, {bound} foreseen, from {from} to {to}");
        }
    }

    #[test]
    fn sides_that_take_gigabytes_of_weights_are_refused() {
        let mut tables = Tables::default();
        let (from, to) = (178_956_970, 256);
        for error in [
            tables.find(from, to, Interpolation::Bilinear).unwrap_err(),
            tables.needed(from, to, Interpolation::Bilinear, &(0..1)).unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Exhausted);
            assert!(error.message().ends_with("from 178956970 to 256 pixels)"), "{error}");
        }
        assert_eq!(tables.size_bytes, 0);
    }

    #[test]
    fn tables_beyond_what_a_thread_may_keep_are_given_back() {
        let mut tables = Tables::default();
        for from in 0..20 {
            tables.find(100_000 + from, 224, Interpolation::Lanczos).unwrap();
        }
        assert!(tables.size_bytes > Tables::MAX_KEPT_BYTES);
        tables.give_back();
        assert!((1..=Tables::MAX_KEPT_BYTES).contains(&tables.size_bytes), "{}", tables.size_bytes);
        assert_eq!(tables.size_bytes, tables.tables.iter().map(Table::size_bytes).sum::<usize>());
        let kept = tables.tables.len();
        tables.find(100_019, 224, Interpolation::Lanczos).unwrap();
        assert_eq!(tables.tables.len(), kept, "the one used last was kept");
    }
}
