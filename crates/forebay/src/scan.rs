//! Scanning a folder: several directories are listed at a time, and what is found does not depend on how many.
//!
//! A directory is listed again after a pause where that may help: one hiccup must not end a scan of a million files.
//! One that does not answer within its deadline ends the scan with its name; the thread that lists it is left alone.

mod listers;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, Listing, Result, Retry};
use forebay_format::{Accept, FolderIndex, Scan, ScanOptions};
use forebay_store::{Store, machine};

use listers::Listers;

/// The classes of a folder: the directories below it, sorted.
pub fn find_classes(store: &Arc<dyn Store>, root: &Path) -> Result<Vec<String>> {
    classes_of(store, root, Retry::default())
}

fn classes_of(store: &Arc<dyn Store>, root: &Path, retry: Retry) -> Result<Vec<String>> {
    forebay_format::find_classes(root, &|directory| list(store, directory, retry))
}

/// Scans a folder through a store.
pub fn scan_folder(
    store: &Arc<dyn Store>,
    root: &Path,
    options: &ScanOptions,
    accept: Option<&mut Accept<'_>>,
) -> Result<FolderIndex> {
    scan_with(store, root, options, accept, max_threads(&**store), Retry::default())
}

/// Directories at a time.
fn max_threads(store: &dyn Store) -> usize {
    /// Not fewer where there are few processors: a disk has to be waited for. What is in the page cache takes the same
    /// processor time with one thread as with eight (measured on two processors).
    const MIN_THREADS: usize = 4;
    /// More than this fight for the locks of one file system. Not measured.
    const MAX_THREADS: usize = 16;
    match store.max_calls() {
        Some(max_calls) => max_calls.min(MAX_THREADS),
        None => machine::available_cpus().clamp(MIN_THREADS, MAX_THREADS),
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
    let classes = match &options.classes {
        Some(classes) => classes.clone(),
        None => classes_of(store, root, retry)?.into_iter().zip(0..).collect(),
    };
    let mut scan = Scan::new(root, &classes, options, accept);
    let sieve = scan.sieve();
    let mut listers = Listers::new(store, max_threads, retry, move |listing| sieve.sift(&listing));
    loop {
        // Enough that no thread waits for this one; the others stay in the order of the scan.
        while listers.waiting() < 16 * max_threads
            && let Some(errand) = scan.next_errand()
        {
            listers.ask(errand);
        }
        let Some((errand, listed)) = listers.next()? else { return scan.finish() };
        scan.give(errand, listed);
        if scan.has_failed() {
            listers.keep(|errand| scan.needs(errand));
        }
    }
}

/// Lists one directory.
fn list(store: &Arc<dyn Store>, directory: &Path, retry: Retry) -> Result<Listing> {
    let mut listers = Listers::new(store, 1, retry, |listing| listing);
    listers.ask(PathBuf::from(directory));
    match listers.next()? {
        Some((_, listed)) => listed,
        None => Err(Error::internal("a directory was asked for and not listed")),
    }
}

#[cfg(test)]
mod tests;
