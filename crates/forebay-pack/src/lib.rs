//! Packs samples into shards: tar archives as WebDataset reads them, of what forebay reads as files or as other archives.
//!
//! Which sample goes into which shard is planned from the listing of the source, before anything is read. Threads read and make samples
//! ahead, every shard is written in order, and gets its name when all of it is on the disk. So the same source and settings make
//! the same bytes, for any number of threads, and the next run resumes one that was killed.

mod columns;
mod finish;
mod names;
mod plan;
mod read;
mod records;
mod settings;
mod shard;
mod source;
mod tar;
mod target;
mod typed;
mod work;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::{Defaults, ScanProgress, kind_of, make_parity};
use forebay_core::{Error, Failure, FailureLimit, Kind, Result};
use forebay_store::{Local, MountKind, SinkEntry, Stat, StorageOptions, Store, is_url, machine, real_path};
use parking_lot::Mutex;

use finish::LedgerPlace;
use plan::{Limits, Plan};
use read::{Handling, SampleReader};
use records::{RECORDS_NAME, Record, State, read_records};
use shard::ShardWriter;
use target::{Halt, Target};
use work::{Done, Shelf};

pub use forebay_decode::{Coding, Recoding};
pub use records::Saved;
pub use source::{Source, SourceKind};

/// Samples that were read and are not written take this much memory, as they are in the source.
const HELD_BYTES: u64 = 256 << 20;
/// Shards that are written at a time.
const MAX_OPEN_SHARDS: usize = 8;

/// The settings of packing.
#[derive(Clone, Debug)]
pub struct Pack {
    /// What is packed.
    pub source: Source,
    /// A directory, or the URL of one.
    pub target: PathBuf,
    /// Settings of its store.
    pub target_options: StorageOptions,
    /// What names of shards begin with.
    pub prefix: String,
    /// A shard is not larger, unless one sample is.
    pub shard_bytes: Option<u64>,
    /// A shard has no more samples.
    pub samples_per_shard: Option<u64>,
    /// Puts the samples in a random order, by this seed.
    pub shuffle: Option<u64>,
    /// Decodes every picture, and leaves out those that are damaged.
    pub checks: bool,
    /// Writes pictures again.
    pub recoding: Option<Recoding>,
    /// The index has the landmarks of JPEGs, which a loader decodes crops faster by.
    pub landmarks: bool,
    /// Parity beside each shard, as a share of its size, by which damage is repaired.
    pub parity: Option<f64>,
    /// Reads every shard back, and compares it with what was written.
    pub verifies: bool,
    /// Stops when more samples than this are left out.
    pub max_failures: Option<FailureLimit>,
    /// Where those are written down; `None` is beside the shards.
    pub ledger: Option<PathBuf>,
    /// Samples read at a time; `None` chooses by the kind of storage.
    pub threads: Option<usize>,
}

/// The phase of packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// The source is listed.
    Listing,
    /// Sizes and times are asked for.
    Examining,
    /// Samples are packed.
    Packing,
}

/// The progress of packing.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The phase.
    pub doing: Doing,
    /// Samples done.
    pub samples: u64,
    /// Samples to do; while listing, those so far.
    pub all_samples: u64,
    /// Bytes done.
    pub bytes: u64,
    /// Bytes to do.
    pub all_bytes: u64,
    /// Samples left out.
    pub failed: u64,
}

/// The result of packing.
#[derive(Debug, Default)]
pub struct Packed {
    /// Samples of the source.
    pub samples: u64,
    /// Samples in the shards.
    pub packed: u64,
    /// Samples left out, of shards that are finished. Earlier runs may have named them.
    pub failed: u64,
    /// The shards, with their bytes and samples.
    pub shards: Vec<(String, u64, u64)>,
    /// Shards that earlier runs had finished.
    pub kept_shards: u64,
    /// The classes with their labels.
    pub classes: Vec<(String, u32)>,
    /// What writing pictures again has saved.
    pub saved: Saved,
    /// The samples that this run has left out.
    pub failures: Vec<Failure>,
    /// Where failures are written down; `None` where there are none.
    pub ledger: Option<PathBuf>,
    /// What was noticed about the source.
    pub notes: Vec<String>,
    /// Why it stopped early.
    pub halted: Option<Error>,
    /// How long it took.
    pub elapsed: Duration,
}

