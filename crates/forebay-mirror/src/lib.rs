//! Mirrors whole stores: local directories, S3, Google, Azure, in any direction.
//!
//! Source and target are listed, files that are equal are left alone, and the others are copied by several threads. A copy gets
//! its name in one step: however the process ends, every named file at the target is complete, and the next run resumes from
//! there. Stores and sinks report errors; what is retried is decided here, by the same policy as in the loader.

mod copy;
mod filter;
mod plan;
mod rate_limit;
mod transfer;
mod walk;
mod workers;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use forebay::{Defaults, kind_of, open_store};
use forebay_core::{Config, Error, Kind, Result, Retry};
use forebay_store::{
    Capabilities, DirectorySink, MountKind, ObjectSink, Remote, Sink, StorageOptions, is_url, machine, real_path,
};
use parking_lot::Mutex;

use plan::{Verdict, judge, surplus};
use rate_limit::RateLimit;
use transfer::{End, Transfer};
use walk::{Found, Target};

pub use filter::Filter;

/// The settings of a mirror.
#[derive(Clone, Debug)]
pub struct Mirror {
    /// A directory, or the URL of one.
    pub source: PathBuf,
    /// The same for the destination.
    pub target: PathBuf,
    /// Settings of the source's store.
    pub source_options: StorageOptions,
    /// Settings of the target's store.
    pub target_options: StorageOptions,
    /// Selects the files to copy.
    pub filter: Filter,
    /// Deletes files at the target that are not at the source.
    pub delete: bool,
    /// Deletes nothing if there are more such files than this.
    pub max_delete: Option<u64>,
    /// Writes and deletes nothing.
    pub is_dry_run: bool,
    /// Reads back every copy and compares it.
    pub verifies: bool,
    /// Files copied concurrently; `None` chooses by the kind of storage.
    pub threads: Option<usize>,
    /// The limit of bytes per second.
    pub bytes_per_second: Option<u64>,
}

/// The phase of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Lists source and target.
    Listing,
    /// Asks the target for the source times of its objects.
    Comparing,
    /// Copies.
    Copying,
}

/// The progress of a mirror.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The phase.
    pub doing: Doing,
    /// Files done.
    pub files: u64,
    /// Number of files; while listing, the number so far.
    pub all_files: u64,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Bytes to copy.
    pub all_bytes: u64,
    /// Files that could not be copied.
    pub failed: u64,
}

/// The result of a mirror.
#[derive(Debug, Default)]
pub struct Mirrored {
    /// Files of the source that the filter selects.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were copied.
    pub copied_files: u64,
    /// Bytes that were copied, including those of files that failed later.
    pub copied_bytes: u64,
    /// Bytes copied by earlier runs, of files that this run has finished.
    pub resumed_bytes: u64,
    /// Bytes that were read at the source.
    pub read_bytes: u64,
    /// Files that were there already.
    pub same_files: u64,
    /// Requests and calls that were made again.
    pub retries: u64,
    /// The files to copy, with their sizes.
    pub to_copy: Vec<(PathBuf, u64)>,
    /// Files that were deleted, or would be in a dry run.
    pub removed: Vec<PathBuf>,
    /// What failed.
    pub failures: Vec<Error>,
    /// Why it stopped early.
    pub halted: Option<Error>,
    /// How long it took.
    pub elapsed: Duration,
}

impl Mirrored {
    /// Whether everything was copied.
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty() && self.halted.is_none()
    }
}

impl Mirror {
    /// A mirror of all of `source` to `target`.
    pub fn new(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        Self {
            source: source.into(),
            target: target.into(),
            source_options: StorageOptions::default(),
            target_options: StorageOptions::default(),
            filter: Filter::default(),
            delete: false,
            max_delete: None,
            is_dry_run: false,
            verifies: false,
            threads: None,
            bytes_per_second: None,
        }
    }

