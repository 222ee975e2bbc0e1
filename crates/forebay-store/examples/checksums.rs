//! What it costs to verify an object: milliseconds for 100 KB, the best of some rounds, one JSON line.

#![allow(clippy::print_stdout, reason = "a measurement")]

use std::hint::black_box;
use std::time::Instant;

use crc_fast::{CrcAlgorithm, checksum};
use md5::{Digest as _, Md5};

/// The best of so many rounds: others are those in which somebody else had the processor.
const ROUNDS: u32 = 2_000;

fn milliseconds(mut add_up: impl FnMut()) -> f64 {
    let best = (0..ROUNDS).map(|_| {
        let started = Instant::now();
        add_up();
        started.elapsed()
    });
    best.min().map_or(0.0, |best| best.as_secs_f64() * 1e3)
}

fn main() {
    let object: Vec<u8> = (0..100_000_u32).map(|number| (number.wrapping_mul(number) >> 7) as u8).collect();
    let md5 = milliseconds(|| {
        black_box(Md5::digest(black_box(&object)));
    });
    let crc = |algorithm| {
        milliseconds(|| {
            black_box(checksum(algorithm, black_box(&object)));
        })
    };
    let (crc32c, crc64) = (crc(CrcAlgorithm::Crc32Iscsi), crc(CrcAlgorithm::Crc64Nvme));
    println!(r#"{{"bytes": 100000, "md5_ms": {md5:.4}, "crc32c_ms": {crc32c:.4}, "crc64nvme_ms": {crc64:.4}}}"#);
}
