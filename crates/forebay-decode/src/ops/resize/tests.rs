//! The vector passes against the portable ones, and a part of the result against all of it.

use super::*;

/// A picture of noise: every mistake shows.
fn noise(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as u8
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn size(width: u32, height: u32) -> Size {
    Size { height, width }
}

fn run(pixels: &[u8], channels: usize, job: &Job, portable_only: bool) -> Vec<u8> {
    let mut resampler = Resampler { portable_only, ..Resampler::default() };
    let stride = job.from.width as usize * channels;
    let mut out = Vec::new();
    resampler.run(Source { pixels, stride, channels, origin: (0, 0) }, job, &mut out).unwrap();
    out
}

const FILTERS: [Interpolation; 6] = [
    Interpolation::Nearest,
    Interpolation::Bilinear,
    Interpolation::Bicubic,
    Interpolation::Box,
    Interpolation::Hamming,
    Interpolation::Lanczos,
];

const SIZES: [(u32, u32, u32, u32); 12] = [
    (97, 61, 24, 31),
    (31, 24, 97, 61),
    (1, 1, 7, 5),
    (1, 1, 40, 40),
    (2, 300, 30, 3),
    (300, 2, 3, 30),
    (64, 64, 64, 17),
    (64, 64, 17, 64),
    (33, 47, 32, 46),
    (5, 9, 1, 1),
    (500, 375, 224, 224),
    (100, 80, 224, 224),
];

#[test]
fn vector_passes_equal_the_portable_ones() {
    for (seed, (width, height, to_width, to_height)) in SIZES.into_iter().enumerate() {
        for filter in FILTERS {
            for channels in [1, 3] {
                let pixels = noise(width as usize * height as usize * channels, seed as u32 + 1);
                let job = Job::whole(size(width, height), size(to_width, to_height), filter);
                let (vector, portable) = (run(&pixels, channels, &job, false), run(&pixels, channels, &job, true));
                assert!(vector == portable, "{job:?} differs with {channels} channels");
            }
        }
    }
}

#[test]
fn part_of_the_result_needs_only_part_of_the_picture() {
    for (seed, (width, height, to_width, to_height)) in SIZES.into_iter().enumerate() {
        for filter in FILTERS {
            let pixels = noise(width as usize * height as usize * 3, seed as u32 + 1);
            let mut job = Job::whole(size(width, height), size(to_width, to_height), filter);
            let whole = run(&pixels, 3, &job, false);
            let (third, quarter) = (to_width as usize / 3, to_height as usize / 4);
            job.columns = third..to_width as usize - third;
            job.rows = quarter..to_height as usize - quarter;
            let mut resampler = Resampler::default();
            let (columns, rows) = resampler.needed(&job).unwrap();
            // Nothing but the needed rectangle exists.
            let part: Vec<u8> = rows
                .clone()
                .flat_map(|y| &pixels[(y * width as usize + columns.start) * 3..][..columns.len() * 3])
                .copied()
                .collect();
            let source =
                Source { pixels: &part, stride: columns.len() * 3, channels: 3, origin: (columns.start, rows.start) };
            let mut out = Vec::new();
            resampler.run(source, &job, &mut out).unwrap();
            let expected: Vec<u8> = job
                .rows
                .clone()
                .flat_map(|y| &whole[(y * to_width as usize + job.columns.start) * 3..][..job.columns.len() * 3])
                .copied()
                .collect();
            assert!(out == expected, "{job:?} differs");
        }
    }
}

#[test]
fn target_follows_torchvision() {
    let of = |to, max_size, width, height| {
        let size = target(to, max_size, width, height).unwrap();
        (size.width, size.height)
    };
    assert_eq!(of(ResizeTo::Edge(256), None, 500, 375), (341, 256));
    assert_eq!(of(ResizeTo::Edge(256), None, 375, 500), (256, 341));
    assert_eq!(of(ResizeTo::Edge(256), Some(300), 500, 375), (300, 225));
    assert_eq!(of(ResizeTo::LongEdge, Some(100), 500, 375), (100, 75));
    assert_eq!(of(ResizeTo::Exact(size(7, 9)), None, 500, 375), (7, 9));
    assert!(target(ResizeTo::LongEdge, Some(10), 5000, 20).unwrap_err().is_sample_local());
    assert!(target(ResizeTo::Edge(256), None, 1, 60_000).unwrap_err().message().contains("too large"));
}
