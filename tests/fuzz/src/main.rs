//! Runs a target on files, and on mutations of them: `replay TARGET MUTATIONS MAX_SECONDS MAX_MEGABYTES FAILED PATH…`.
//!
//! Each input has MAX_SECONDS, the process MAX_MEGABYTES of address space. The input at hand lies in the file FAILED, which
//! is removed at the end: what remains there after a crash reproduces it. Prints how many inputs were run.

#![allow(clippy::disallowed_methods, reason = "a program of the tests, which reads files and starts a thread")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "what it is for")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, process, thread};

use fuzztargets::{Mutations, Target};

const USAGE: &str = "expected: replay TARGET MUTATIONS MAX_SECONDS MAX_MEGABYTES FAILED PATH...";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [target, mutations, seconds, megabytes, failed, paths @ ..] = arguments.as_slice() else { stop(USAGE) };
    let target = fuzztargets::find(target).unwrap_or_else(|| stop(&format!("there is no target {target:?}")));
    let [mutations, seconds, megabytes] =
        [mutations, seconds, megabytes].map(|number| number.parse::<u64>().unwrap_or_else(|_| stop(USAGE)));
    limit_memory(megabytes << 20);
    if target.may_panic {
        // What is caught is not told.
        std::panic::set_hook(Box::new(|_| ()));
    }
    let failed = PathBuf::from(failed);
    let inputs: Vec<Vec<u8>> = paths.iter().flat_map(|path| read(Path::new(path))).collect();
    let count = replay(target, &inputs, mutations, seconds, &failed);
    fs::remove_file(&failed).unwrap_or_else(|error| stop(&format!("{failed:?} cannot be removed: {error}")));
    println!("{}: {} files, {count} inputs", target.name, inputs.len());
}

fn stop(message: &str) -> ! {
    eprintln!("replay: {message}");
    process::exit(2);
}

/// A file, or the files of a folder in the order of their names.
fn read(path: &Path) -> Vec<Vec<u8>> {
    let problem = |error| stop(&format!("{} cannot be read: {error}", path.display()));
    if !path.is_dir() {
        return vec![fs::read(path).unwrap_or_else(problem)];
    }
    let entries = fs::read_dir(path).unwrap_or_else(|error| stop(&format!("{}: {error}", path.display())));
    let mut paths: Vec<_> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    paths.sort();
    paths.iter().flat_map(|path| read(path)).collect()
}

/// Number of the input at hand, for the thread that looks at the time; odd while it runs.
static TURN: AtomicU64 = AtomicU64::new(0);

fn replay(target: &Target, inputs: &[Vec<u8>], mutations: u64, seconds: u64, failed: &Path) -> u64 {
    let name = failed.to_owned();
    thread::spawn(move || watch(Duration::from_secs(seconds), &name));
    let mut count = 0;
    let mut run = |bytes: &[u8]| {
        fs::write(failed, bytes).unwrap_or_else(|error| stop(&format!("{failed:?} cannot be written: {error}")));
        TURN.fetch_add(1, Ordering::SeqCst);
        (target.run)(bytes);
        TURN.fetch_add(1, Ordering::SeqCst);
        count += 1;
    };
    inputs.iter().for_each(|input| run(input));
    for (number, input) in inputs.iter().enumerate() {
        let mut made = Mutations::new(number as u64);
        for turn in 0..mutations as usize {
            run(&made.of(input, &inputs[(number + turn) % inputs.len()]));
        }
    }
    count
}

/// Ends the process when an input takes too long.
fn watch(limit: Duration, failed: &Path) {
    let (mut turn, mut since) = (0, Instant::now());
    loop {
        thread::sleep(Duration::from_millis(50));
        let now = TURN.load(Ordering::SeqCst);
        if now != turn || now.is_multiple_of(2) {
            (turn, since) = (now, Instant::now());
        } else if since.elapsed() > limit {
            eprintln!("replay: the input in {} takes more than {limit:?}", failed.display());
            process::exit(3);
        }
    }
}

fn limit_memory(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the limit is a whole structure that lives for the call.
    if unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } != 0 {
        stop("the address space cannot be limited");
    }
}
