//! The loader without Python, for `make bench-profile` and `benchmarks/scaling.py`: the folder, transform and batches of
//! `make bench`, and what the loader takes of the machine for them: processor time, page faults, waits and allocations.
//!
//! `load FOLDER THREADS EPOCHS` prints one JSON line. Epoch 0 warms up; what comes after it is counted. `starved_seconds`
//! is how long the threads that decode had nothing to decode, all of them together. Allocations are
//! those of Rust and of the C libraries alike, by the threads that make them: this program has its own `malloc`, which
//! counts and then asks the C library's.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use forebay::{Config, Defaults, Error, Loader, Payload, Result, Source};

mod bench;
mod counted;

const USAGE: &str = "expected: load FOLDER THREADS EPOCHS";

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [folder, threads, epochs] = arguments.as_slice() else { return Err(Error::config(USAGE)) };
    let number = |text: &str| text.parse::<usize>().map_err(|error| Error::config(USAGE).with_source(error));
    let (threads, epochs) = (number(threads)?, number(epochs)?);
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
        let (count, Payload::Dense { mut buffer, layout }) = (batch.labels.len(), batch.payload) else {
            return Err(Error::internal("a batch of one shape is expected"));
        };
        hash = hash.wrapping_add(bench::sum(&buffer.bytes()[..layout.size_bytes() * count]));
    }
    let starved = || loader.stats().decode.waiting.as_secs_f64();
    let starved_before = starved();
    let (started, usage, counts) = (Instant::now(), bench::Usage::now(), counted::Counts::now());
    let mut images = 0;
    for _ in 0..epochs {
        for batch in loader.epoch()? {
            images += batch?.len();
        }
    }
    let (counts, usage, seconds) = (counts.since(), usage.since(), started.elapsed().as_secs_f64());
    let starved = starved() - starved_before;
    writeln!(
        std::io::stdout(),
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
    )
    .map_err(|error| Error::io("written to", error))
}
