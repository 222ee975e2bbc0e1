//! What is asked of each sample for a manifest, by several threads at a time: its size and time, and a look into it.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, Expected, Kind, Result, SampleId, Stage, stamp_ns};
use forebay_format::{Facts, FolderIndex};
use forebay_store::{Stat, Store};

use super::KeepScan;
use super::header_probe::{HeaderProbe, ProbeStep};
use crate::scan::call_pool::{CallPool, Polled};
use crate::scan::{POLL_INTERVAL, ScanProgress, WatchScan, max_threads};
use crate::source::defaults::retry_of;

/// Files that one thread examines in a row: handing over each takes longer than examining it.
const CHUNK: u64 = 128;
/// After this many failures the storage is taken to be down: that is one problem and not a million.
const MAX_OF_STORAGE: usize = 100;
/// Of pictures that have to be in memory whole, and are larger than a piece. Not measured.
const MAX_WHOLE_BYTES: u64 = 256 << 20;

/// Samples that follow each other.
#[derive(Clone)]
struct Chunk {
    first: u64,
    count: u64,
    /// Of the first one.
    path: PathBuf,
}

impl AsRef<Path> for Chunk {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

type Problems = Vec<(SampleId, Error)>;

/// Asks for size and time of every sample that the listing did not tell them of.
pub(super) fn examine(
    store: &Arc<dyn Store>,
    index: &Arc<FolderIndex>,
    facts: &mut [Facts],
    watch: &mut WatchScan<'_>,
) -> Result<Problems> {
    let mut problems = Vec::new();
    if facts.iter().all(|facts| facts.version.size_bytes.is_some()) {
        return Ok(problems);
    }
    let (threads, total) = (max_threads(&**store), index.len());
    let (asked, names) = (Arc::clone(store), Arc::clone(index));
    let mut pool =
        CallPool::new(threads, retry_of(&**store), store.capabilities().keeps_deadlines, move |chunk: &Chunk| {
            // One that is asked for alone failed before: the pool try it again, with pauses.
            if chunk.count == 1 {
                return asked.stat(&chunk.path).map(|stat| vec![Ok(stat)]);
            }
            let mut path = PathBuf::new();
            let samples = chunk.first..chunk.first + chunk.count;
            Ok(samples
                .map(|sample| {
                    names.write_path(SampleId(sample), &mut path);
                    asked.stat(&path)
                })
                .collect::<Vec<Result<Stat>>>())
        });
    let (mut next, mut again, mut done) = (0, Vec::new(), 0);
    loop {
        while pool.waiting() < 4 * threads {
            let (first, count) = match again.pop() {
                Some(sample) => (sample, 1),
                None if next < total => {
                    let first = next;
                    next = total.min(first + CHUNK);
                    (first, next - first)
                }
                None => break,
            };
            pool.ask(Chunk { first, count, path: index.path(SampleId(first)) });
        }
        match pool.poll(POLL_INTERVAL)? {
            Polled::Done(chunk, Ok(stats)) => {
                for (sample, stat) in (chunk.first..).zip(stats) {
                    match stat {
                        Ok(Stat { size_bytes, mtime_ns }) => {
                            let version = &mut facts[sample as usize].version;
                            (version.size_bytes, version.mtime_ns) = (Some(size_bytes), Some(mtime_ns));
                            done += 1;
                        }
                        Err(error) if error.is_transient() => again.push(sample),
                        Err(error) => {
                            report(&mut problems, index, sample, error)?;
                            done += 1;
                        }
                    }
                }
            }
            // A whole chunk that came too late: each of its files may be the one.
            Polled::Done(chunk, Err(_)) if chunk.count > 1 => again.extend(chunk.first..chunk.first + chunk.count),
            Polled::Done(chunk, Err(error)) => {
                report(&mut problems, index, chunk.first, error)?;
                done += 1;
            }
            Polled::Waiting => {}
            Polled::End if again.is_empty() => break,
            Polled::End => {}
        }
        watch(ScanProgress::Examining { done, total });
    }
    problems.sort_by_key(|(sample, _)| *sample);
    Ok(problems)
}

/// Notes a problem, unless it is one too many of the storage's own.
fn report(problems: &mut Problems, index: &FolderIndex, sample: u64, error: Error) -> Result<()> {
    let error = error.at_path(&index.path(SampleId(sample))).at_stage(Stage::Scan);
    if !error.is_sample_local() {
        return Err(error);
    }
    let is_of_storage = |error: &Error| matches!(error.kind(), Kind::Unavailable | Kind::Timeout | Kind::Exhausted);
    if is_of_storage(&error) && problems.iter().filter(|(_, error)| is_of_storage(error)).count() >= MAX_OF_STORAGE {
        return Err(error);
    }
    problems.push((SampleId(sample), error));
    Ok(())
}

/// What looking into samples gave.
pub(super) struct Read {
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) problems: Problems,
}

