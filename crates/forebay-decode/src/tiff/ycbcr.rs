//! YCbCr inside TIFF: its storage, and its conversion to RGB as in libtiff (or Pillow, for uncompressed files).

use forebay_core::Result;

use super::directory::{Directory, Values};
use crate::Format;
use crate::decoder::{damaged, unsupported};

/// How many pixels share a chroma sample, and the contribution of each value to a colour.
pub(super) struct YCbCr {
    /// Pixels across and down: 1, 2 or 4.
    pub(super) sharing: (usize, usize),
    luma: [i32; 256],
    red: [i32; 256],
    green: [[i32; 256]; 2],
    blue: [i32; 256],
    /// Right shift of the contributions to green.
    shift: u32,
}

/// Fractional bits of libtiff's fixed-point numbers.
const SHIFT: u32 = 16;
/// Fractional bits of Pillow's.
const PILLOW_SHIFT: u32 = 6;

impl YCbCr {
    /// `plain` means uncompressed, which Pillow converts itself.
    pub(super) fn new(directory: &Directory<'_>, plain: bool) -> Result<Self> {
        let shared = directory.all(530)?;
        let side = |at: usize| shared.and_then(|all| all.get(at)).unwrap_or(2);
        let sharing = match (side(0), side(1)) {
            (across @ (1 | 2 | 4), down @ (1 | 2 | 4)) => (across as usize, down as usize),
            (across, down) => {
                return Err(damaged(Format::Tiff, format!("chroma for {across}×{down} pixels each")));
            }
        };
        // libtiff does not support the first, and gets the last pixels of the second wrong.
        if matches!(sharing, (1 | 4, 4)) {
            return Err(unsupported(Format::Tiff, format!("YCbCr with chroma for {}×4 pixels each", sharing.0)));
        }
        if plain && sharing == (1, 1) {
            return Ok(Self::of_pillow());
        }
        let luma = ratios(directory.all(529)?, [0.299, 0.587, 0.114]);
        let range = ratios(directory.all(532)?, [0.0, 255.0, 128.0, 255.0, 128.0, 255.0]);
        if luma[1] == 0.0 || luma.iter().chain(&range).any(|value| !value.is_finite()) {
            return Err(damaged(Format::Tiff, format!("coefficients of luma {luma:?} in the range {range:?}")));
        }
        Ok(Self::of_libtiff(sharing, luma, range))
    }

    /// Pillow's tables: JFIF's coefficients, truncated to 6 bits.
    fn of_pillow() -> Self {
        let table = |factor: f64| {
            std::array::from_fn(|value| {
                let distance = value as f64 - 128.0;
                (factor * f64::from(1 << PILLOW_SHIFT) * distance + 0.5) as i32
            })
        };
        let whole = |factor| table(factor).map(|value: i32| value >> PILLOW_SHIFT);
        Self {
            sharing: (1, 1),
            luma: std::array::from_fn(|value| value as i32),
            red: whole(1.402),
            green: [table(-0.34414), table(-0.71414)],
            blue: whole(1.772),
            shift: PILLOW_SHIFT,
        }
    }

    /// libtiff's tables, in its arithmetic: single precision, then 16 fractional bits.
    fn of_libtiff(sharing: (usize, usize), [red, green, blue]: [f32; 3], range: [f32; 6]) -> Self {
        let fixed = |value: f32| (f64::from(value.clamp(0.0, 2.0) * (1 << SHIFT) as f32) + 0.5) as i32;
        let (of_red, of_blue) = (2.0 - 2.0 * red, 2.0 - 2.0 * blue);
        let (d1, d2) = (fixed(of_red), -fixed(red * of_red / green));
        let (d3, d4) = (fixed(of_blue), -fixed(blue * of_blue / green));
        let code = |value: i32, black: f32, white: f32, full: f32| {
            let span = if white - black == 0.0 { 1.0 } else { white - black };
            // A file may declare any level as black.
            let level = (i64::from(value) - i64::from(black as i32)) as f32 * full / span;
            level.clamp(-128.0 * 32.0, 128.0 * 32.0) as i32
        };
        let chroma =
            |value: usize, at: usize| code(value as i32 - 128, range[at] - 128.0, range[at + 1] - 128.0, 127.0);
        let half = 1 << (SHIFT - 1);
        Self {
            sharing,
            luma: std::array::from_fn(|value| code(value as i32, range[0], range[1], 255.0)),
            red: std::array::from_fn(|value| (d1 * chroma(value, 4) + half) >> SHIFT),
            green: [
                std::array::from_fn(|value| d4 * chroma(value, 2) + half),
                std::array::from_fn(|value| d2 * chroma(value, 4)),
            ],
            blue: std::array::from_fn(|value| (d3 * chroma(value, 2) + half) >> SHIFT),
            shift: SHIFT,
        }
    }

    pub(super) fn rgb(&self, luma: u8, cb: u8, cr: u8) -> [u8; 3] {
        let (luma, cb, cr) = (self.luma[usize::from(luma)], usize::from(cb), usize::from(cr));
        let green = (self.green[0][cb] + self.green[1][cr]) >> self.shift;
        [self.red[cr], green, self.blue[cb]].map(|more| (luma + more).clamp(0, 255) as u8)
    }

    /// Bytes of a chunk of this size: for each group of pixels that share chroma all their luma, then the chroma.
    pub(super) const fn chunk_bytes(&self, width: usize, height: usize) -> usize {
        width.div_ceil(self.sharing.0) * height.div_ceil(self.sharing.1) * (self.sharing.0 * self.sharing.1 + 2)
    }

    /// The samples of row `row` of a chunk that is `width` wide, with chroma repeated for each pixel.
    pub(super) fn row(&self, chunk: &[u8], width: usize, row: usize, target: &mut [u8]) {
        let (across, down) = self.sharing;
        let group = across * down + 2;
        let groups = &chunk[row / down * width.div_ceil(across) * group..];
        for (column, pixel) in target.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let group = &groups[column / across * group..][..group];
            *pixel = [group[row % down * across + column % across], group[group.len() - 2], group[group.len() - 1]];
        }
    }
}

/// The first fractions of a tag, or the defaults if it is missing.
fn ratios<const N: usize>(values: Option<Values<'_>>, default: [f32; N]) -> [f32; N] {
    match values {
        Some(values) if values.len() >= N => std::array::from_fn(|at| values.ratio(at)),
        _ => default,
    }
}
