//! Lists source and target, several directories at a time.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_core::{Error, Kind, Listing, Result, Stage};
use forebay_store::{Held, SinkEntry, Stat, check_name, is_part};
use parking_lot::Mutex;

use super::filter::Filter;
use super::transfer::{End, Transfer};
use super::workers::{self, JobQueue};

/// A file of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) name: PathBuf,
    pub(super) stat: Stat,
}

/// The content of the target.
#[derive(Debug, Default)]
pub(super) struct Target {
    pub(super) files: HashMap<PathBuf, Held>,
    /// Links and other special files.
    pub(super) others: Vec<PathBuf>,
    pub(super) directories: Vec<PathBuf>,
    /// Part files of unfinished copies.
    pub(super) parts: Vec<PathBuf>,
}

/// A directory and its ancestors: a link may lead back to one of them.
struct Visit {
    name: PathBuf,
    above: Option<Arc<Chain>>,
}

struct Chain {
    identity: (u64, u64),
    above: Option<Arc<Chain>>,
}

impl Chain {
    fn has(chain: &Option<Arc<Self>>, identity: (u64, u64)) -> bool {
        chain.as_ref().is_some_and(|chain| chain.identity == identity || Self::has(&chain.above, identity))
    }
}

/// All files of the source in the order of their names, and whether the list is complete. Directories and files that
/// could not be examined are recorded; for the root this is an error.
pub(super) fn source(
    transfer: &Transfer,
    filter: &Filter,
    threads: usize,
    watch: &mut dyn FnMut(),
) -> Result<(Vec<Found>, bool)> {
    let (found, is_complete) = (Mutex::new(Vec::new()), AtomicBool::new(true));
    let root_error = Mutex::new(None);
    let work = |visit: Visit, queue: &JobQueue<Visit>| {
        let is_root = visit.name.as_os_str().is_empty();
        match enter(transfer, filter, &visit, queue) {
            Ok((mut files, are_all)) => {
                is_complete.fetch_and(are_all, Relaxed);
                found.lock().append(&mut files);
            }
            Err(error) => {
                is_complete.store(false, Relaxed);
                match is_root {
                    true => *root_error.lock() = Some(error),
                    false => transfer.fail(error),
                }
            }
        }
    };
    workers::run(threads, [Visit { name: PathBuf::new(), above: None }], work, watch)?;
    if let Some(error) = root_error.into_inner() {
        return Err(error);
    }
    let mut found = found.into_inner();
    found.sort_by(|one: &Found, other| one.name.cmp(&other.name));
    Ok((found, is_complete.into_inner()))
}

/// Lists a directory of the source: its files, and whether they are all. Its subdirectories become jobs.
fn enter(transfer: &Transfer, filter: &Filter, visit: &Visit, queue: &JobQueue<Visit>) -> Result<(Vec<Found>, bool)> {
    let path = if visit.name.as_os_str().is_empty() { transfer.root.clone() } else { transfer.root.join(&visit.name) };
    let listing = transfer.with_retries(End::Source, |_| transfer.source.list(&path))?;
    if Chain::has(&visit.above, listing.identity()) {
        return Err(Error::new(Kind::NotFound, "is a symbolic link to a directory that contains it")
            .at_path(&path)
            .at_stage(Stage::Scan)
            .with_hint("remove the link, or exclude it with --exclude"));
    }
    let above = Some(Arc::new(Chain { identity: listing.identity(), above: visit.above.clone() }));
    for refused in listing.refused() {
        let is_root = visit.name.as_os_str().is_empty();
        let name = if is_root { PathBuf::from(refused) } else { Listing::refused_path(&visit.name, refused) };
        let is_wanted = if refused.ends_with('/') { filter.enters(&name) } else { filter.takes(&name) };
        if is_wanted {
            transfer.fail(cannot_be_named(&path, refused));
        }
    }
    let (mut files, mut are_all) = (Vec::new(), true);
    for (position, entry) in listing.iter().enumerate() {
        let name = visit.name.join(entry.name);
        if entry.is_directory && filter.enters(&name) {
            match check_name(&name) {
                Ok(()) => queue.add(Visit { name, above: above.clone() }),
                Err(error) => transfer.fail(error),
            }
        } else if !entry.is_directory && filter.takes(&name) && !is_part(entry.name) {
            let stat = || match Stat::listed(&listing, position) {
                Some(stat) => Ok(stat),
                None => transfer.with_retries(End::Source, |_| transfer.source.stat(&transfer.root.join(&name))),
            };
            match check_name(&name).and_then(|()| stat()) {
                Ok(stat) => {
                    transfer.meters.listed_files.fetch_add(1, Relaxed);
                    files.push(Found { name, stat });
                }
                Err(error) => {
                    are_all = false;
                    transfer.fail(error);
                }
            }
        }
    }
    Ok((files, are_all))
}

/// The error for an object whose name is not a valid path: it is never copied.
fn cannot_be_named(directory: &Path, name: &str) -> Error {
    let why = "its name has an empty component, \".\", \"..\" or control characters";
    Error::new(Kind::Denied, format!("was refused: {why}"))
        .at_path(&Listing::refused_path(directory, name))
        .at_stage(Stage::Scan)
        .with_hint(
            "paths cannot have such a name, or it would escape the target: rename it in the source, or exclude it",
        )
}

/// Everything at the target, and whether the list is complete.
pub(super) fn target(
    transfer: &Transfer,
    filter: &Filter,
    threads: usize,
    watch: &mut dyn FnMut(),
) -> Result<(Target, bool)> {
    let (found, is_complete) = (Mutex::new(Target::default()), AtomicBool::new(true));
    let work = |directory: PathBuf, queue: &JobQueue<PathBuf>| {
        let listed = transfer.with_retries(End::Target, |_| transfer.sink.list(&directory));
        match listed {
            Ok(entries) => {
                let mut found = found.lock();
                entries.into_iter().for_each(|entry| found.add(&directory, entry, filter, queue));
            }
            Err(error) => {
                is_complete.store(false, Relaxed);
                transfer.fail(error);
            }
        }
    };
    workers::run(threads, [PathBuf::new()], work, watch)?;
    Ok((found.into_inner(), is_complete.into_inner()))
}

impl Target {
    fn add(&mut self, directory: &Path, entry: SinkEntry, filter: &Filter, queue: &JobQueue<PathBuf>) {
        match entry {
            SinkEntry::Directory(name) => {
                let name = directory.join(name);
                if filter.enters(&name) {
                    self.directories.push(name.clone());
                    queue.add(name);
                }
            }
            SinkEntry::File(name, held) => {
                self.files.insert(directory.join(name), held);
            }
            SinkEntry::Other(name) => self.others.push(directory.join(name)),
            SinkEntry::Part(name) => self.parts.push(directory.join(name)),
        }
    }
}
