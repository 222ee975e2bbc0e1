//! The one mixing function behind permutation, substitutes and per-sample randomness.
//!
//! Stable for ever: resume states and recorded orders depend on it (`golden` tests below).

/// A 64-bit finaliser (SplitMix64's): every input bit reaches every output bit.
#[inline]
pub const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Hashes words in order; `[a, b]` and `[b, a]` differ, and so do `[a]` and `[a, 0]`.
#[inline]
pub const fn hash_words(words: &[u64]) -> u64 {
    let mut state = mix(words.len() as u64);
    let mut i = 0;
    while i < words.len() {
        state = mix(state ^ words[i]);
        i += 1;
    }
    state
}

/// Hashes bytes; of another length they have another hash, whatever they are.
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let words: Vec<_> = std::iter::once(bytes.len() as u64).chain(bytes.chunks(8).map(word)).collect();
    hash_words(&words)
}

/// Maps a 64-bit hash onto `0..bound` without modulo bias worth measuring (`bound` ≪ 2⁶⁴).
#[inline]
pub(crate) const fn scale(hash: u64, bound: u64) -> u64 {
    ((hash as u128 * bound as u128) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_values_never_change() {
        assert_eq!(mix(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(hash_words(&[1, 2, 3]), hash_words(&[1, 2, 3]));
        assert_ne!(hash_words(&[1, 2]), hash_words(&[2, 1]));
        assert_ne!(hash_words(&[1]), hash_words(&[1, 0]));
    }

    #[test]
    fn scale_stays_below_its_bound() {
        for bound in [1, 2, 3, 1000, u64::MAX] {
            assert!(scale(u64::MAX, bound) < bound);
            assert_eq!(scale(0, bound), 0);
        }
    }
}
