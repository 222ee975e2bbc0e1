//! A chain of conversions as arithmetic for vectors: `x / 255`, `x` times 1/255 or `x`, then `(y - mean) / std`.
//!
//! Division is slow, so it is done by a multiplication and a correction that rounds the same in all but rare cases.
//! Bytes are few: each formula is tried on all of them, and used only if every float is that of the table.

use crate::Dtype;
use crate::ops::convert::{Lookup, Pointwise};

/// The chain for three channels. What it gives is always a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Formula {
    /// What bytes become first.
    pub(super) scale: Scale,
    /// For each channel.
    pub(super) mean: [f32; 3],
    /// For each channel.
    pub(super) std: [f32; 3],
}

/// From bytes to floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    /// Divided by 255.
    Divided,
    /// Times 1/255.
    Multiplied,
    /// As they are. With nothing after it, bytes may stay bytes.
    None,
}

/// 1/255 to the nearest float.
pub(super) const UNIT: f32 = (1.0 / 255.0) as f32;

impl Formula {
    /// The formula for a chain; `None` if there is none that gives exactly the floats of the table.
    pub(super) fn new(chain: &[Pointwise], lookup: &Lookup) -> Option<Self> {
        let Lookup::F32(tables) = lookup.stored_as(Dtype::F32) else { return None };
        let (scale, rest) = match chain {
            [Pointwise::Unit, rest @ ..] => (Scale::Divided, rest),
            [Pointwise::Scaled, rest @ ..] => (Scale::Multiplied, rest),
            [Pointwise::Float, rest @ ..] => (Scale::None, rest),
            rest => (Scale::None, rest),
        };
        let (mean, std) = match rest {
            [] => ([0.0; 3], [1.0; 3]),
            [Pointwise::Normalize { mean, std }] => {
                let each = |values: &[f32]| std::array::from_fn(|channel| values[channel.min(values.len() - 1)]);
                (each(mean), each(std))
            }
            _ => return None,
        };
        let formula = Self { scale, mean, std };
        let holds = |(channel, table): (usize, &[f32; 256])| {
            let (value, expected) = (|byte| formula.value(channel, byte), |byte| table[usize::from(byte)]);
            (0..=255u8).all(|byte| !value(byte).is_nan() && value(byte).to_bits() == expected(byte).to_bits())
        };
        (tables.len() == 3 && tables.iter().enumerate().all(holds)).then_some(formula)
    }

    /// What the vectors compute, for one byte.
    fn value(&self, channel: usize, byte: u8) -> f32 {
        let value = f32::from(byte);
        let unit = match self.scale {
            Scale::Divided => divide(value, 255.0, UNIT),
            Scale::Multiplied => value * UNIT,
            Scale::None => value,
        };
        let std = self.std[channel];
        divide(unit - self.mean[channel], std, 1.0 / std)
    }
}

/// `value / by` by its reciprocal, corrected once with fused operations.
fn divide(value: f32, by: f32, reciprocal: f32) -> f32 {
    let quotient = value * reciprocal;
    let rest = (-quotient).mul_add(by, value);
    rest.mul_add(reciprocal, quotient)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formula(chain: &[Pointwise]) -> Option<Formula> {
        Formula::new(chain, &Lookup::new(chain, 3))
    }

    #[test]
    fn usual_chains_have_a_formula() {
        let imagenet = Pointwise::Normalize { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] };
        let half = Pointwise::Normalize { mean: vec![0.5], std: vec![0.5] };
        for chain in [
            vec![Pointwise::Unit],
            vec![Pointwise::Scaled],
            vec![Pointwise::Unit, imagenet.clone()],
            vec![Pointwise::Scaled, imagenet],
            vec![Pointwise::Unit, half],
            vec![Pointwise::Float],
            vec![],
        ] {
            assert!(formula(&chain).is_some(), "{chain:?}");
        }
    }

    #[test]
    fn chains_of_another_kind_keep_the_table() {
        assert_eq!(formula(&[Pointwise::Unit, Pointwise::Byte { scale: true }, Pointwise::Float]), None);
        // The reciprocal of this one is no float: the result would be infinite.
        let tiny = Pointwise::Normalize { mean: vec![0.0], std: vec![1e-45] };
        assert_eq!(formula(&[Pointwise::Unit, tiny]), None);
    }
}
