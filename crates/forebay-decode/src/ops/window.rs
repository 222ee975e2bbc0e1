//! Cutting out a rectangle that may extend beyond the picture: the basis of `Pad` and all crops.

use forebay_core::Result;

use super::PaddingMode;
use crate::memory::reserve;

/// A rectangle in a picture's coordinates that may reach outside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) left: i64,
    pub(crate) top: i64,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

impl Window {
    /// The part inside a picture of this size: columns and rows; empty ranges if there is none.
    pub(crate) fn inside(&self, width: u32, height: u32) -> (std::ops::Range<u32>, std::ops::Range<u32>) {
        let clip = |start: i64, length: u32, size: u32| {
            let from = start.clamp(0, i64::from(size)) as u32;
            let to = (start + i64::from(length)).clamp(i64::from(from), i64::from(size)) as u32;
            from..to
        };
        (clip(self.left, self.width, width), clip(self.top, self.height, height))
    }

    /// Whether all of it is inside a picture of this size.
    pub(crate) fn is_inside(&self, width: u32, height: u32) -> bool {
        let (columns, rows) = self.inside(width, height);
        columns.len() == self.width as usize && rows.len() == self.height as usize
    }

    /// The same window in coordinates that begin at `(x, y)`.
    pub(crate) fn relative_to(self, x: u32, y: u32) -> Self {
        Self { left: self.left - i64::from(x), top: self.top - i64::from(y), ..self }
    }
}

/// The source coordinate inside `0..size` for `at`; `None` if it is filled.
pub(crate) fn source(at: i64, size: usize, mode: PaddingMode) -> Option<usize> {
    let size = size as i64;
    if (0..size).contains(&at) {
        return Some(at as usize);
    }
    let mirrored = |period: i64, turn: i64| {
        let phase = at.rem_euclid(period);
        if phase < size { phase } else { turn - phase }
    };
    match mode {
        PaddingMode::Constant => None,
        PaddingMode::Edge => Some(at.clamp(0, size - 1) as usize),
        PaddingMode::Reflect if size == 1 => Some(0),
        PaddingMode::Reflect => Some(mirrored(2 * (size - 1), 2 * (size - 1)) as usize),
        PaddingMode::Symmetric => Some(mirrored(2 * size, 2 * size - 1) as usize),
    }
}

/// Appends the window to `out`. `pixels` are rows of `width` groups of `fill.len()` interleaved elements.
pub(crate) fn extract<T: Copy>(
    pixels: &[T],
    width: usize,
    window: Window,
    mode: PaddingMode,
    fill: &[T],
    out: &mut Vec<T>,
) -> Result<()> {
    let channels = fill.len();
    let height = pixels.len() / (width * channels).max(1);
    let (columns, _) = window.inside(width as u32, height as u32);
    let middle = columns.start as usize * channels..columns.end as usize * channels;
    let left_columns = (i64::from(columns.start) - window.left).clamp(0, i64::from(window.width)) as u32;
    reserve(out, window.width as usize * window.height as usize * channels, "its cropped or padded pixels")?;
    for y in 0..window.height {
        let Some(row) = source(window.top + i64::from(y), height, mode) else {
            (0..window.width).for_each(|_| out.extend_from_slice(fill));
            continue;
        };
        let row = &pixels[row * width * channels..][..width * channels];
        let outside = |x: u32, out: &mut Vec<T>| match source(window.left + i64::from(x), width, mode) {
            Some(column) => out.extend_from_slice(&row[column * channels..][..channels]),
            None => out.extend_from_slice(fill),
        };
        if columns.is_empty() {
            (0..window.width).for_each(|x| outside(x, out));
            continue;
        }
        (0..left_columns).for_each(|x| outside(x, out));
        out.extend_from_slice(&row[middle.clone()]);
        (left_columns + columns.len() as u32..window.width).for_each(|x| outside(x, out));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(mode: PaddingMode, left: i64, width: u32) -> Vec<u8> {
        let mut out = Vec::new();
        extract(&[1, 2, 3], 3, Window { left, top: 0, width, height: 1 }, mode, &[9], &mut out).unwrap();
        out
    }

    #[test]
    fn modes_continue_a_row_as_numpy_does() {
        assert_eq!(row(PaddingMode::Constant, -2, 7), [9, 9, 1, 2, 3, 9, 9]);
        assert_eq!(row(PaddingMode::Edge, -2, 7), [1, 1, 1, 2, 3, 3, 3]);
        assert_eq!(row(PaddingMode::Reflect, -2, 7), [3, 2, 1, 2, 3, 2, 1]);
        assert_eq!(row(PaddingMode::Symmetric, -2, 7), [2, 1, 1, 2, 3, 3, 2]);
        // Wider than the picture: mirrored again and again.
        assert_eq!(row(PaddingMode::Reflect, -5, 5), [2, 1, 2, 3, 2]);
        assert_eq!(row(PaddingMode::Symmetric, -5, 5), [2, 3, 3, 2, 1]);
    }

    #[test]
    fn window_beside_the_picture_is_all_fill() {
        assert_eq!(row(PaddingMode::Constant, 5, 2), [9, 9]);
        assert_eq!(row(PaddingMode::Constant, -7, 3), [9, 9, 9]);
        assert_eq!(row(PaddingMode::Edge, 5, 2), [3, 3]);
        let mut out = Vec::new();
        let below = Window { left: 0, top: 4, width: 2, height: 2 };
        extract(&[1, 2, 3], 3, below, PaddingMode::Constant, &[9], &mut out).unwrap();
        assert_eq!(out, [9; 4]);
    }

    #[test]
    fn single_pixel_reflects_onto_itself() {
        let mut out = Vec::new();
        let around = Window { left: -2, top: -2, width: 5, height: 5 };
        extract(&[7u8, 8], 1, around, PaddingMode::Reflect, &[0, 0], &mut out).unwrap();
        assert_eq!(out, [7, 8].repeat(25));
    }
}