    /// Runs the mirror. `watch` is called now and then in the calling thread. Returns an error only if nothing was
    /// begun; failures of single files are in the result.
    pub fn run(&self, watch: &mut dyn FnMut(&Progress)) -> Result<Mirrored> {
        let started = Instant::now();
        let (transfer, threads) = self.open()?;
        let meters = &transfer.meters;
        let mut show_progress = || {
            let listed = meters.listed_files.load(Relaxed);
            watch(&Progress { all_files: listed, files: listed, ..progress(&transfer, Doing::Listing) });
        };
        let (found, is_listed) = walk::source(&transfer, &self.filter, threads, &mut show_progress)?;
        let (target, is_target_listed) = walk::target(&transfer, &self.filter, threads, &mut show_progress)?;
        // Set only here, and once.
        let _set = transfer.leftovers.set(target.parts.iter().cloned().collect());
        let files = found.len() as u64;
        let bytes = found.iter().map(|file| file.stat.size_bytes).sum();
        let (surplus_files, surplus_directories) = surplus(&found, &target, &self.filter);
        let mut show_progress = || {
            let compared = meters.compared_files.load(Relaxed);
            watch(&Progress { files: compared, all_files: files, ..progress(&transfer, Doing::Comparing) });
        };
        let is_empty = found.is_empty();
        let to_copy = compare(&transfer, found, &target, threads, &mut show_progress)?;
        let mut done = Mirrored {
            files,
            bytes,
            same_files: files - to_copy.len() as u64,
            to_copy: to_copy.iter().map(|file| (file.name.clone(), file.stat.size_bytes)).collect(),
            ..Mirrored::default()
        };
        if !self.is_dry_run {
            let all_bytes = to_copy.iter().map(|file| file.stat.size_bytes).sum();
            let all_files = to_copy.len() as u64;
            let mut show_progress = || {
                let files = meters.copied_files.load(Relaxed) + meters.failed_files.load(Relaxed);
                let bytes = meters.copied_bytes.load(Relaxed) + meters.resumed_bytes.load(Relaxed);
                let now = progress(&transfer, Doing::Copying);
                watch(&Progress { files: files.min(all_files), all_files, bytes, all_bytes, ..now });
            };
            copy_all(&transfer, to_copy, threads, &mut show_progress)?;
            if let Err(error) = transfer.sink.sync() {
                transfer.fail(error);
            }
        }
        if self.delete {
            let surplus = (surplus_files, surplus_directories);
            done.removed = self.remove(&transfer, surplus, is_listed && is_target_listed, is_empty);
        }
        if !self.is_dry_run && !transfer.is_halted() && meters.failed_files.load(Relaxed) == 0 {
            tidy(&transfer, &target);
        }
        let get = |meter: &std::sync::atomic::AtomicU64| meter.load(Relaxed);
        (done.copied_files, done.copied_bytes) = (get(&meters.copied_files), get(&meters.copied_bytes));
        (done.resumed_bytes, done.read_bytes) = (get(&meters.resumed_bytes), get(&meters.read_bytes));
        done.retries = get(&meters.retries);
        (done.failures, done.halted) = transfer.into_failures();
        done.elapsed = started.elapsed();
        Ok(done)
    }

    /// Source and target, and how many files are copied concurrently.
    fn open(&self) -> Result<(Transfer, usize)> {
        self.check_overlap()?;
        // Each thread may hold a piece of 8 MiB: more threads only if each waits for the network.
        let threads = |kind: Option<MountKind>| match kind {
            Some(MountKind::Remote) => 64,
            Some(kind) if kind.can_hang() => 16,
            _ => 8,
        };
        let defaults = |kind| Defaults::on(kind, machine::available_cpus());
        let (source_kind, target_kind) = (kind_at(&self.source), kind_at(&self.target));
        let chosen = self.threads.unwrap_or_else(|| threads(source_kind).max(threads(target_kind))).max(1);
        let retry: Retry = defaults(source_kind).retry;
        let config = Config { io_threads: chosen, max_io_threads: chosen, retry, ..Config::default() };
        let (source, root) = open_store(&self.source, &self.source_options, &config)?;
        let Capabilities { can_list, is_remote, .. } = source.capabilities();
        if !can_list {
            return Err(Error::config("source: HTTP servers cannot list their files, so they cannot be mirrored")
                .with_hint("use the URL of the store behind it (s3://, gs://, az://), or a directory"));
        }
        // The target is not created for a source that does not exist.
        let missing = if is_remote { None } else { source.stat(&root).err() };
        if let Some(error) = missing.filter(|error| error.kind() == Kind::NotFound) {
            return Err(error.with_hint("is the name of the source right, and is it mounted?"));
        }
        // Last, because it creates the directory.
        let sink = self.sink()?;
        let rate_limit = self.bytes_per_second.map(RateLimit::new);
        Ok((Transfer::new((source, root, retry), (sink, defaults(target_kind).retry), rate_limit, chosen), chosen))
    }

    fn sink(&self) -> Result<Box<dyn Sink>> {
        if is_url(&self.target) {
            let (store, root) = Remote::open(&self.target, &self.target_options)?;
            return Ok(Box::new(ObjectSink::open(store, root, self.verifies)?));
        }
        let sink = match self.is_dry_run {
            true => DirectorySink::open_existing(&self.target, self.verifies)?,
            false => DirectorySink::open(&self.target, self.verifies)?,
        };
        Ok(Box::new(sink))
    }

