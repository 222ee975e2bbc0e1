//! Whole numbers as differences from the one before: blocks of miniblocks, each of a width of its own.

use super::hybrid::{take_varint, wide_bits};

/// Reads such numbers, one after the other.
pub(super) struct Deltas<'a> {
    /// Of everything from the beginning on.
    length: usize,
    rest: &'a [u8],
    /// Values in a miniblock, and miniblocks in a block.
    each: u64,
    minis: usize,
    /// Those that are still to come.
    left: u64,
    /// The next one.
    value: i64,
    least: i64,
    widths: &'a [u8],
    packed: &'a [u8],
    bit: usize,
    /// Of the miniblock.
    left_of_mini: u64,
    width: u32,
}

impl<'a> Deltas<'a> {
    /// Those of a page with `count` values; `None` if that is not what the bytes say.
    pub(super) fn new(bytes: &'a [u8], count: usize) -> Option<Self> {
        let mut rest = bytes;
        let (block, minis, left) = (take_varint(&mut rest)?, take_varint(&mut rest)?, take_varint(&mut rest)?);
        let value = take_signed(&mut rest)?;
        let is_right = minis > 0 && block.is_multiple_of(minis) && (block / minis).is_multiple_of(32) && block > 0;
        (is_right && left == count as u64).then_some(Self {
            length: bytes.len(),
            rest,
            each: block.checked_div(minis)?,
            minis: usize::try_from(minis).ok()?,
            left,
            value,
            least: 0,
            widths: &[],
            packed: &[],
            bit: 0,
            left_of_mini: 0,
            width: 0,
        })
    }

    pub(super) fn next(&mut self) -> Option<i64> {
        self.left = self.left.checked_sub(1)?;
        let value = self.value;
        if self.left > 0 {
            let delta = self.delta()?;
            self.value = value.wrapping_add(self.least).wrapping_add(delta);
        }
        Some(value)
    }

    fn delta(&mut self) -> Option<i64> {
        while self.left_of_mini == 0 {
            if self.widths.is_empty() {
                self.least = take_signed(&mut self.rest)?;
                self.widths = self.rest.split_off(..self.minis)?;
            }
            self.width = u32::from(*self.widths.split_off_first()?);
            if self.width > 64 {
                return None;
            }
            let length = usize::try_from(self.each.checked_mul(u64::from(self.width))? / 8).ok()?;
            // The last miniblock may be cut behind its last value.
            self.packed = self.rest.split_off(..length.min(self.rest.len()))?;
            (self.bit, self.left_of_mini) = (0, self.each);
        }
        self.left_of_mini -= 1;
        let delta = wide_bits(self.packed, self.bit, self.width)?;
        self.bit += self.width as usize;
        Some(delta.cast_signed())
    }

    /// Where they end, once all were read.
    pub(super) fn end(&self) -> Option<usize> {
        (self.left == 0).then(|| self.length - self.rest.len())
    }
}

/// Where such numbers end.
pub(super) fn back(bytes: &[u8], count: usize) -> Option<usize> {
    let mut numbers = Deltas::new(bytes, count)?;
    for _ in 0..count {
        numbers.next()?;
    }
    numbers.end()
}

fn take_signed(bytes: &mut &[u8]) -> Option<i64> {
    let number = take_varint(bytes)?;
    Some((number >> 1).cast_signed() ^ -((number & 1).cast_signed()))
}
