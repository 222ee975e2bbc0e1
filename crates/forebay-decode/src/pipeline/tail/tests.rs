//! The vectors against the tables.

use super::*;

/// What memory is written in.
const LINE_BYTES: usize = 64;

fn check<T: Stored>(image: &Image, formula: &Formula, tables: &[[T; 256]]) {
    for order in [Order::Planar, Order::Interleaved] {
        for (mirrored, upside_down) in [(false, false), (true, false), (false, true), (true, true)] {
            let walk = Walk { mirrored, upside_down };
            let mut expected = vec![0; image.pixels.len() * size_of::<T>()];
            portable::write(image, tables, order, walk, &mut expected);
            let (width, height) = (image.width, image.height);
            // At the start of a line of memory, where lines can be streamed, and beside it.
            for (past_caches, offset) in [(false, 1), (true, 0), (true, 4)] {
                let mut got = vec![1; expected.len() + 2 * LINE_BYTES];
                let start = got.as_ptr().align_offset(LINE_BYTES) + offset;
                simd::write(image, formula, tables, order, walk, past_caches, &mut got[start..][..expected.len()]);
                assert!(
                    got[start..][..expected.len()] == expected,
                    "{width}×{height} {order:?} {walk:?} as {:?} by {formula:?}, past caches: {past_caches}",
                    T::DTYPE
                );
                let around = [&got[..start], &got[start + expected.len()..]].concat();
                assert!(around.iter().all(|byte| *byte == 1), "it wrote beside its slot");
            }
        }
    }
}

#[test]
fn vectors_equal_the_tables() {
    if !simd::is_available() {
        return;
    }
    let normalize = |mean: [f32; 3], std: [f32; 3]| Pointwise::Normalize { mean: mean.into(), std: std.into() };
    let imagenet = || normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    // Results that are subnormal, and too large, as floats of 16 bits.
    let extreme = || normalize([0.0, 0.5, -1e6], [3e4, 1e-4, 2.0]);
    for chain in [
        vec![],
        vec![Pointwise::Float],
        vec![Pointwise::Unit, imagenet()],
        vec![Pointwise::Scaled, imagenet()],
        vec![Pointwise::Unit, extreme()],
    ] {
        let lookup = Lookup::new(&chain, 3);
        let formula = Formula::new(&chain, &lookup).unwrap();
        for (width, height) in [(1, 1), (7, 3), (8, 2), (9, 2), (16, 1), (67, 29), (64, 3)] {
            let pixels: Vec<u8> = (0..width * height * 3).map(|at| (at * 89 % 256) as u8).collect();
            let image = Image { width, height, channels: 3, pixels };
            for dtype in [Dtype::U8, Dtype::F32, Dtype::F16, Dtype::BF16] {
                match lookup.stored_as(dtype) {
                    Lookup::U8(tables) => check(&image, &formula, &tables),
                    Lookup::F32(tables) => check(&image, &formula, &tables),
                    Lookup::F16(tables) => check(&image, &formula, &tables),
                    Lookup::BF16(tables) => check(&image, &formula, &tables),
                }
            }
        }
    }
}