/// Reads every sample of which the content is not known, except those that are known to be a problem.
pub(super) fn read(
    store: &Arc<dyn Store>,
    index: &Arc<FolderIndex>,
    facts: &mut [Facts],
    known: &Problems,
    keep: &mut KeepScan<'_>,
    watch: &mut WatchScan<'_>,
) -> Result<Read> {
    let is_known = |sample: u64| known.binary_search_by_key(&sample, |(known, _)| known.0).is_ok();
    let samples: Vec<u64> =
        (0..index.len()).filter(|&sample| facts[sample as usize].content.is_none() && !is_known(sample)).collect();
    let total = samples.len() as u64;
    let (threads, reader) = (concurrent_reads(&**store), Arc::clone(store));
    let retry = retry_of(&**store);
    let mut pool = CallPool::new(threads, retry, store.capabilities().keeps_deadlines, move |probe: &HeaderProbe| {
        probe.step(&*reader, retry.deadline)
    });
    let mut samples = samples.into_iter();
    let mut read = Read { files: 0, bytes: 0, problems: Vec::new() };
    let mut queue = Queue::default();
    let mut done = 0;
    loop {
        while pool.waiting() < 2 * threads {
            let begin = |sample: u64| {
                let version = &facts[sample as usize].version;
                let stamp = version.mtime_ns.map(|mtime_ns| stamp_ns(mtime_ns, version.etag.as_deref()));
                let expected =
                    Expected { size_bytes: version.size_bytes, stamp_ns: stamp, by_etag: version.etag.is_some() };
                HeaderProbe::new(sample, index.path(SampleId(sample)), expected)
            };
            match queue.next().or_else(|| samples.next().map(begin)) {
                Some(probe) => pool.ask(probe),
                None => break,
            }
        }
        match pool.poll(POLL_INTERVAL)? {
            Polled::Done(probe, probed) => {
                queue.release(&probe);
                match probed {
                    Ok((ProbeStep::Continue(probe), bytes)) => {
                        read.bytes += bytes;
                        queue.push(probe);
                    }
                    Ok((ProbeStep::Done(content), bytes)) => {
                        facts[probe.sample as usize].content = Some(Box::new(content));
                        (read.files, read.bytes, done) = (read.files + 1, read.bytes + bytes, done + 1);
                    }
                    Err(error) => {
                        report(&mut read.problems, index, probe.sample, error)?;
                        done += 1;
                    }
                }
            }
            Polled::Waiting => {}
            Polled::End => return Ok(read),
        }
        watch(ScanProgress::Reading { done, total, bytes: read.bytes });
        keep(index, facts)?;
    }
}

/// Probes in progress. Those that need a whole large file in memory wait until there is room for it: together they take
/// `MAX_WHOLE_BYTES`, or what a single one needs.
#[derive(Default)]
struct Queue {
    ready: VecDeque<HeaderProbe>,
    whole: VecDeque<HeaderProbe>,
    whole_bytes: u64,
}

impl Queue {
    fn push(&mut self, probe: HeaderProbe) {
        if probe.whole_bytes() > 0 { self.whole.push_back(probe) } else { self.ready.push_back(probe) }
    }

    fn next(&mut self) -> Option<HeaderProbe> {
        let has_room = |probe: &&HeaderProbe| {
            self.whole_bytes == 0 || self.whole_bytes.saturating_add(probe.whole_bytes()) <= MAX_WHOLE_BYTES
        };
        if self.whole.front().filter(has_room).is_none() {
            return self.ready.pop_front();
        }
        let probe = self.whole.pop_front()?;
        self.whole_bytes += probe.whole_bytes();
        Some(probe)
    }

    /// Returns the memory of a step.
    fn release(&mut self, probe: &HeaderProbe) {
        self.whole_bytes = self.whole_bytes.saturating_sub(probe.whole_bytes());
    }
}

/// Each has a piece in memory. Far away, most of the time of a read is waiting.
fn concurrent_reads(store: &dyn Store) -> usize {
    const MAX_REMOTE: usize = 32;
    let capabilities = store.capabilities();
    match capabilities.is_remote {
        true => capabilities.max_calls.unwrap_or(MAX_REMOTE).min(MAX_REMOTE),
        false => max_threads(store),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_format::ScanOptions;

    #[test]
    fn storage_that_is_down_is_one_problem_and_missing_files_are_many() {
        let index = {
            let mut listing = forebay_core::Listing::new((0, 0));
            listing.push(std::ffi::OsStr::new("1.jpg"), false);
            let options = ScanOptions { classes: Some(vec![("cat".to_owned(), 0)]), ..ScanOptions::images() };
            forebay_format::scan(Path::new("/r"), &options, &|_| Ok(listing.clone()), None).unwrap()
        };
        let mut problems = Vec::new();
        for _ in 0..10 * MAX_OF_STORAGE {
            report(&mut problems, &index, 0, Error::new(Kind::NotFound, "is gone")).unwrap();
        }
        let mut down = || report(&mut problems, &index, 0, Error::new(Kind::Unavailable, "is down"));
        for _ in 0..MAX_OF_STORAGE {
            down().unwrap();
        }
        assert_eq!(down().unwrap_err().path(), Some(Path::new("/r/cat/1.jpg")));
        let config = Error::config("is wrong");
        assert!(report(&mut problems, &index, 0, config).is_err(), "what concerns every file ends it");
    }
}
