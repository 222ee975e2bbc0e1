//! The bare kernels, for `make bench`: the decoding and the ops that the loader runs, on the same number of threads
//! and the same files, with nothing around them. What the loader loses against this is the loader's own cost.
//!
//! `kernel FOLDER THREADS EPOCHS [fast]` prints one JSON line; `fast` is `decode="fast"`. The files are read into memory before the clock starts, and
//! every thread writes into one slot again and again, so there is no storage, no queue, no order and no batch in it.

use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay::{Dataset, Detail, Epoch, Error, Landmarks, Pipeline, Result, SampleId, Scratch, Source, Store};
use forebay_core::Rng;

mod bench;

const USAGE: &str = "expected: kernel FOLDER THREADS EPOCHS [fast]";

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (folder, threads, epochs, detail) = match arguments.as_slice() {
        [folder, threads, epochs] => (folder, threads, epochs, Detail::Faithful),
        [folder, threads, epochs, word] if word == "fast" => (folder, threads, epochs, Detail::Fast),
        _ => return Err(Error::config(USAGE)),
    };
    let number = |text: &str| text.parse::<u64>().map_err(|error| Error::config(USAGE).with_source(error));
    let source = Source::image_folder(Path::new(folder), bench::pipeline()?.with_detail(detail))?;
    let files = read(&*source.dataset, &*source.store)?;
    let (seconds, usage, hash) = measure(&source.pipeline, &files, number(threads)?, number(epochs)?)?;
    let images = files.len() as u64 * number(epochs)?;
    writeln!(std::io::stdout(), r#"{{"images": {images}, "seconds": {seconds}, {usage}, "hash": "{hash:016x}"}}"#)
        .map_err(|error| Error::io("written to", error))
}

fn read(dataset: &dyn Dataset, store: &dyn Store) -> Result<Vec<Vec<u8>>> {
    let one = |sample| {
        store
            .read(&dataset.path(SampleId(sample)), Duration::MAX, &mut |_| Ok(Vec::new()))
            .map(|object| object.bytes.to_vec())
    };
    (0..dataset.len()).map(one).collect()
}

/// All threads take the next sample from one counter until there is none. Epoch 0 warms up caches and frequency, and
/// its result is hashed; the others are timed. Gives the time, what they took, and the hash.
fn measure(pipeline: &Pipeline, files: &[Vec<u8>], threads: u64, epochs: u64) -> Result<(f64, String, u64)> {
    let size_bytes = pipeline.layout().ok_or_else(|| Error::config(USAGE))?.size_bytes();
    let count = files.len() as u64;
    let landmarks: Vec<_> = files.iter().map(|_| Mutex::new(Landmarks::default())).collect();
    let pass = |from: u64, to: u64, is_hashed: bool| -> Result<u64> {
        let next = AtomicU64::new(from * count);
        let work = || -> Result<u64> {
            let (mut scratch, mut slot, mut hash) = (Scratch::default(), vec![0; size_bytes], 0u64);
            loop {
                let at = next.fetch_add(1, Relaxed);
                if at >= to * count {
                    return Ok(hash);
                }
                let rng = Rng::for_sample(0, Epoch(at / count), SampleId(at % count));
                let file = (at % count) as usize;
                // None of them is decoded by two threads at once, unless there are more threads than files.
                let mut known = landmarks[file].lock().map_err(|_| Error::internal("a thread panicked"))?;
                scratch.lend(std::mem::take(&mut *known));
                pipeline.run_into(&files[file], &rng, &mut scratch, &mut slot)?;
                *known = scratch.take_back().unwrap_or_default();
                if is_hashed {
                    hash = hash.wrapping_add(bench::sum(&slot));
                }
            }
        };
        std::thread::scope(|scope| {
            let crew: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<u64>>| {
                thread.join().map_err(|_| Error::internal("a thread panicked"))?
            };
            crew.into_iter().try_fold(0u64, |hash, thread| Ok(hash.wrapping_add(join(thread)?)))
        })
    };
    let hash = pass(0, 1, true)?;
    let (started, usage) = (Instant::now(), bench::Usage::now());
    pass(1, 1 + epochs, false)?;
    Ok((started.elapsed().as_secs_f64(), usage.since(), hash))
}
