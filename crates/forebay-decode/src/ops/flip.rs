//! Mirroring, in place.

/// Mirrors each row of `width` groups of `channels` interleaved elements.
pub(crate) fn horizontal<T: Copy>(pixels: &mut [T], width: usize, channels: usize) {
    for row in pixels.chunks_exact_mut(width * channels) {
        row.reverse();
        // The reversal also turned each pixel around: turn it back.
        row.chunks_exact_mut(channels).for_each(<[T]>::reverse);
    }
}

/// Mirrors the order of rows of `row` elements.
pub(crate) fn vertical<T: Copy>(pixels: &mut [T], row: usize) {
    let height = pixels.len() / row;
    let (upper, lower) = pixels.split_at_mut(height.div_ceil(2) * row);
    for (above, below) in upper.chunks_exact_mut(row).zip(lower.chunks_exact_mut(row).rev()) {
        above.swap_with_slice(below);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flips_keep_pixels_whole() {
        let mut pixels = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        horizontal(&mut pixels, 2, 3);
        assert_eq!(pixels, [4, 5, 6, 1, 2, 3, 10, 11, 12, 7, 8, 9]);
        vertical(&mut pixels, 6);
        assert_eq!(pixels, [10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3]);
        let mut odd = [1, 2, 3];
        vertical(&mut odd, 1);
        assert_eq!(odd, [3, 2, 1]);
    }
}
