//! The decoders alone, for `benchmarks/formats.py`: the files of a folder from memory to RGB, in one thread.
//!
//! `decode SECONDS FOLDER…` prints one JSON line for each folder: images decoded, seconds of processor time they took, and
//! the sum of all bytes of all pixels of one pass. Memory is used again from one file to the next, as the loader's threads
//! do.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::{Error, Local, Result, Store};
use forebay_decode::{Decoders, Image};

const USAGE: &str = "expected: decode SECONDS FOLDER...";

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [seconds, folders @ ..] = arguments.as_slice() else { return Err(Error::config(USAGE)) };
    let seconds = seconds.parse::<f64>().map_err(|error| Error::config(USAGE).with_source(error))?;
    folders.iter().try_for_each(|folder| measure(Path::new(folder), seconds))
}

fn measure(folder: &Path, seconds: f64) -> Result<()> {
    let files = read(folder)?;
    let (mut decoders, mut image, mut images, mut sum) = (Decoders::default(), Image::default(), 0, 0);
    for file in &files {
        decode(&mut decoders, file, &mut image)?;
        sum += image.pixels.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    }
    let started = processor_seconds();
    while images == 0 || processor_seconds() - started < seconds {
        for file in &files {
            decode(&mut decoders, file, &mut image)?;
            images += 1;
        }
    }
    let used = processor_seconds() - started;
    writeln!(std::io::stdout(), r#"{{"images": {images}, "processor_seconds": {used}, "sum": {sum}}}"#)
        .map_err(|error| Error::io("written to", error))
}

fn decode(decoders: &mut Decoders, file: &[u8], image: &mut Image) -> Result<()> {
    let header = decoders.header(file)?;
    decoders.decode(file, &header, None, image).map(drop)
}

fn read(folder: &Path) -> Result<Vec<Vec<u8>>> {
    let one =
        |path: PathBuf| Local.read(&path, Duration::MAX, &mut |_| Ok(Vec::new())).map(|object| object.bytes.to_vec());
    Local.list(folder)?.iter().map(|entry| one(folder.join(entry.name))).collect()
}

fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is writable, and the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
