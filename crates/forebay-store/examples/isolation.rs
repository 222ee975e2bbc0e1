//! What reading through another process costs: `isolation [BYTES] [THREADS]` reads 200 files in turns, here and there,
//! and prints the median of the times per file. `docs/decisions/0010-reader-processes.md` has a result.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement, not a product"
)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_store::{Isolated, Local, Store};

const FILES: usize = 200;
const ROUNDS: usize = 41;

fn pass(store: &dyn Store, paths: &[PathBuf], threads: usize) -> Duration {
    let started = Instant::now();
    std::thread::scope(|scope| {
        for share in paths.chunks(paths.len().div_ceil(threads)) {
            scope.spawn(move || {
                let mut spare = Vec::new();
                for path in share {
                    let object = store.read(path, Duration::MAX, &mut |_| Ok(std::mem::take(&mut spare))).unwrap();
                    spare = std::hint::black_box(object.bytes);
                }
            });
        }
    });
    started.elapsed()
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>().unwrap());
    let (bytes, threads) = (arguments.next().unwrap_or(100_000), arguments.next().unwrap_or(1));
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..FILES).map(|number| folder.path().join(format!("{number}.jpg"))).collect();
    paths.iter().for_each(|path| std::fs::write(path, vec![7; bytes]).unwrap());
    let isolated = Isolated::new(threads, Duration::from_secs(60));
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (store, times) in [&Local as &dyn Store, &isolated].into_iter().zip(&mut times) {
            times.push(pass(store, &paths, threads));
        }
    }
    let [here, there] = times.map(|mut times| {
        times.sort_unstable();
        times[ROUNDS / 2].as_secs_f64() * 1e6 / FILES as f64
    });
    println!(
        "{bytes} bytes, {threads} threads: {here:.1} us a file here, {there:.1} us there, {:+.1} us",
        there - here
    );
}
