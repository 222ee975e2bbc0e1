//! Numbers of a few bits: levels, numbers of dictionary entries, truth values. Runs of one number alternate with numbers packed
//! bit by bit, in groups of eight.

/// Reads such numbers, one after the other. A run takes no memory, however long it says that it is.
#[derive(Clone, Debug)]
pub(super) struct Hybrid<'a> {
    bytes: &'a [u8],
    width: u32,
    run: Run<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Run<'a> {
    Same { number: u32, left: u64 },
    Packed { bytes: &'a [u8], bit: usize, left: u64 },
}

impl<'a> Hybrid<'a> {
    /// Numbers of `width` bits, which are at most 32.
    pub(super) fn new(bytes: &'a [u8], width: u32) -> Self {
        Self { bytes, width, run: Run::Same { number: 0, left: 0 } }
    }

    fn next_run(&mut self) -> Option<()> {
        let head = take_varint(&mut self.bytes)?;
        let count = head >> 1;
        if head & 1 == 0 {
            let stored = self.bytes.split_off(..self.width.div_ceil(8) as usize)?;
            let number = stored.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
            self.run = Run::Same { number, left: count };
            return Some(());
        }
        let length = usize::try_from(count.checked_mul(u64::from(self.width))?).ok()?;
        // Some writers leave out the end of the last group.
        let packed = self.bytes.split_off(..length.min(self.bytes.len()))?;
        self.run = Run::Packed { bytes: packed, bit: 0, left: count.checked_mul(8)? };
        Some(())
    }
}

impl Iterator for Hybrid<'_> {
    type Item = u32;

    /// `None` where there are no more, and where what is there makes no sense.
    fn next(&mut self) -> Option<u32> {
        loop {
            match &mut self.run {
                Run::Same { number, left } if *left > 0 => {
                    *left -= 1;
                    return Some(*number);
                }
                Run::Packed { bytes, bit, left } if *left > 0 => {
                    *left -= 1;
                    let number = bits(bytes, *bit, self.width)?;
                    *bit += self.width as usize;
                    return Some(number);
                }
                _ => self.next_run()?,
            }
        }
    }
}

/// So many bits from a place on, the lowest ones first.
pub(super) fn bits(bytes: &[u8], from: usize, width: u32) -> Option<u32> {
    wide_bits(bytes, from, width).map(|number| number as u32)
}

/// The same for up to 64 bits.
pub(super) fn wide_bits(bytes: &[u8], from: usize, width: u32) -> Option<u64> {
    let end = from.checked_add(width as usize)?;
    let here = bytes.get(from / 8..end.div_ceil(8))?;
    let mut word = [0; 16];
    word.get_mut(..here.len())?.copy_from_slice(here);
    let number = u128::from_le_bytes(word) >> (from % 8);
    Some((number & ((1u128 << width) - 1)) as u64)
}

/// A number of seven bits a byte, with the highest bit saying that more follow.
pub(super) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        number |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_packed_numbers_follow_each_other() {
        // Five times 3, then eight numbers of three bits (0 to 7), as in Parquet's own description.
        let bytes = [5 << 1, 3, 1 << 1 | 1, 0b1000_1000, 0b1100_0110, 0b1111_1010];
        let numbers: Vec<_> = Hybrid::new(&bytes, 3).collect();
        assert_eq!(numbers, [3, 3, 3, 3, 3, 0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(Hybrid::new(&bytes[..5], 3).count(), 5 + 5, "numbers that are cut are not there");
        assert_eq!(Hybrid::new(&[4 << 1], 0).collect::<Vec<_>>(), [0; 4], "numbers of no bits");
        assert_eq!(Hybrid::new(&[0xFF; 20], 32).next(), None);
    }

    #[test]
    fn a_run_of_any_length_takes_no_memory() {
        let bytes = [0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01, 1];
        assert_eq!(Hybrid::new(&bytes, 1).take(1000).sum::<u32>(), 1000);
    }
}
