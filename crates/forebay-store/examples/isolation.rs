//! What reading through another process costs: `isolation [BYTES] [THREADS]` reads 200 files in turns, here and there,
//! and prints the median of the times per file, and the processor's time per file, that of the readers included.
//! Whatever is read is looked at, as a decoder would. `docs/decisions/0010-reader-processes.md` has a result.

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
                    std::hint::black_box(sum(&object.bytes));
                    spare = object.bytes.into_buffer();
                }
            });
        }
    });
    started.elapsed()
}

/// Touches every cache line.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(64).map(|&byte| u64::from(byte)).sum()
}

/// Seconds of processor time, in user code and in the kernel.
fn processor_seconds(who: i32) -> f64 {
    // SAFETY: an all-zero rusage is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is writable.
    assert_eq!(unsafe { libc::getrusage(who, &mut usage) }, 0);
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>().unwrap());
    let (bytes, threads) = (arguments.next().unwrap_or(100_000), arguments.next().unwrap_or(1));
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..FILES).map(|number| folder.path().join(format!("{number}.jpg"))).collect();
    paths.iter().for_each(|path| std::fs::write(path, vec![7; bytes]).unwrap());
    let isolated = Isolated::new(threads, Duration::from_secs(60));
    let (mut times, mut processor) = ([Vec::new(), Vec::new()], [0.0; 2]);
    for _ in 0..ROUNDS {
        for (at, store) in [&Local as &dyn Store, &isolated].into_iter().enumerate() {
            let before = processor_seconds(libc::RUSAGE_SELF);
            times[at].push(pass(store, &paths, threads));
            processor[at] += processor_seconds(libc::RUSAGE_SELF) - before;
        }
    }
    drop(isolated);
    processor[1] += processor_seconds(libc::RUSAGE_CHILDREN);
    let [here_cpu, there_cpu] = processor.map(|seconds| seconds * 1e6 / (ROUNDS * FILES) as f64);
    let [here, there] = times.map(|mut times| {
        times.sort_unstable();
        times[ROUNDS / 2].as_secs_f64() * 1e6 / FILES as f64
    });
    println!(
        "{bytes} bytes, {threads} threads: {here:.1} us a file here, {there:.1} us there, {:+.1} us; processor time {here_cpu:.1} us \
         here, {there_cpu:.1} us there, {:+.1} us",
        there - here,
        there_cpu - here_cpu
    );
}
