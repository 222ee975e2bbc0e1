//! Inputs made of other inputs: the same ones from the same number, on every machine.

/// Changes inputs in small ways.
#[derive(Clone, Debug)]
pub struct Mutations {
    state: u64,
}

/// Where counts and sizes go wrong.
const NUMBERS: [u64; 12] =
    [0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x7fff_ffff_ffff_ffff];

impl Mutations {
    /// The mutations of this number.
    pub fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(2).wrapping_add(1) }
    }

    /// A number below `bound`, which is not 0 (splitmix64).
    fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }

    /// `input` with one to four changes; parts may come from `other`.
    pub fn of(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..=self.below(4) {
            self.change(&mut bytes, other);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        if bytes.is_empty() {
            bytes.push(self.below(256) as u8);
            return;
        }
        // Headers decide more than what follows them.
        let near = if self.below(2) == 0 { bytes.len().min(64) } else { bytes.len() };
        let at = self.below(near);
        let length = 1 + self.below((bytes.len() - at).min(64));
        match self.below(8) {
            0 => bytes[at] ^= 1 << self.below(8),
            1 => bytes[at] = self.below(256) as u8,
            2 | 3 => {
                let number = NUMBERS[self.below(NUMBERS.len())];
                let width = [1, 2, 4, 8][self.below(4)].min(bytes.len() - at);
                let (little, big) = (number.to_le_bytes(), number.to_be_bytes());
                let written = if self.below(2) == 0 { &little[..width] } else { &big[8 - width..] };
                bytes[at..at + width].copy_from_slice(written);
            }
            4 => bytes.truncate(at),
            5 => drop(bytes.drain(at..at + length)),
            6 => {
                let copy = bytes[at..at + length].to_vec();
                bytes.splice(at..at, copy);
            }
            _ if !other.is_empty() => {
                let from = self.below(other.len());
                let part = &other[from..from + 1 + self.below((other.len() - from).min(64))];
                bytes.splice(at..at + length, part.iter().copied());
            }
            _ => bytes[at] = !bytes[at],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_gives_the_same_inputs() {
        let made = |seed| {
            let mut mutations = Mutations::new(seed);
            (0..100).map(|_| mutations.of(b"some input", b"another")).collect::<Vec<_>>()
        };
        assert_eq!(made(1), made(1));
        assert_ne!(made(1), made(2));
        assert!(made(1).iter().filter(|made| made.as_slice() != b"some input").count() > 90);
        Mutations::new(3).of(b"", b"");
    }
}
