//! A parallel walk, for `make bench-scan`: what `find -type f` does, on several threads. It only counts, so a scan can
//! hardly be faster; or it keeps the paths, unsorted, as `find` prints them. It follows no link.
//!
//! `walk FOLDER THREADS [keep]` prints one JSON line.

#![allow(clippy::disallowed_methods, reason = "it is compared with what touches the disk")]

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use forebay::{Error, Result};

const USAGE: &str = "expected: walk FOLDER THREADS [keep]";

/// Directories that nobody has begun with, and how many threads may still bring others.
struct Queue {
    waiting: Vec<PathBuf>,
    busy: usize,
}

/// What was found: files, and their paths if they are kept.
#[derive(Default)]
struct Found {
    files: u64,
    paths: Vec<PathBuf>,
}

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (folder, threads, is_keeping) = match arguments.as_slice() {
        [folder, threads] => (folder, threads, false),
        [folder, threads, word] if word == "keep" => (folder, threads, true),
        _ => return Err(Error::config(USAGE)),
    };
    let threads: usize = threads.parse().map_err(|error| Error::config(USAGE).with_source(error))?;
    let started = Instant::now();
    let queue = Mutex::new(Queue { waiting: vec![folder.into()], busy: 0 });
    let changed = Condvar::new();
    let mut found = Found::default();
    std::thread::scope(|scope| {
        let work = || work(&queue, &changed, is_keeping);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|thread| {
            let mut more = thread.join().expect("a thread ends without panic")?;
            found.files += more.files;
            found.paths.append(&mut more.paths);
            Ok(())
        })
    })?;
    let (files, seconds) = (found.files, started.elapsed().as_secs_f64());
    writeln!(std::io::stdout(), r#"{{"files": {files}, "seconds": {seconds}}}"#)
        .map_err(|error| Error::io("written to", error))
}

fn work(queue: &Mutex<Queue>, changed: &Condvar, is_keeping: bool) -> Result<Found> {
    let lock = || queue.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found = Found::default();
    let mut state = lock();
    loop {
        if let Some(directory) = state.waiting.pop() {
            state.busy += 1;
            drop(state);
            let walked = walk(&directory, is_keeping, &mut found);
            state = lock();
            state.busy -= 1;
            changed.notify_all();
            state.waiting.append(&mut walked.map_err(|error| Error::io("listed", error).at_path(&directory))?);
        } else if state.busy > 0 {
            state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        } else {
            return Ok(found);
        }
    }
}

fn walk(directory: &PathBuf, is_keeping: bool, found: &mut Found) -> std::io::Result<Vec<PathBuf>> {
    let mut below = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            below.push(entry.path());
        }
        if kind.is_file() {
            found.files += 1;
            if is_keeping {
                found.paths.push(entry.path());
            }
        }
    }
    Ok(below)
}
