//! The sidecars of a dataset's files, and what is known of the damage that they repaired.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::{Kind, Result};
use forebay_format::Note;
use forebay_store::{Repairs, Stat, Store};

use super::reader::{FileReader, sidecar_of};
use crate::scan::call_pool::CallPool;
use crate::scan::max_threads;
use crate::source::defaults::retry_of;

/// Blocks that were made again and are kept, of all files of a dataset: a sample is often read many times, and its neighbours
/// lie in the same group.
const KEPT_BYTES: usize = 16 << 20;
/// Ranges that are doubted, and damaged blocks that are counted of a file. Where there are more, the storage is gone rather than
/// rotting, and reads are as without parity.
const MAX_KNOWN: usize = 1 << 17;

/// The sidecars of a dataset's files.
#[derive(Debug, Default)]
pub struct Sidecars {
    /// The size of each file that has one, as its sidecar says.
    files: HashMap<PathBuf, u64>,
    /// Whether anything was ever doubted: until then, reads do not look further.
    has_doubts: AtomicBool,
    reads: AtomicU64,
    blocks: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    doubts: HashMap<PathBuf, HashSet<(u64, u64)>>,
    doubt_count: usize,
    /// The oldest first.
    kept: VecDeque<(PathBuf, u64, Arc<[u8]>)>,
    kept_bytes: usize,
    damaged: BTreeMap<PathBuf, BTreeSet<u64>>,
    /// What to do about ranges that could not be repaired.
    hints: HashMap<(PathBuf, Option<Range<u64>>), String>,
}

impl Sidecars {
    /// Whether no file has one.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The size that a file has if it is whole, if it has a sidecar.
    pub(super) fn file_bytes(&self, path: &Path) -> Option<u64> {
        self.files.get(path).copied()
    }

    /// What a panic left is whole: nothing in here can fail half-way.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this range is compared with its checksums whenever it is read, until it is found to be whole.
    pub(super) fn doubt(&self, path: &Path, range: &Range<u64>) {
        if !self.files.contains_key(path) {
            return;
        }
        let mut known = self.known();
        if known.doubt_count < MAX_KNOWN
            && known.doubts.entry(path.to_owned()).or_default().insert((range.start, range.end))
        {
            known.doubt_count += 1;
            self.has_doubts.store(true, Relaxed);
        }
    }

    pub(super) fn is_doubted(&self, path: &Path, range: &Range<u64>) -> bool {
        self.has_doubts.load(Relaxed)
            && self.known().doubts.get(path).is_some_and(|ranges| ranges.contains(&(range.start, range.end)))
    }

    pub(super) fn trust(&self, path: &Path, range: &Range<u64>) {
        let mut known = self.known();
        let ranges = known.doubts.get_mut(path);
        if ranges.is_some_and(|ranges| ranges.remove(&(range.start, range.end))) {
            known.doubt_count -= 1;
        }
    }

    /// A block that was made again before.
    pub(super) fn find(&self, path: &Path, block: u64) -> Option<Arc<[u8]>> {
        let known = self.known();
        let found = known.kept.iter().find(|(of, number, _)| *number == block && of == path);
        found.map(|(_, _, bytes)| Arc::clone(bytes))
    }

    pub(super) fn keep(&self, path: &Path, block: u64, bytes: &[u8]) {
        let mut known = self.known();
        if known.kept.iter().any(|(of, number, _)| *number == block && of == path) {
            return; // two threads have made it
        }
        known.kept_bytes += bytes.len();
        known.kept.push_back((path.to_owned(), block, bytes.into()));
        while known.kept_bytes > KEPT_BYTES
            && let Some((_, _, oldest)) = known.kept.pop_front()
        {
            known.kept_bytes -= oldest.len();
        }
    }

    /// Counts a read that was repaired, and the blocks that were not what the storage has in their place.
    pub(super) fn count(&self, path: &Path, blocks: &[u64]) {
        self.reads.fetch_add(1, Relaxed);
        self.blocks.fetch_add(blocks.len() as u64, Relaxed);
        let mut known = self.known();
        let damaged = known.damaged.entry(path.to_owned()).or_default();
        for block in blocks {
            if damaged.len() < MAX_KNOWN {
                damaged.insert(*block);
            }
        }
    }

    /// What to do about a range that could not be repaired.
    pub(super) fn hint(&self, path: &Path, range: Option<&Range<u64>>) -> Option<String> {
        if !self.has_doubts.load(Relaxed) {
            return None;
        }
        self.known().hints.get(&(path.to_owned(), range.cloned())).cloned()
    }

    pub(super) fn set_hint(&self, path: &Path, range: Option<&Range<u64>>, hint: String) {
        let mut known = self.known();
        if known.hints.len() < MAX_KNOWN {
            known.hints.insert((path.to_owned(), range.cloned()), hint);
        }
    }

    pub(super) fn repairs(&self) -> Repairs {
        let files = self.known().damaged.iter().map(|(path, blocks)| (path.clone(), blocks.len() as u64)).collect();
        Repairs { reads: self.reads.load(Relaxed), blocks: self.blocks.load(Relaxed), files }
    }
}

/// Looks for the sidecar of each file, several at a time. Most files have none; what is wrong with one is noted.
pub(crate) fn find_sidecars(files: &[(PathBuf, Stat)], store: &Arc<dyn Store>) -> Result<(Sidecars, Vec<Note>)> {
    let (asked, retry) = (Arc::clone(store), retry_of(&**store));
    let keeps_deadlines = store.capabilities().keeps_deadlines;
    let mut pool = CallPool::new(max_threads(&**store), retry, keeps_deadlines, move |path: &PathBuf| {
        FileReader::new(&*asked, path, retry.deadline, None).layout()
    });
    let sizes: HashMap<_, _> = files.iter().map(|(path, stat)| (path, stat.size_bytes)).collect();
    sizes.keys().for_each(|path| pool.ask((*path).clone()));
    let (mut found, mut notes) = (Sidecars::default(), Vec::new());
    while let Some((path, layout)) = pool.next()? {
        match layout {
            Ok(layout) => {
                let (expected, got) = (layout.file_bytes(), sizes.get(&path).copied().unwrap_or_default());
                if expected != got {
                    let message = format!(
                        "is not as long as its parity says (expected {expected} bytes, got {got}): see `forebay parity --check`"
                    );
                    notes.push(Note { path: path.clone(), message });
                }
                found.files.insert(path, expected);
            }
            // Object stores say that it is forbidden to know whether something is there.
            Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Denied) => {}
            Err(error) => {
                let message = format!("was not used: {}", error.message());
                notes.push(Note { path: sidecar_of(&path), message });
            }
        }
    }
    notes.sort_by(|one, other| one.path.cmp(&other.path));
    Ok((found, notes))
}