impl Packed {
    /// Whether all samples are in the shards.
    pub fn is_complete(&self) -> bool {
        self.failed == 0 && self.halted.is_none()
    }
}

impl Pack {
    /// Packs all of `source` into `target`.
    pub fn new(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        let source = Source {
            path: source.into(),
            options: StorageOptions::default(),
            kind: None,
            has_labels: true,
            extensions: None,
            root: None,
            fields: None,
        };
        Self {
            source,
            target: target.into(),
            target_options: StorageOptions::default(),
            prefix: "shard".to_owned(),
            shard_bytes: Some(256 << 20),
            samples_per_shard: None,
            shuffle: None,
            checks: true,
            recoding: None,
            landmarks: true,
            parity: None,
            verifies: true,
            max_failures: None,
            ledger: None,
            threads: None,
        }
    }

    /// Packs. `watch` is called now and then in the calling thread. Returns an error only if nothing was begun.
    pub fn run(&self, watch: &mut dyn FnMut(&Progress)) -> Result<Packed> {
        let started = Instant::now();
        self.check()?;
        let threads = self.threads.unwrap_or_else(|| self.default_threads()).max(1);
        let mut samples = self.source.open(threads, &mut |now| watch(&scanning(now)))?;
        let halt = Halt::default();
        let handling = Handling {
            checks: self.checks,
            recoding: self.recoding,
            landmarks: self.landmarks,
            retry: self.source_retry(),
        };
        samples.look_at_bytes(&halt, handling)?;
        if let Some(typed) = samples.typed().filter(|_| self.recoding.is_some()) {
            typed.check_recoding()?;
        }
        let limits = Limits { shard_bytes: self.shard_bytes, samples: self.samples_per_shard };
        let plan = Plan::new(&samples, limits, self.shuffle)?;
        let target = Target::open(&self.target, &self.target_options, self.verifies)?;
        let state = self.state(&plan, &samples)?;
        let names: Vec<_> = (0..plan.shard_count()).map(|shard| self.shard_name(shard)).collect();
        let mtime_ns = samples.latest_ns();
        let (known, was_complete) = self.resume(&state, (&target, &halt), mtime_ns)?;
        let ledger = LedgerPlace::open(self.ledger.as_deref(), &target)?;
        let kept = names.iter().enumerate().filter_map(|(shard, name)| Some((shard as u32, known.get(name)?.clone())));
        let kept: HashMap<u32, Record> = kept.collect();
        let failed_before = kept.values().map(|record| record.finished.failed).sum();
        let mut done = Packed {
            samples: plan.len(),
            kept_shards: kept.len() as u64,
            classes: samples.classes().into_iter().map(|(name, label)| (name.to_owned(), label)).collect(),
            notes: samples.notes.clone(),
            ..Packed::default()
        };
        let missing: Vec<_> = (0..plan.shard_count()).filter(|shard| !kept.contains_key(shard)).collect();
        let is_done = was_complete && missing.is_empty();
        let to_do: Vec<_> = missing.iter().map(|shard| plan.shard(*shard)).collect();
        let all_samples = to_do.iter().map(|range| range.end - range.start).sum();
        let all_bytes = to_do.into_iter().flatten().map(|position| plan.bytes_at(position)).sum();
        if !missing.is_empty() && was_complete {
            // Until all shards are there again.
            state.write(&target, &halt, mtime_ns)?;
            kept.values().try_for_each(|record| record.write(&target, &halt, &state.fingerprint(), mtime_ns))?;
        }
        let shelf = Shards {
            pack: self,
            plan: &plan,
            target: &target,
            halt: &halt,
            fingerprint: state.fingerprint(),
            mtime_ns,
            ledger: &ledger,
            records: Mutex::new(kept),
            failures: Mutex::default(),
        };
        let shards = (threads / 2).clamp(1, MAX_OPEN_SHARDS);
        let size = work::Size { threads, shards, held_bytes: HELD_BYTES };
        let mut show = |now: Done| {
            let Done { samples, bytes, failed, .. } = now;
            watch(&Progress { doing: Doing::Packing, samples, all_samples, bytes, all_bytes, failed });
        };
        let reader = || SampleReader::new(&samples, &halt, handling);
        let unfinished =
            work::run(missing.into_iter(), (&plan, &halt, size), &shelf, reader, failed_before, &mut show)?;
        let (records, mut failures) = (shelf.records.into_inner(), shelf.failures.into_inner());
        // The next run meets them again. Why this one has stopped is the error to report.
        let _appended = ledger.append(&unfinished, &halt);
        failures.extend(unfinished);
        let mut records: Vec<_> = records.into_iter().collect();
        records.sort_unstable_by_key(|(shard, _)| *shard);
        let records: Vec<_> = records.into_iter().map(|(_, record)| record).collect();
        if !is_done
            && !halt.is_raised()
            && let Err(error) = self.complete(state, &records, &samples, (&target, &halt), &ledger)
        {
            halt.raise(error);
        }
        for Record { finished, .. } in &records {
            done.packed += finished.samples;
            done.failed += finished.failed;
            done.saved.add(&finished.saved);
            done.shards.push((finished.name.clone(), finished.size_bytes, finished.samples));
        }
        done.failures = failures;
        done.ledger = (done.failed > 0 || !done.failures.is_empty()).then(|| ledger.path().to_owned());
        done.halted = halt.take();
        done.elapsed = started.elapsed();
        Ok(done)
    }