    /// Refuses a target inside the source or the reverse: it would never end, or remove what it has just copied.
    fn check_overlap(&self) -> Result<()> {
        let (source, target) = match (is_url(&self.source), is_url(&self.target)) {
            (true, true) => {
                let (source, from) = Remote::open(&self.source, &self.source_options)?;
                let (target, to) = Remote::open(&self.target, &self.target_options)?;
                if !source.is_same_bucket(&target) {
                    return Ok(()); // may have the same name on two servers
                }
                (source.key_of(&from)?, target.key_of(&to)?)
            }
            (false, false) => (real_path(&self.source), real_path(&self.target)),
            _ => return Ok(()),
        };
        if source.starts_with(&target) || target.starts_with(&source) {
            return Err(Error::config(format!(
                "target: expected a location outside the source, got {target:?} for the source {source:?}"
            )));
        }
        Ok(())
    }

    /// Removes files that are not in the source, if that is certain.
    fn remove(
        &self,
        transfer: &Transfer,
        (files, directories): (Vec<PathBuf>, Vec<PathBuf>),
        is_certain: bool,
        is_empty: bool,
    ) -> Vec<PathBuf> {
        if transfer.is_halted() || files.is_empty() && directories.is_empty() {
            return Vec::new();
        }
        let kept = |why: &str, hint: &'static str| {
            transfer.fail(Error::new(Kind::Unavailable, format!("nothing was removed: {why}")).with_hint(hint));
            Vec::new()
        };
        if !is_certain {
            return kept(
                "some directories could not be listed, or some files could not be examined",
                "fix the failures listed above, and run the same command again",
            );
        }
        if is_empty && !files.is_empty() {
            let hint = "check that it is mounted and the path is right; to empty the target, remove its files yourself";
            return kept("the source has no files at all", hint);
        }
        let count = files.len() as u64;
        if let Some(max) = self.max_delete.filter(|max| count > *max) {
            let hint = "check that the source is complete and the target is the right one; `dry_run=true` lists the files; then raise `max_delete`";
            return kept(
                &format!("the target has {count} files that are not in the source, and --max-delete is {max}"),
                hint,
            );
        }
        if self.is_dry_run {
            return files;
        }
        let mut removed = Vec::new();
        for name in files {
            match transfer.with_retries(End::Target, |_| transfer.sink.remove(&name)) {
                Ok(()) => removed.push(name),
                Err(error) => transfer.fail(error),
            }
        }
        for name in directories {
            if let Err(error) = transfer.with_retries(End::Target, |_| transfer.sink.remove_directory(&name)) {
                transfer.fail(error);
            }
        }
        removed
    }
}

fn kind_at(path: &Path) -> Option<MountKind> {
    if is_url(path) { Some(MountKind::Remote) } else { kind_of(&forebay_store::Local, path) }
}

fn progress(transfer: &Transfer, doing: Doing) -> Progress {
    let failed = transfer.meters.failed_files.load(Relaxed);
    Progress { doing, files: 0, all_files: 0, bytes: 0, all_bytes: 0, failed }
}

/// The files that are missing at the target, or differ there.
fn compare(
    transfer: &Transfer,
    found: Vec<Found>,
    target: &Target,
    threads: usize,
    watch: &mut dyn FnMut(),
) -> Result<Vec<Found>> {
    let (mut to_copy, mut to_ask) = (Vec::new(), Vec::new());
    for file in found {
        match target.files.get(&file.name).map(|held| judge(file.stat, *held, false)) {
            Some(Verdict::Same) => {
                transfer.meters.compared_files.fetch_add(1, Relaxed);
            }
            Some(Verdict::Ask) => to_ask.push(file),
            Some(Verdict::Other) | None => to_copy.push(file),
        }
    }
    let asked = Mutex::new(Vec::new());
    let work = |file: Found, _: &workers::JobQueue<Found>| {
        let held = transfer.with_retries(End::Target, |_| transfer.sink.held(&file.name));
        let verdict = held.map(|held| held.map_or(Verdict::Other, |held| judge(file.stat, held, true)));
        transfer.meters.compared_files.fetch_add(1, Relaxed);
        match verdict {
            Ok(Verdict::Same) => {}
            Ok(_) => asked.lock().push(file),
            Err(error) => transfer.record_loss(End::Target, error),
        }
    };
    workers::run(threads, to_ask, work, watch)?;
    to_copy.append(&mut asked.into_inner());
    to_copy.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(to_copy)
}

fn copy_all(transfer: &Transfer, files: Vec<Found>, threads: usize, watch: &mut dyn FnMut()) -> Result<()> {
    let work = |file: Found, _: &workers::JobQueue<Found>| {
        if transfer.is_halted() {
            return;
        }
        match transfer.copy(&file) {
            Ok(()) => transfer.has_copied(),
            Err((end, error)) => transfer.record_loss(end, error),
        }
    };
    workers::run(threads, files, work, watch)
}

/// Removes part files of earlier runs: every selected file is complete by now.
fn tidy(transfer: &Transfer, target: &Target) {
    for part in &target.parts {
        if let Err(error) = transfer.with_retries(End::Target, |_| transfer.sink.remove(part)) {
            transfer.fail(error);
        }
    }
}
