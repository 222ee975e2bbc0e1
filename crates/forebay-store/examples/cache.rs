//! What a hit of the cache costs: `cache [BYTES]` reads 200 files in turns, by themselves and from a cache in front of them,
//! all in the page cache, and prints the medians of the processor's time per file; then what keeping one costs.
//! `docs/cache.md` has a result.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement, not a product"
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_store::{Cache, CacheOptions, Cached, Local, Store};

const FILES: usize = 200;
const ROUNDS: usize = 41;

/// Of this thread: other work on the machine does not count.
fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn pass(store: &dyn Store, paths: &[PathBuf]) -> f64 {
    let (started, mut spare) = (processor_seconds(), Vec::new());
    for path in paths {
        let object = store.read(path, Duration::MAX, &mut |_| Ok(std::mem::take(&mut spare))).unwrap();
        spare = object.bytes.into_buffer();
    }
    (processor_seconds() - started) * 1e6 / paths.len() as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let bytes = std::env::args().nth(1).map_or(100_000, |argument| argument.parse::<usize>().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..FILES).map(|number| folder.path().join(format!("{number}.jpg"))).collect();
    for (number, path) in paths.iter().enumerate() {
        std::fs::write(path, (0..bytes).map(|at| (at * 31 + number) as u8).collect::<Vec<_>>()).unwrap();
    }
    let cache = Cache::open(&folder.path().join("cache"), CacheOptions::default()).unwrap();
    let cached = Cached::new(Arc::new(Local), Arc::clone(&cache));
    let kept = pass(&cached, &paths);
    let (mut plain, mut hits) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        plain.push(pass(&Local, &paths));
        hits.push(pass(&cached, &paths));
    }
    assert_eq!((cache.stats().hits, cache.stats().misses), ((ROUNDS * FILES) as u64, FILES as u64));
    let (plain, hit) = (median(plain), median(hits));
    println!(
        "{bytes} bytes: {plain:.1} us to read a file, {hit:.1} us to hit it in a cache ({:+.1} us, {:.1} us a MB more); \
         {kept:.1} us to read and keep it",
        hit - plain,
        (hit - plain) / bytes as f64 * 1e6
    );
}