    fn shard_name(&self, shard: u32) -> String {
        format!("{}-{shard:06}.tar", self.prefix)
    }

    /// What earlier runs have left in the target: the finished shards, and whether it was complete. Says in it what will be packed.
    fn resume(
        &self,
        state: &State,
        (target, halt): (&Target, &Halt),
        mtime_ns: i64,
    ) -> Result<(HashMap<String, Record>, bool)> {
        let Some(begun) = State::read(target, halt)? else {
            let is_shard = |name: &Path| {
                let rest = name.to_str().and_then(|name| name.strip_prefix(&self.prefix)?.strip_prefix('-'));
                rest.is_some_and(|rest| rest.ends_with(".tar"))
            };
            for entry in halt.retried(target.retry, || target.sink.list(Path::new("")))? {
                let (SinkEntry::File(name, _) | SinkEntry::Other(name) | SinkEntry::Directory(name)) = entry else {
                    continue;
                };
                let is_taken = is_shard(Path::new(&name)) || name == records::INDEX_NAME;
                if is_taken {
                    let error = Error::config("target: expected a directory without shards or an index of others");
                    return Err(error
                        .at_path(&target.root.join(&name))
                        .with_hint("choose another target, or another --prefix"));
                }
            }
            state.write(target, halt, mtime_ns)?;
            return Ok((HashMap::new(), false));
        };
        state.check_same(&begun, &target.root)?;
        target.tidy(halt, Path::new(""))?;
        target.tidy(halt, Path::new(RECORDS_NAME))?;
        let mut records = read_records(target, halt, &begun)?;
        if self.parity.is_some() {
            self.remove_begun_parity(target, halt)?;
            let mut missing = Vec::new();
            for name in records.keys() {
                if target.size(halt, Path::new(&format!("{name}.parity")))?.is_none() {
                    missing.push(name.clone());
                }
            }
            missing.iter().for_each(|name| drop(records.remove(name)));
        }
        Ok((records, begun.shards.is_some()))
    }

    /// Removes what a killed process has left of parity.
    fn remove_begun_parity(&self, target: &Target, halt: &Halt) -> Result<()> {
        let prefix = format!(".{}-", self.prefix);
        let is_begun =
            |name: &str| name.starts_with(&prefix) && name.contains(".tar.parity.") && name.ends_with(".tmp");
        for entry in halt.retried(target.retry, || target.sink.list(Path::new("")))? {
            if let SinkEntry::File(name, _) = entry
                && name.to_str().is_some_and(is_begun)
            {
                halt.retried(target.retry, || target.sink.remove(Path::new(&name)))?;
            }
        }
        Ok(())
    }

