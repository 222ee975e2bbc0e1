//! `Detail::Fast` against all of a picture's detail: nearly the same pixels, and exactly the same verdicts.

use forebay_core::{Epoch, Result, Rng, SampleId};
use forebay_decode::{Detail, Interpolation, Op, Pipeline, ResizeTo, Scratch, Size, Value};

use crate::decode::pictures;

pub(crate) fn resize(size: ResizeTo, interpolation: Interpolation) -> Op {
    Op::Resize { size, interpolation, max_size: None, antialias: true }
}

pub(crate) fn resized_crop(edge: u32) -> Op {
    let interpolation = Interpolation::Bilinear;
    let (scale, ratio) = ((0.08, 1.0), (0.75, 4.0 / 3.0));
    Op::RandomResizedCrop { size: edge.into(), scale, ratio, interpolation, antialias: true }
}

/// Pipelines that resize, in which each size of blocks has its turn.
fn resizing() -> Vec<Vec<Op>> {
    let mut all: Vec<_> = [3, 5, 11, 40].map(|edge| vec![resized_crop(edge)]).into();
    for interpolation in [Interpolation::Bilinear, Interpolation::Bicubic, Interpolation::Lanczos] {
        for edge in [3, 7, 14, 26, 50] {
            all.push(vec![resize(ResizeTo::Edge(edge), interpolation)]);
            all.push(vec![resize(ResizeTo::Edge(edge), interpolation), Op::CenterCrop { size: (edge * 3 / 4).into() }]);
        }
        all.push(vec![resize(ResizeTo::Exact(Size { height: 28, width: 2 }), interpolation)]);
    }
    all
}

fn run(ops: &[Op], detail: Detail, bytes: &[u8], sample: u64, scratch: &mut Scratch) -> Result<Vec<u8>> {
    let pipeline = Pipeline::new(ops.to_vec())?.with_detail(detail);
    let rng = Rng::for_sample(5, Epoch(2), SampleId(sample));
    match pipeline.run(bytes, &rng, scratch)?.0 {
        Value::Image(image) => {
            assert_eq!(image.pixels.len(), image.width as usize * image.height as usize * 3);
            Ok([&image.width.to_le_bytes()[..], &image.height.to_le_bytes(), &image.pixels].concat())
        }
        other => panic!("{other:?}"),
    }
}

/// Whether a picture is stored as luma and chroma, complete, in blocks.
fn has_planes(name: &str) -> bool {
    let others = ["cmyk", "ycck", "rgb", "lossless", "coarse"];
    name.ends_with(".jpg") && !others.iter().any(|other| name.contains(other))
}

#[test]
fn only_resized_jpegs_of_luma_and_chroma_change_and_those_little() {
    let mut scratch = Scratch::default();
    let mut tables = Vec::new();
    for (name, bytes, _) in pictures() {
        let (mut squares, mut count, mut sum) = (0.0, 0.0, 0.0);
        for (sample, ops) in resizing().iter().enumerate() {
            let mut made = |detail| run(ops, detail, &bytes, sample as u64, &mut scratch).unwrap();
            let (faithful, fast) = (made(Detail::Faithful), made(Detail::Fast));
            assert_eq!(fast.len(), faithful.len(), "{name}: {ops:?}");
            if !has_planes(&name) {
                assert!(fast == faithful, "{name}: {ops:?}");
                continue;
            }
            for (a, b) in fast.iter().zip(&faithful) {
                let difference = f64::from(*a) - f64::from(*b);
                (squares, sum, count) = (squares + difference * difference, sum + difference, count + 1.0);
            }
        }
        if has_planes(&name) {
            assert!(squares > 0.0, "{name} was not decoded as planes");
            tables.push((name, 10.0 * (255.0 * 255.0 * count / squares).log10(), sum / count));
        }
    }
    assert!(tables.len() > 15);
    // These pictures are small and steep: photographs have 48 dB (docs/decode.md).
    assert!(tables.iter().all(|(_, decibels, bias)| *decibels > 30.0 && bias.abs() < 0.5), "{tables:#?}");
}

#[test]
fn what_is_not_resized_or_takes_single_pixels_is_as_ever() {
    let mut scratch = Scratch::default();
    let as_ever = [
        vec![],
        vec![Op::CenterCrop { size: 20.into() }],
        vec![resize(ResizeTo::Exact(Size { height: 29, width: 37 }), Interpolation::Bilinear)],
        vec![resize(ResizeTo::Edge(9), Interpolation::Nearest)],
        vec![Op::RandomHorizontalFlip { p: 1.0 }, resize(ResizeTo::Edge(9), Interpolation::Bilinear)],
    ];
    for (name, bytes, _) in pictures().into_iter().filter(|(name, ..)| has_planes(name) && !name.starts_with("large")) {
        for ops in &as_ever {
            let mut made = |detail| run(ops, detail, &bytes, 1, &mut scratch).unwrap();
            assert!(made(Detail::Fast) == made(Detail::Faithful), "{name}: {ops:?}");
        }
    }
}

/// Whatever was decoded before, and whichever way, leaves no trace.
#[test]
fn results_depend_on_nothing_but_the_picture() {
    let pictures = pictures();
    let mut used = Scratch::default();
    for round in 0..3 {
        for (name, bytes, _) in pictures.iter().filter(|(name, ..)| name.ends_with(".jpg")) {
            let ops = vec![resized_crop(9 + 4 * round)];
            let detail = if (name.len() + round as usize).is_multiple_of(3) { Detail::Faithful } else { Detail::Fast };
            let fresh = run(&ops, detail, bytes, 3, &mut Scratch::default()).unwrap();
            assert!(run(&ops, detail, bytes, 3, &mut used).unwrap() == fresh, "{name}");
        }
    }
}

/// A cut is always found, and so is other damage exactly where it is found with all detail.
#[test]
fn damage_is_found_as_with_all_detail() {
    let (mut fast_scratch, mut faithful_scratch) = (Scratch::default(), Scratch::default());
    let (mut failed, mut succeeded) = (0, 0);
    let words = |result: Result<Vec<u8>>| {
        result.map(drop).map_err(|error| (error.kind(), error.stage(), error.detail().map(str::to_owned)))
    };
    let mut state = 1u64;
    for (name, bytes, _) in pictures().into_iter().filter(|(name, ..)| has_planes(name)) {
        for trial in 0..300 {
            let mut damaged = bytes.clone();
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % (bytes.len() - 2) + 2;
            match trial % 3 {
                0 => damaged.truncate(at),
                1 => damaged[at] ^= 1 << (state >> 20 & 7),
                _ => damaged[at] = (state >> 24) as u8,
            }
            let ops = if trial % 2 == 0 {
                vec![resized_crop(8)]
            } else {
                vec![resize(ResizeTo::Edge(12), Interpolation::Bilinear)]
            };
            let faithful = words(run(&ops, Detail::Faithful, &damaged, trial, &mut faithful_scratch));
            let fast = words(run(&ops, Detail::Fast, &damaged, trial, &mut fast_scratch));
            assert!(fast == faithful, "{name}, trial {trial}: {fast:?} for {faithful:?}");
            assert!(trial % 3 != 0 || fast.is_err(), "{name}: a cut at {at} was not found");
            *(if fast.is_ok() { &mut succeeded } else { &mut failed }) += 1;
        }
    }
    assert!(failed > 1000 && succeeded > 100, "{failed} and {succeeded}");
}
