//! A parallel walk that only counts, for `make bench-scan`: what `find -type f` does, on several threads. It sorts
//! nothing, keeps nothing and follows no link, so a scan can hardly be faster.
//!
//! `walk FOLDER THREADS` prints one JSON line.

#![allow(clippy::disallowed_methods, reason = "it is compared with what touches the disk")]

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use forebay::{Error, Result};

const USAGE: &str = "expected: walk FOLDER THREADS";

/// Directories that nobody has begun with, and how many threads may still bring others.
struct Queue {
    waiting: Vec<PathBuf>,
    busy: usize,
}

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [folder, threads] = arguments.as_slice() else { return Err(Error::config(USAGE)) };
    let threads: usize = threads.parse().map_err(|error| Error::config(USAGE).with_source(error))?;
    let started = Instant::now();
    let queue = Mutex::new(Queue { waiting: vec![folder.into()], busy: 0 });
    let changed = Condvar::new();
    let files: u64 = std::thread::scope(|scope| {
        let crew: Vec<_> = (0..threads).map(|_| scope.spawn(|| work(&queue, &changed))).collect();
        crew.into_iter().map(|thread| thread.join().expect("a thread ends without panic")).sum::<Result<u64>>()
    })?;
    let seconds = started.elapsed().as_secs_f64();
    writeln!(std::io::stdout(), r#"{{"files": {files}, "seconds": {seconds}}}"#)
        .map_err(|error| Error::io("written to", error))
}

fn work(queue: &Mutex<Queue>, changed: &Condvar) -> Result<u64> {
    let lock = || queue.lock().unwrap_or_else(PoisonError::into_inner);
    let mut files = 0;
    let mut state = lock();
    loop {
        if let Some(directory) = state.waiting.pop() {
            state.busy += 1;
            drop(state);
            let walked = walk(&directory, &mut files);
            state = lock();
            state.busy -= 1;
            changed.notify_all();
            state.waiting.append(&mut walked.map_err(|error| Error::io("listed", error).at_path(&directory))?);
        } else if state.busy > 0 {
            state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        } else {
            return Ok(files);
        }
    }
}

fn walk(directory: &PathBuf, files: &mut u64) -> std::io::Result<Vec<PathBuf>> {
    let mut below = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            below.push(entry.path());
        }
        *files += u64::from(kind.is_file());
    }
    Ok(below)
}
