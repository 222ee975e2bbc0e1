//! What the examples that decode pictures have in common.

use forebay::{Interpolation, Op, Pipeline, Result};

/// Torchvision's usual training transform, as in `benchmarks/contender.py`.
pub(crate) fn pipeline() -> Result<Pipeline> {
    Pipeline::new(vec![
        Op::RandomResizedCrop {
            size: 224.into(),
            scale: (0.08, 1.0),
            ratio: (3.0 / 4.0, 4.0 / 3.0),
            interpolation: Interpolation::Bilinear,
            antialias: true,
        },
        Op::RandomHorizontalFlip { p: 0.5 },
        Op::ToTensor,
        Op::Normalize { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] },
    ])
}

/// The sum of some samples' 32-bit words: independent of order, the same as `benchmarks/contender.py` takes.
pub(crate) fn sum(slot: &[u8]) -> u64 {
    slot.chunks_exact(4).map(|word| u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))).sum()
}