    /// Refuses a target inside the source or the reverse: shards would be packed into shards.
    fn check_overlap(&self) -> Result<()> {
        let plain = |path: &Path| if is_url(path) { path.to_owned() } else { real_path(path) };
        let (source, target) = (plain(&self.source.path), plain(&self.target));
        if is_url(&self.source.path) != is_url(&self.target) {
            return Ok(());
        }
        let is_file = self.source.path.extension().is_some_and(|_| !is_url(&source) && !real_path(&source).is_dir());
        if !is_file && (source.starts_with(&target) || target.starts_with(&source)) {
            return Err(Error::config(format!(
                "target: expected a location outside the source, got {target:?} for the source {source:?}"
            )));
        }
        Ok(())
    }

    fn kind_of_source(&self) -> Option<MountKind> {
        let path = &self.source.path;
        if is_url(path) { Some(MountKind::Remote) } else { kind_of(&Local, path) }
    }

    fn source_retry(&self) -> forebay_core::Retry {
        Defaults::on(self.kind_of_source(), machine::available_cpus()).retry
    }

    fn default_threads(&self) -> usize {
        let cpus = machine::available_cpus();
        let of = |kind: Option<MountKind>| match kind {
            Some(MountKind::Remote) => 64,
            Some(kind) if kind.can_hang() => 16,
            _ => 4,
        };
        let target = if is_url(&self.target) { Some(MountKind::Remote) } else { kind_of(&Local, &self.target) };
        of(self.kind_of_source()).max(of(target)).max(cpus)
    }
}

fn scanning(now: ScanProgress) -> Progress {
    let (doing, samples, all_samples) = match now {
        ScanProgress::Listing { samples, .. } => (Doing::Listing, samples, samples),
        ScanProgress::Examining { done, total } | ScanProgress::Reading { done, total, .. } => {
            (Doing::Examining, done, total)
        }
    };
    Progress { doing, samples, all_samples, bytes: 0, all_bytes: 0, failed: 0 }
}

/// The shards of a run.
struct Shards<'a> {
    pack: &'a Pack,
    plan: &'a Plan,
    target: &'a Target,
    halt: &'a Halt,
    fingerprint: String,
    mtime_ns: i64,
    ledger: &'a LedgerPlace,
    records: Mutex<HashMap<u32, Record>>,
    failures: Mutex<Vec<Failure>>,
}

impl<'a> Shelf<'a> for Shards<'a> {
    fn begin(&self, shard: u32) -> Result<ShardWriter<'a>> {
        let stat = Stat { size_bytes: self.plan.shard_bytes(shard), mtime_ns: self.mtime_ns };
        ShardWriter::begin(self.target, self.halt, &self.pack.shard_name(shard), stat)
    }

    fn finish(&self, shard: u32, writer: ShardWriter<'a>) -> Result<()> {
        // In this order: a shard without a record is packed again, and a record means that its failures are in the ledger.
        if let Err(error) = self.ledger.append(writer.failures(), self.halt) {
            self.failures.lock().extend(writer.discard());
            return Err(error);
        }
        self.failures.lock().extend_from_slice(writer.failures());
        let record = writer.finish()?;
        self.halt.retried(self.target.retry, || self.target.sink.sync())?;
        if let Some(fraction) = self.pack.parity {
            let path = self.target.root.join(self.pack.shard_name(shard));
            make_parity(&(Arc::new(Local) as Arc<dyn Store>), &path, fraction, &mut |_, _| {})?;
        }
        record.write(self.target, self.halt, &self.fingerprint, self.mtime_ns)?;
        self.records.lock().insert(shard, record);
        Ok(())
    }

    fn check_failures(&self, failed: u64) -> Result<()> {
        let (most, allowed) = match self.pack.max_failures {
            None => return Ok(()),
            Some(FailureLimit::Count(count)) => (count, count.to_string()),
            Some(FailureLimit::Fraction(fraction)) => {
                ((fraction * self.plan.len() as f64) as u64, format!("{}% of them", fraction * 100.0))
            }
        };
        if failed <= most {
            return Ok(());
        }
        let message = format!("{failed} of {} samples failed (max_failures allows {allowed})", self.plan.len());
        Err(Error::new(Kind::TooManyFailures, message))
    }
}
