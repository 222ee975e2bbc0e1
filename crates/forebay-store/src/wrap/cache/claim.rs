//! The right to get an object and to make an entry of it: of one thread of one process, and lost when that dies.
//!
//! The lock is on the very file that becomes the entry (`….part`). Complete, it is renamed; whoever waited for the lock finds
//! the entry. Of a dead owner it is left behind unlocked, and whoever comes next goes on with it.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use super::directory::{GATE_PATIENCE, held_too_long};
use super::evict::evict;
use super::folder::Folder;
use super::key::Name;
use super::lock::{Lock, Waited, wait};
use super::usage::{Gate, disk_bytes};
use crate::store::Ends;

/// What became of asking for an object.
#[derive(Debug)]
pub(super) enum Claimed {
    Mine(Claim),
    /// Somebody else got it meanwhile.
    Landed,
}

/// An entry to be written, or given up by dropping it.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) folder: Arc<Folder>,
    shard: Folder,
    name: Name,
    lock: Lock,
    /// Bytes that are counted for it.
    pub(super) reserved: u64,
    is_done: bool,
}

impl Claim {
    /// Waits until it is this one's turn, or the entry is there. An entry that is known to be `bad` does not count.
    pub(super) fn take(
        folder: &Arc<Folder>,
        name: &Name,
        bad: Option<(u64, u64)>,
        until: Instant,
        ends: Option<&Ends>,
    ) -> io::Result<Waited<Claimed>> {
        let shard = folder.make_folder(&name.shard)?;
        let part = name.part();
        let is_there = || shard.stat(&name.entry).is_ok_and(|known| known.is_file && Some(known.identity) != bad);
        let locked = wait(until, ends, || {
            if is_there() {
                return Ok(Some(None));
            }
            Lock::attempt(&shard, &part).map(|lock| lock.map(Some))
        })?;
        let lock = match locked {
            Waited::Done(Some(lock)) => lock,
            Waited::Done(None) => return Ok(Waited::Done(Claimed::Landed)),
            Waited::Late => return Ok(Waited::Late),
            Waited::Stopped => return Ok(Waited::Stopped),
        };
        let landed = is_there();
        let claim = Self { folder: Arc::clone(folder), shard, name: name.clone(), lock, reserved: 0, is_done: false };
        // Dropped, it takes its part with it.
        Ok(Waited::Done(if landed { Claimed::Landed } else { Claimed::Mine(claim) }))
    }

    /// Makes room for so many bytes within a limit; `None` when there is none, else how many entries went for it.
    pub(super) fn reserve(&mut self, length: u64, limit: u64) -> io::Result<Option<u64>> {
        let bytes = disk_bytes(length);
        if bytes > limit {
            return Ok(None);
        }
        let folder = Arc::clone(&self.folder);
        let mut gate = enter(&folder)?;
        if self.lock.known.length > 0 {
            // What a dead owner left of it was counted.
            self.lock.file.set_len(0)?;
            gate.recount(self.name.slot())?;
        }
        let mut evicted = 0;
        if gate.table.total().saturating_add(bytes) > limit {
            evicted = evict(&mut gate, limit - bytes, (limit - bytes).saturating_sub(limit / 32))?;
            if gate.table.total().saturating_add(bytes) > limit {
                return Ok(None);
            }
        }
        gate.table.add(self.name.slot(), bytes);
        gate.table.limit_bytes = limit;
        gate.save()?;
        self.reserved = bytes;
        self.lock.file.set_len(length)?;
        Ok(Some(evicted))
    }

    /// Writes what was reserved for.
    pub(super) fn write(&self, content: &[u8], tail: &[u8]) -> io::Result<()> {
        self.lock.file.write_all_at(content, 0)?;
        self.lock.file.write_all_at(tail, content.len() as u64)
    }

    /// Makes it an entry; false when somebody has removed it meanwhile.
    pub(super) fn commit(mut self) -> io::Result<bool> {
        let part = self.name.part();
        let folder = Arc::clone(&self.folder);
        let mut gate = enter(&folder)?;
        if !self.lock.is_in_place(&self.shard, &part) {
            return Ok(false);
        }
        let is_replacing = self.shard.stat(&self.name.entry).is_ok();
        self.shard.rename(&part, &self.name.entry)?;
        self.is_done = true;
        if is_replacing {
            gate.recount(self.name.slot())?;
            gate.save()?;
        }
        Ok(true)
    }
}

/// Removes a good part of what there is, twice what is `wanted` at least, for a disk that is fuller than the limit says.
/// Returns what is left, and how many entries went.
pub(super) fn make_room(folder: &Folder, wanted: u64) -> io::Result<(u64, u64)> {
    let mut gate = enter(folder)?;
    let total = gate.table.total();
    let (must, wish) = (total.saturating_sub(2 * wanted), total - total / 8);
    let evicted = evict(&mut gate, must, wish.min(must))?;
    Ok((gate.table.total(), evicted))
}

/// The lock on the whole cache, if it is to be had in time.
pub(super) fn enter(folder: &Folder) -> io::Result<Gate<'_>> {
    match Gate::enter(folder, Instant::now() + GATE_PATIENCE, None)? {
        Waited::Done(gate) => Ok(gate),
        Waited::Late | Waited::Stopped => Err(held_too_long()),
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let part = self.name.part();
        if self.is_done || !self.lock.is_in_place(&self.shard, &part) {
            return;
        }
        if self.reserved == 0 {
            // Nothing was counted for it. One that stays is found by the next scan.
            let _removed = self.shard.unlink(&part);
            return;
        }
        // Without the lock on the table the count stays too large until the next scan.
        let gate = enter(&self.folder);
        if self.shard.unlink(&part).is_ok()
            && let Ok(mut gate) = gate
        {
            let _saved = gate.recount(self.name.slot()).and_then(|_| gate.save());
        }
    }
}
