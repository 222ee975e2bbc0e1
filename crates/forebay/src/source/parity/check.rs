//! Files compared with their sidecars as a whole, and repaired in place.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result, Retry, Stage};
use forebay_format::{GroupRecord, ParityLayout};
use forebay_store::{Replacement, Stat, Store};

use super::make::{Group, Watch, check_is_local};
use super::reader::{Examined, FileReader};
use crate::scan::call_pool::CallPool;
use crate::scan::{max_threads, once};
use crate::source::defaults::retry_of;

/// What a file is, compared with its sidecar.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParityCheck {
    /// How long the file was when its sidecar was made.
    pub expected_bytes: u64,
    /// How long it is.
    pub file_bytes: u64,
    /// The bytes that differ, by block, neighbours together.
    pub damaged: Vec<Range<u64>>,
    /// How many blocks differ.
    pub damaged_blocks: u64,
    /// How many of them are elsewhere in the file: bytes were put in or taken out before them.
    pub moved_blocks: u64,
    /// How many of them cannot be made again.
    pub lost_blocks: u64,
    /// How many pieces of the sidecar are damaged.
    pub damaged_parity: u64,
}

impl ParityCheck {
    /// Whether the file is what it was.
    pub fn is_whole(&self) -> bool {
        self.damaged_blocks == 0 && self.file_bytes == self.expected_bytes
    }

    /// Whether all of it can be had.
    pub fn is_repairable(&self) -> bool {
        self.lost_blocks == 0
    }
}

/// What was found of a group.
struct Found {
    damaged: Vec<u64>,
    moved: u64,
    lost: u64,
    damaged_parity: u64,
    made: Vec<(u64, Vec<u8>)>,
}

/// Compares a file with its sidecar: every block of both is read.
pub fn check_parity(store: &Arc<dyn Store>, path: &Path, watch: &mut dyn FnMut(u64, u64)) -> Result<ParityCheck> {
    let checked = look(store, path, false, watch).map(|(check, _, _)| check);
    checked.map_err(|error| error.at_path(path).at_stage(Stage::Scan))
}

/// The same, and then the file is replaced by what it was, in one step, if it differs and can be repaired. Every block of the new one
/// has its checksum. In memory is what was damaged.
pub fn repair_by_parity(store: &Arc<dyn Store>, path: &Path, watch: &mut dyn FnMut(u64, u64)) -> Result<ParityCheck> {
    let mut repair = || {
        check_is_local(path)?;
        let (check, layout, made) = look(store, path, true, watch)?;
        if !check.is_whole() && check.is_repairable() {
            rewrite(store, path, &layout, &made)?;
        }
        Ok(check)
    };
    repair().map_err(|error: Error| error.at_path(path).at_stage(Stage::Scan))
}

/// Records in memory: runs go from group to group, and there are sixteen in a region.
const MAX_RECORDS: usize = 32;

/// Blocks that were made again.
type Made = HashMap<u64, Vec<u8>>;

fn look(
    store: &Arc<dyn Store>,
    path: &Path,
    repairs: bool,
    watch: Watch<'_>,
) -> Result<(ParityCheck, ParityLayout, Made)> {
    let retry = retry_of(&**store);
    let reader = Arc::clone(store);
    let (layout, stat) = once(store, path, retry, move |path| examine(&*reader, path, retry))?;
    let (reader, keeps_deadlines) = (Arc::clone(store), store.capabilities().keeps_deadlines);
    let mut pool = CallPool::new(max_threads(&**store), retry, keeps_deadlines, move |group: &Group| {
        let reader = FileReader::new(&*reader, &group.path, retry.deadline, None);
        look_at(&reader.examine(layout)?, group.number, repairs)
    });
    let shared: Arc<Path> = path.into();
    let (mut asked, mut done, count) = (0, 0, layout.group_count());
    let file_bytes = stat.map_or(layout.file_bytes(), |stat| stat.size_bytes);
    let mut check = ParityCheck { expected_bytes: layout.file_bytes(), file_bytes, ..ParityCheck::default() };
    let (mut damaged, mut made) = (Vec::new(), Made::new());
    while done < count {
        while asked < count && asked < done + 64 {
            pool.ask(Group { path: Arc::clone(&shared), number: asked });
            asked += 1;
        }
        let Some((_, found)) = pool.next()? else {
            return Err(Error::internal("a group was left out of the check"));
        };
        let found = found?;
        done += 1;
        check.moved_blocks += found.moved;
        check.lost_blocks += found.lost;
        check.damaged_parity += found.damaged_parity;
        damaged.extend(found.damaged);
        made.extend(found.made);
        watch(done, count);
    }
    damaged.sort_unstable();
    check.damaged_blocks = damaged.len() as u64;
    for block in damaged {
        let range = layout.block_range(block);
        match check.damaged.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => check.damaged.push(range),
        }
    }
    Ok((check, layout, made))
}

