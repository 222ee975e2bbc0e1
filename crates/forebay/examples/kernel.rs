//! The bare kernels, for `make bench`: the decoding and the ops that the loader runs, on the same number of threads
//! and the same files, with nothing around them. What the loader loses against this is the loader's own cost.
//!
//! `kernel FOLDER THREADS EPOCHS [fast]` prints one JSON line; `-` for EPOCHS: for each line it reads; `fast` is
//! `decode="fast"`. The files are read into memory before the clock starts, and every thread writes into one slot again
//! and again, so there is no storage, no queue, no order and no batch in it.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay::{Dataset, Detail, Epoch, Error, Landmarks, Pipeline, Result, SampleId, Scratch, Source, Store};
use forebay_core::Rng;

mod bench;
mod turns;

const USAGE: &str = "expected: kernel FOLDER THREADS EPOCHS [fast]";

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (folder, threads, epochs, detail) = match arguments.as_slice() {
        [folder, threads, epochs] => (folder, threads, epochs, Detail::Faithful),
        [folder, threads, epochs, word] if word == "fast" => (folder, threads, epochs, Detail::Fast),
        _ => return Err(Error::config(USAGE)),
    };
    let number = |text: &str| text.parse::<u64>().map_err(|error| Error::config(USAGE).with_source(error));
    let pipeline = || bench::pipeline().map(|pipeline| pipeline.with_detail(detail));
    let (pipeline, source) = (pipeline()?, Source::image_folder(Path::new(folder), pipeline()?)?);
    let files = read(&*source.dataset, &*source.store)?;
    let mut kernels = Kernels::new(&pipeline, &files, number(threads)?)?;
    let hash = kernels.pass(1, true)?;
    turns::take_turns(epochs, USAGE, |epochs| {
        let (started, usage) = (Instant::now(), turns::Usage::now());
        kernels.pass(epochs, false)?;
        let (seconds, usage) = (started.elapsed().as_secs_f64(), usage.since());
        let images = files.len() as u64 * epochs;
        Ok(format!(r#"{{"images": {images}, "seconds": {seconds}, {usage}, "hash": "{hash:016x}"}}"#))
    })
}

fn read(dataset: &dyn Dataset, store: &dyn Store) -> Result<Vec<Vec<u8>>> {
    let one = |sample| {
        store
            .read(&dataset.path(SampleId(sample)), Duration::MAX, &mut |_| Ok(Vec::new()))
            .map(|object| object.bytes.to_vec())
    };
    (0..dataset.len()).map(one).collect()
}

/// Threads that decode the same files in each epoch.
struct Kernels<'a> {
    pipeline: &'a Pipeline,
    files: &'a [Vec<u8>],
    landmarks: Vec<Mutex<Landmarks>>,
    threads: u64,
    size_bytes: usize,
    /// The samples that were decoded so far, in all epochs.
    done: u64,
}

impl<'a> Kernels<'a> {
    fn new(pipeline: &'a Pipeline, files: &'a [Vec<u8>], threads: u64) -> Result<Self> {
        let size_bytes = pipeline.layout().ok_or_else(|| Error::config(USAGE))?.size_bytes();
        let landmarks = files.iter().map(|_| Mutex::default()).collect();
        Ok(Self { pipeline, files, landmarks, threads, size_bytes, done: 0 })
    }

    /// So many epochs; all threads take the next sample from one counter until there is none. Gives a hash of what came
    /// out, if it is wanted.
    fn pass(&mut self, epochs: u64, is_hashed: bool) -> Result<u64> {
        let next = AtomicU64::new(self.done);
        self.done += epochs * self.files.len() as u64;
        let work = || self.work(&next, is_hashed);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads).map(|_| scope.spawn(work)).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<u64>>| {
                thread.join().map_err(|_| Error::internal("a thread panicked"))?
            };
            workers.into_iter().try_fold(0u64, |hash, thread| Ok(hash.wrapping_add(join(thread)?)))
        })
    }

    fn work(&self, next: &AtomicU64, is_hashed: bool) -> Result<u64> {
        let count = self.files.len() as u64;
        let (mut scratch, mut slot, mut hash) = (Scratch::default(), vec![0; self.size_bytes], 0u64);
        loop {
            let at = next.fetch_add(1, Relaxed);
            if at >= self.done {
                return Ok(hash);
            }
            let rng = Rng::for_sample(0, Epoch(at / count), SampleId(at % count));
            let file = (at % count) as usize;
            // None of them is decoded by two threads at once, unless there are more threads than files.
            let mut known = self.landmarks[file].lock().map_err(|_| Error::internal("a thread panicked"))?;
            scratch.lend(std::mem::take(&mut *known));
            self.pipeline.run_into(&self.files[file], &rng, &mut scratch, &mut slot)?;
            *known = scratch.take_back().unwrap_or_default();
            if is_hashed {
                hash = hash.wrapping_add(bench::sum(&slot));
            }
        }
    }
}
