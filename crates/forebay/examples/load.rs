//! The loader without Python, for `make bench-profile` and `benchmarks/scaling.py`: the folder, transform and batches of
//! `make bench`, and what the loader takes of the machine for them: processor time, page faults, waits and allocations.
//!
//! `load FOLDER THREADS EPOCHS` prints one JSON line; `-` for EPOCHS: for each line it reads. Epoch 0 warms up. The clock
//! starts when what had been made ahead is used up, after the first batches of epoch 1. `starved_seconds` is how long the threads that decode had
//! nothing to decode, all of them together. Allocations are those of Rust and of the C libraries alike, by the threads
//! that make them: this program has its own `malloc`, which counts and then asks the C library's.

use std::path::Path;
use std::time::Instant;

use forebay::{Column, Config, Defaults, Error, Loader, Result, Source};

mod bench;
mod counted;
mod turns;

const USAGE: &str = "expected: load FOLDER THREADS EPOCHS";
/// More batches than are ever made ahead of the loop.
const MADE_AHEAD: u64 = 8;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [folder, threads, epochs] = arguments.as_slice() else { return Err(Error::config(USAGE)) };
    let number = |text: &str| text.parse::<usize>().map_err(|error| Error::config(USAGE).with_source(error));
    let threads = number(threads)?;
    let source = Source::image_folder(Path::new(folder), bench::pipeline()?)?;
    let defaults = Defaults::on(source.storage().mount.map(|mount| mount.kind), threads);
    let config = Config {
        batch_size: 64,
        shuffle: true,
        cpu_threads: threads,
        io_threads: defaults.io_threads,
        max_io_threads: defaults.max_io_threads,
        ..Config::default()
    };
    let loader = Loader::new(source, config)?;
    let mut hash = 0u64;
    for batch in loader.epoch()? {
        let batch = batch?;
        let (count, Column::Dense { mut buffer, layout }) = (batch.len(), batch.into_content()) else {
            return Err(Error::internal("a batch of one shape is expected"));
        };
        hash = hash.wrapping_add(bench::sum(&buffer.bytes()[..layout.size_bytes() * count]));
    }
    let starved = || loader.stats().decode.waiting.as_secs_f64();
    turns::take_turns(epochs, USAGE, |epochs| {
        let (mut batches, mut images) = (0, 0);
        let mut begun = None;
        for _ in 0..epochs {
            for batch in loader.epoch()? {
                images += batch?.len();
                batches += 1;
                if batches == MADE_AHEAD {
                    begun = Some((Instant::now(), turns::Usage::now(), counted::Counts::now(), starved()));
                    images = 0;
                }
            }
        }
        let (started, usage, counts, starved_before) = begun.ok_or_else(|| Error::config("has too few batches"))?;
        let (counts, usage, seconds) = (counts.since(), usage.since(), started.elapsed().as_secs_f64());
        let starved = starved() - starved_before;
        Ok(format!(
            concat!(
                r#"{{"images": {images}, "seconds": {seconds}, "starved_seconds": {starved:.6}, "#,
                r#"{usage}, {counts}, "hash": "{hash:016x}"}}"#
            ),
            images = images,
            seconds = seconds,
            starved = starved,
            usage = usage,
            counts = counts,
            hash = hash,
        ))
    })
}
