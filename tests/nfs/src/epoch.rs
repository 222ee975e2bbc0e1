//! The loader that is being tried: some epochs over a folder, told of in one JSON line per event on standard output.
//!
//! It stands still at one step until it is told to go on by a line on standard input, so that trouble can be made in the
//! middle of an epoch and not somewhere near it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::{
    Batch, Books, Column, Config, Failure, Interpolation, Isolated, Loader, Next, OnError, Op, Pipeline, ResizeTo,
    Retry, Run, Size, Source, Step,
};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::Result;

pub(crate) const BATCH_SIZE: u64 = 8;
pub(crate) const PREFETCH_BATCHES: usize = 4;
const IO_THREADS: usize = 4;
/// Pixels along each edge of a sample.
const EDGE: u32 = 64;
/// Waiting longer than this for a batch is a stall, and is told of with what it waits for.
const STALL: Duration = Duration::from_secs(2);
const GLANCE: Duration = Duration::from_millis(100);

/// How the loader is to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) epochs: u64,
    pub(crate) deadline_seconds: u64,
    pub(crate) retries: u32,
    /// The step of epoch 0 after which it waits to be told to go on.
    pub(crate) hold_step: Option<u64>,
    /// Whether it leaves at its first stall, as a training loop does that was interrupted.
    pub(crate) leaves_at_stall: bool,
    /// Whether it tells the hash of every sample.
    pub(crate) tells_samples: bool,
}

/// What it says while it runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// It waits to be told to go on.
    Held,
    /// It has waited for a batch for [`STALL`].
    Stalled(Stall),
    /// All is over.
    Ended(Box<Ended>),
}

/// A wait, and the file that has been read for the longest time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stall {
    pub(crate) path: Option<PathBuf>,
    pub(crate) elapsed_seconds: f64,
}

/// What there is to say in the end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) seconds: f64,
    pub(crate) longest_wait_seconds: f64,
    pub(crate) stalls: u64,
    /// Stalls for which no file could be named.
    pub(crate) nameless_stalls: u64,
    pub(crate) epochs: Vec<Told>,
    pub(crate) failures: Vec<Failure>,
    /// The samples of epoch 0 in planned order.
    pub(crate) order: Vec<u64>,
    /// The hash of every sample, where they were asked for.
    pub(crate) samples: Vec<u64>,
    pub(crate) filesystem: String,
    pub(crate) readers: Option<ReaderCounts>,
    /// What ended the run before its time, and its code if it was the loader's own.
    pub(crate) error: Option<String>,
    pub(crate) code: Option<String>,
}

/// One epoch: its books, and the sum of the hashes of what was handed over, which no order and no thread changes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) books: Books,
    pub(crate) hash: u64,
}

/// What became of the reader processes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ReaderCounts {
    pub(crate) started: u64,
    pub(crate) written_off: u64,
    pub(crate) died: u64,
    pub(crate) lost: usize,
}

pub(crate) fn run(folder: &Path, settings: &str) -> Result<()> {
    let settings: Settings = serde_json::from_str(settings)?;
    let retry = Retry {
        retries: settings.retries,
        deadline: Duration::from_secs(settings.deadline_seconds),
        ..Retry::default()
    };
    let mut source = Source::image_folder(folder, pipeline()?)?;
    if source.storage().readers.is_some() {
        // The same kind of store as was found fit, with the deadline of this run.
        source.store = Arc::new(Isolated::new(IO_THREADS, retry.deadline));
    }
    let config = Config {
        batch_size: BATCH_SIZE,
        shuffle: true,
        io_threads: IO_THREADS,
        prefetch_batches: PREFETCH_BATCHES,
        on_error: OnError::Replace,
        retry,
        ..Config::default()
    };
    let loader = Loader::new(source, config)?;
    let mut teller = Teller { settings, ended: Ended::default(), started: Instant::now() };
    if let Err(error) = teller.load(&loader) {
        teller.ended.code = error.downcast_ref().map(|error: &forebay::Error| error.kind().slug().to_owned());
        teller.ended.error = Some(error.to_string());
    }
    let mut ended = teller.ended;
    ended.seconds = teller.started.elapsed().as_secs_f64();
    ended.failures = loader.failures();
    let storage = loader.source().storage();
    ended.filesystem = storage.mount.map_or_else(String::new, |mount| mount.filesystem);
    ended.readers = storage.readers.map(|readers| ReaderCounts {
        started: readers.started,
        written_off: readers.written_off,
        died: readers.died,
        lost: readers.lost,
    });
    tell(&Event::Ended(Box::new(ended)))
}

