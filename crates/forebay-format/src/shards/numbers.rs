//! Numbers in 32 bits each for as long as they fit: offsets and sizes of parts.

use forebay_core::{Error, Kind, Result};

use crate::extents::take_word;

/// What offsets are multiples of, in archives.
const BLOCK_BYTES: u64 = 512;

/// A list of numbers, each a multiple of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    unit: u64,
    words: Words,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Words {
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

impl Default for Numbers {
    fn default() -> Self {
        Self { unit: 1, words: Words::Narrow(Vec::new()) }
    }
}

impl Numbers {
    /// For numbers that are most often multiples of an archive's blocks.
    pub(super) fn of_blocks() -> Self {
        Self { unit: BLOCK_BYTES, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        match &self.words {
            Words::Narrow(words) => words.len(),
            Words::Wide(words) => words.len(),
        }
    }

    pub(super) fn get(&self, at: usize) -> u64 {
        self.unit
            * match &self.words {
                Words::Narrow(words) => u64::from(words[at]),
                Words::Wide(words) => words[at],
            }
    }

    pub(super) fn push(&mut self, number: u64) -> Result<()> {
        if !number.is_multiple_of(self.unit) {
            self.widen(1)?;
        }
        let word = number / self.unit;
        match (&mut self.words, u32::try_from(word)) {
            (Words::Narrow(words), Ok(word)) => push(words, word),
            (Words::Wide(words), _) => push(words, word),
            (Words::Narrow(_), Err(_)) => {
                self.widen(self.unit)?;
                self.push(number)
            }
        }
    }

    /// Keeps all of them in 64 bits, as multiples of another unit.
    fn widen(&mut self, unit: u64) -> Result<()> {
        let mut wide = Vec::new();
        wide.try_reserve(self.len() + 1).map_err(no_memory)?;
        wide.extend((0..self.len()).map(|at| self.get(at) / unit));
        (self.unit, self.words) = (unit, Words::Wide(wide));
        Ok(())
    }

    /// Gives back memory that is not needed, and takes 32 bits where those do.
    pub(super) fn shrink(&mut self) {
        if let Words::Wide(words) = &self.words
            && let Ok(narrow) = words.iter().map(|word| u32::try_from(*word)).collect::<Result<Vec<_>, _>>()
        {
            self.words = Words::Narrow(narrow);
        }
        match &mut self.words {
            Words::Narrow(words) => words.shrink_to_fit(),
            Words::Wide(words) => words.shrink_to_fit(),
        }
    }

    pub(super) fn size_bytes(&self) -> usize {
        match &self.words {
            Words::Narrow(words) => words.len() * 4,
            Words::Wide(words) => words.len() * 8,
        }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend((self.unit << 1 | u64::from(matches!(self.words, Words::Wide(_)))).to_le_bytes());
        match &self.words {
            Words::Narrow(words) => {
                out.extend((words.len() as u64).to_le_bytes());
                words.iter().for_each(|word| out.extend(word.to_le_bytes()));
            }
            Words::Wide(words) => write_words(words, out),
        }
    }

    pub(super) fn parse(bytes: &mut &[u8]) -> Option<Self> {
        let form = take_word(bytes)?;
        let unit = [1, BLOCK_BYTES].into_iter().find(|unit| *unit == form >> 1)?;
        let words = match form & 1 {
            0 => {
                let count = usize::try_from(take_word(bytes)?).ok()?;
                let words = bytes.split_off(..count.checked_mul(4)?)?.as_chunks::<4>().0;
                Words::Narrow(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
            }
            _ => {
                let words = parse_words(bytes)?;
                words.iter().all(|word| word.checked_mul(unit).is_some()).then_some(Words::Wide(words))?
            }
        };
        Some(Self { unit, words })
    }
}

/// Writes how many words there are, and the words.
pub(super) fn write_words(words: &[u64], out: &mut Vec<u8>) {
    out.extend((words.len() as u64).to_le_bytes());
    words.iter().for_each(|word| out.extend(word.to_le_bytes()));
}

/// Reads what [`write_words`] wrote. A count that the bytes do not hold costs no memory.
pub(super) fn parse_words(bytes: &mut &[u8]) -> Option<Vec<u64>> {
    let count = usize::try_from(take_word(bytes)?).ok()?;
    let words = bytes.split_off(..count.checked_mul(8)?)?.as_chunks::<8>().0;
    Some(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// Adds to a list whose length a file decides.
pub(super) fn push<T>(list: &mut Vec<T>, item: T) -> Result<()> {
    list.try_reserve(1).map_err(no_memory)?;
    list.push(item);
    Ok(())
}

pub(super) fn no_memory<E>(_: E) -> Error {
    Error::new(Kind::Exhausted, "no memory was left for the index of its samples")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept_whatever_their_size() {
        for numbers in [&[0, 512, 1 << 40][..], &[512, 513], &[1 << 50, 7, u64::MAX], &[5, u64::from(u32::MAX)], &[]] {
            for mut kept in [Numbers::default(), Numbers::of_blocks()] {
                numbers.iter().for_each(|number| kept.push(*number).unwrap());
                kept.shrink();
                assert_eq!((0..kept.len()).map(|at| kept.get(at)).collect::<Vec<_>>(), numbers);
                let mut bytes = Vec::new();
                kept.write(&mut bytes);
                let mut rest = &bytes[..];
                assert_eq!(Numbers::parse(&mut rest).as_ref(), Some(&kept));
                assert!(rest.is_empty());
                for end in 0..bytes.len() {
                    assert_eq!(Numbers::parse(&mut &bytes[..end]), None);
                }
            }
        }
        let mut blocks = Numbers::of_blocks();
        (0..100).for_each(|at| blocks.push((at + (1 << 30)) * 512).unwrap());
        assert_eq!(blocks.size_bytes(), 400, "a shard of half a terabyte");
    }
}