fn examine(store: &dyn Store, path: &Path, retry: Retry) -> Result<(ParityLayout, Option<Stat>)> {
    let reader = FileReader::new(store, path, retry.deadline, None);
    let layout = reader.layout().map_err(|error| match error.kind() {
        Kind::NotFound => error.with_hint("make its parity with `forebay parity`, of a file that is whole"),
        _ => error,
    })?;
    Ok((layout, reader.examine(layout)?.stat))
}

fn look_at(file: &Examined<'_>, group: u64, repairs: bool) -> Result<Found> {
    let damaged_copies = file.damaged_copies(group)?;
    let Some(record) = file.record(group)?.0 else {
        // Their true content is unknown.
        let damaged: Vec<_> = file.layout.runs_of(group).flat_map(|run| run.blocks).collect();
        let lost = damaged.len() as u64;
        return Ok(Found { damaged, moved: 0, lost, damaged_parity: damaged_copies, made: Vec::new() });
    };
    let gathered = file.gather(&record, true)?;
    let (missing, damaged_parity) = (gathered.missing, gathered.damaged_parity + damaged_copies);
    let is_lost = gathered.repair.needs_parity() > 0;
    let (mut lost, mut made) = (if is_lost { missing.lost.len() as u64 } else { 0 }, Vec::new());
    if repairs && !is_lost && !missing.lost.is_empty() {
        match gathered.repair.finish()? {
            Some(blocks) => made = blocks,
            None => lost = missing.lost.len() as u64,
        }
    }
    let moved = missing.moved.len() as u64;
    let damaged = missing.lost.into_iter().chain(missing.moved).collect();
    Ok(Found { damaged, moved, lost, damaged_parity, made })
}

/// Writes the file anew, block by block, each by its checksum.
fn rewrite(store: &Arc<dyn Store>, path: &Path, layout: &ParityLayout, made: &Made) -> Result<()> {
    let retry = retry_of(&**store);
    let mut out = Replacement::new(path)?;
    let mut records: BTreeMap<u64, GroupRecord> = BTreeMap::new();
    for (group, run) in layout.runs_around(&(0..layout.file_bytes())) {
        // Each run within a deadline of its own.
        let file = FileReader::new(&**store, path, retry.deadline, None).examine(*layout)?;
        if !records.contains_key(&group) {
            let gone = || Error::new(Kind::Changed, "changed while it was repaired: its parity is damaged now");
            let record = file.record(group)?.0.ok_or_else(gone)?;
            if records.len() >= MAX_RECORDS {
                records.pop_first();
            }
            records.insert(group, record);
        }
        let record = &records[&group];
        let mut bytes = vec![0; (run.bytes.end - run.bytes.start) as usize];
        let mut put = |block: u64, content: &[u8]| {
            let range = layout.block_range(block);
            let place = (range.start - run.bytes.start) as usize..(range.end - run.bytes.start) as usize;
            bytes[place].copy_from_slice(content);
        };
        let missing = file.offer(&run, &mut |number, block, content| {
            let is_good = record.is_block(number, content);
            if is_good {
                put(block, content);
            }
            Ok(is_good)
        })?;
        for block in missing.lost {
            let changed = || Error::new(Kind::Changed, "changed while it was repaired: other blocks are damaged now");
            put(block, made.get(&block).ok_or_else(changed)?);
        }
        out.write_all(&bytes).map_err(|error| Error::io("written", error))?;
    }
    out.commit().map(|_| ())
}