/// No chance in it, so that a sample has the same pixels in every epoch and run.
fn pipeline() -> Result<Pipeline> {
    let size = ResizeTo::Exact(Size::from(EDGE));
    let resize = Op::Resize { size, interpolation: Interpolation::Bilinear, max_size: None, antialias: true };
    Ok(Pipeline::new(vec![resize, Op::ToTensor])?)
}

fn tell(event: &Event) -> Result<()> {
    let mut line = serde_json::to_string(event)?;
    line.push('\n');
    io::stdout().write_all(line.as_bytes())?;
    Ok(io::stdout().flush()?)
}

struct Teller {
    settings: Settings,
    ended: Ended,
    started: Instant,
}

impl Teller {
    fn load(&mut self, loader: &Loader) -> Result<()> {
        for step in 0..loader.steps() {
            let explained = loader.explain(Step(step), None, None, None)?;
            self.ended.order.extend(explained.iter().map(|explained| explained.sample.0));
        }
        if self.settings.tells_samples {
            self.ended.samples = vec![0; self.ended.order.len()];
        }
        for epoch in 0..self.settings.epochs {
            let mut run = loader.epoch()?;
            let result = self.pass(&mut run);
            let books = loader.books().iter().find(|(of, _)| of.0 == epoch).map(|(_, books)| *books);
            self.ended.epochs.push(Told { books: books.unwrap_or_default(), hash: *result.as_ref().unwrap_or(&0) });
            result?;
        }
        Ok(())
    }

    /// One epoch; gives the sum of the hashes of its samples.
    fn pass(&mut self, run: &mut Run) -> Result<u64> {
        let mut sum = 0u64;
        let (mut asked, mut is_stalled) = (Instant::now(), false);
        loop {
            let next = run.poll(GLANCE)?;
            let waited = asked.elapsed();
            self.ended.longest_wait_seconds = self.ended.longest_wait_seconds.max(waited.as_secs_f64());
            match next {
                Next::End => return Ok(sum),
                Next::Batch(batch) => {
                    run.commit(batch.receipt);
                    let is_held = batch.epoch.0 == 0 && self.settings.hold_step == Some(batch.step.0);
                    sum = sum.wrapping_add(self.hash(batch)?);
                    if is_held {
                        tell(&Event::Held)?;
                        if io::stdin().read_line(&mut String::new())? == 0 {
                            return Err("standard input was closed: nobody is there to go on".into());
                        }
                    }
                    (asked, is_stalled) = (Instant::now(), false);
                }
                Next::Pending if waited >= STALL && !is_stalled => {
                    is_stalled = true;
                    self.stalled(run, waited)?;
                }
                Next::Pending => {}
            }
        }
    }

    fn stalled(&mut self, run: &Run, waited: Duration) -> Result<()> {
        let longest = run.in_flight().into_iter().next();
        self.ended.stalls += 1;
        self.ended.nameless_stalls += u64::from(longest.is_none());
        let path = longest.map(|in_flight| in_flight.path);
        tell(&Event::Stalled(Stall { path, elapsed_seconds: waited.as_secs_f64() }))?;
        if self.settings.leaves_at_stall {
            return Err("left at its first stall, as it was told to".into());
        }
        Ok(())
    }

    fn hash(&mut self, batch: Batch) -> Result<u64> {
        let samples = batch.samples.clone();
        let Column::Dense { mut buffer, layout } = batch.into_content() else {
            return Err("expected a dense batch".into());
        };
        let slots = buffer.bytes().chunks_exact(layout.size_bytes());
        let mut sum = 0u64;
        for (sample, slot) in samples.iter().zip(slots) {
            let hash = xxh3_64(&[&sample.0.to_ne_bytes(), slot].concat());
            sum = sum.wrapping_add(hash);
            if let Some(known) = self.ended.samples.get_mut(sample.0 as usize) {
                *known = hash;
            }
        }
        Ok(sum)
    }
}
