//! Scanning a folder: several directories are listed at a time, and what is found does not depend on how many.
//!
//! A directory is listed again after a pause where that may help: one hiccup must not end a scan of a million files.
//! One that does not answer within its deadline ends the scan with its name; the thread that lists it is left alone.

pub(crate) mod annotate;
pub(crate) mod call_pool;
pub(crate) mod pieces;
pub(crate) mod ranges;
pub(crate) mod sequential;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Listing, Result, Retry, Version};
use forebay_format::{Accept, FolderIndex, Note, Scan, ScanOptions};
use forebay_store::{Store, machine};

use crate::scan::call_pool::{CallPool, Polled};
use crate::source::defaults::retry_of;

/// How far a scan has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanProgress {
    /// Directories are listed.
    Listing {
        /// Those that are done.
        directories: u64,
        /// Samples in them; of an object store, names that came so far.
        samples: u64,
    },
    /// Sizes and times are asked for.
    Examining {
        /// Samples that are done.
        done: u64,
        /// Samples to do.
        total: u64,
    },
    /// Samples are read.
    Reading {
        /// Samples that are done.
        done: u64,
        /// Samples to do.
        total: u64,
        /// Bytes that were read.
        bytes: u64,
    },
}

/// Is told how far a scan has come, several times a second.
pub type WatchScan<'a> = dyn FnMut(ScanProgress) + 'a;

/// How often progress is reported while no job ends.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The classes of a folder: the directories below it, sorted; and what is to be said of other names beside them.
pub fn find_classes(store: &Arc<dyn Store>, root: &Path) -> Result<(Vec<String>, Vec<Note>)> {
    let (classes, refused) = classes_of(store, root, retry_of(&**store))?;
    Ok((classes, refused.iter().map(|name| Note::refused(root, name)).collect()))
}

/// The classes, and the names beside them that no path can hold.
fn classes_of(store: &Arc<dyn Store>, root: &Path, retry: Retry) -> Result<(Vec<String>, Vec<String>)> {
    let refused = RefCell::new(Vec::new());
    let classes = forebay_format::find_classes(root, &|directory| {
        let listing = list(store, directory, retry)?;
        refused.borrow_mut().extend_from_slice(listing.refused());
        Ok(listing)
    })?;
    Ok((classes, refused.into_inner()))
}

/// The entries of one directory, with retries.
pub fn list_directory(store: &Arc<dyn Store>, directory: &Path) -> Result<Listing> {
    list(store, directory, retry_of(&**store))
}

/// Scans a folder through a store.
pub fn scan_folder(
    store: &Arc<dyn Store>,
    root: &Path,
    options: &ScanOptions,
    accept: Option<&mut Accept<'_>>,
) -> Result<FolderIndex> {
    scan_with(store, root, options, accept, max_threads(&**store), retry_of(&**store))
}

/// The same, with what listings tell of each sample.
pub(crate) fn scan_with_versions(
    store: &Arc<dyn Store>,
    root: &Path,
    options: &ScanOptions,
    watch: &mut WatchScan<'_>,
) -> Result<(FolderIndex, Vec<Version>)> {
    let retry = retry_of(&**store);
    let (classes, refused) = classes_to_scan(store, root, options, retry)?;
    let scan = Scan::new(root, &classes, options, None).refusing(&refused).keeping_versions();
    drive(store, scan, max_threads(&**store), retry, watch)?.finish_with_versions()
}

/// Calls at a time.
pub(crate) fn max_threads(store: &dyn Store) -> usize {
    /// Not fewer where there are few processors: a disk has to be waited for. What is in the page cache takes the same
    /// processor time with one thread as with eight (measured on two processors).
    const MIN_THREADS: usize = 4;
    /// More than this fight for the locks of one file system. Not measured.
    const MAX_THREADS: usize = 16;
    match store.capabilities().max_calls {
        Some(max_calls) => max_calls.min(MAX_THREADS),
        None => machine::available_cpus().clamp(MIN_THREADS, MAX_THREADS),
    }
}

/// Classes with their numbers, and names that were refused beside them.
type Classes = (Vec<(String, u32)>, Vec<String>);

fn classes_to_scan(store: &Arc<dyn Store>, root: &Path, options: &ScanOptions, retry: Retry) -> Result<Classes> {
    match options.known_classes() {
        Some(classes) => Ok((classes, Vec::new())),
        None => {
            let (classes, refused) = classes_of(store, root, retry)?;
            Ok((classes.into_iter().zip(0..).collect(), refused))
        }
    }
}

fn scan_with(
    store: &Arc<dyn Store>,
    root: &Path,
    options: &ScanOptions,
    accept: Option<&mut Accept<'_>>,
    max_threads: usize,
    retry: Retry,
) -> Result<FolderIndex> {
    let (classes, refused) = classes_to_scan(store, root, options, retry)?;
    let scan = Scan::new(root, &classes, options, accept).refusing(&refused);
    drive(store, scan, max_threads, retry, &mut |_| {})?.finish()
}

/// Lists what a scan asks for, until it asks for nothing more.
fn drive<'a, 'b>(
    store: &Arc<dyn Store>,
    mut scan: Scan<'a, 'b>,
    max_threads: usize,
    retry: Retry,
    watch: &mut WatchScan<'_>,
) -> Result<Scan<'a, 'b>> {
    let (filter, lister) = (scan.filter(), Arc::clone(store));
    let mut pool = CallPool::new(
        max_threads,
        retry,
        store.capabilities().keeps_deadlines,
        move |job: &forebay_format::ListJob| lister.list(job.as_ref()).map(|listing| filter.apply(&listing)),
    );
    let (mut directories, mut samples) = (0, 0);
    loop {
        // Enough that no thread waits for this one; the others stay in the order of the scan.
        while pool.waiting() < 16 * max_threads
            && let Some(job) = scan.next_job()
        {
            pool.ask(job);
        }
        match pool.poll(POLL_INTERVAL)? {
            Polled::Done(job, listed) => {
                directories += 1;
                samples += listed.as_ref().map_or(0, |filtered| filtered.len() as u64);
                scan.give(job, listed);
                if scan.has_failed() {
                    pool.keep(|job| scan.needs(job));
                }
            }
            Polled::Waiting => {}
            Polled::End => return Ok(scan),
        }
        // Pages of a directory that is not complete count, too.
        let listed = store.traffic().map_or(0, |traffic| traffic.listed);
        watch(ScanProgress::Listing { directories, samples: samples.max(listed) });
    }
}

/// Lists one directory.
fn list(store: &Arc<dyn Store>, directory: &Path, retry: Retry) -> Result<Listing> {
    let lister = Arc::clone(store);
    once(store, directory, retry, move |directory| lister.list(directory))
}

/// Makes one call about a path, with retries, and returns within its deadline.
pub(crate) fn once<T: Send + 'static>(
    store: &Arc<dyn Store>,
    path: &Path,
    retry: Retry,
    call: impl Fn(&Path) -> Result<T> + Send + Sync + 'static,
) -> Result<T> {
    let mut pool = CallPool::new(1, retry, store.capabilities().keeps_deadlines, move |path: &PathBuf| call(path));
    pool.ask(PathBuf::from(path));
    match pool.next()? {
        Some((_, done)) => done,
        None => Err(Error::internal("a call was asked for and not made")),
    }
}

#[cfg(test)]
mod tests;
