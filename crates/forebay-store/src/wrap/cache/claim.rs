//! The exclusive right to fetch an object and to write its entry. A thread holds it; it is released if the process
//! dies.
//!
//! The lock is on the file that becomes the entry (`….part`). When complete, the file is renamed, and threads that
//! waited for the lock find the entry. A dead owner leaves the file unlocked, and the next owner reuses it.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use super::directory::{MAX_LOCK_WAIT, held_too_long};
use super::evict::evict;
use super::folder::Folder;
use super::key::Name;
use super::lock::{Lock, Waited, wait};
use super::usage::{UsageLock, disk_bytes};
use crate::store::CancelSignals;

/// The result of asking for the claim.
#[derive(Debug)]
pub(super) enum Claimed {
    Mine(Claim),
    /// Another thread or process has written the entry meanwhile.
    Present,
}

/// An entry to be written; dropping it gives it up.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) folder: Arc<Folder>,
    shard: Folder,
    name: Name,
    lock: Lock,
    /// Bytes reserved for it in the usage table.
    pub(super) reserved: u64,
    is_done: bool,
}

impl Claim {
    /// Waits for the claim, or until the entry exists. An entry that is known to be `bad` does not count.
    pub(super) fn take(
        folder: &Arc<Folder>,
        name: &Name,
        bad: Option<(u64, u64)>,
        until: Instant,
        signals: Option<&CancelSignals>,
    ) -> io::Result<Waited<Claimed>> {
        let shard = folder.make_folder(&name.shard)?;
        let part = name.part();
        let is_there = || shard.stat(&name.entry).is_ok_and(|known| known.is_file && Some(known.identity) != bad);
        let locked = wait(until, signals, || {
            if is_there() {
                return Ok(Some(None));
            }
            Lock::attempt(&shard, &part).map(|lock| lock.map(Some))
        })?;
        let lock = match locked {
            Waited::Done(Some(lock)) => lock,
            Waited::Done(None) => return Ok(Waited::Done(Claimed::Present)),
            Waited::Late => return Ok(Waited::Late),
            Waited::Stopped => return Ok(Waited::Stopped),
        };
        let is_present = is_there();
        let claim = Self { folder: Arc::clone(folder), shard, name: name.clone(), lock, reserved: 0, is_done: false };
        // Dropping the claim removes its part file.
        Ok(Waited::Done(if is_present { Claimed::Present } else { Claimed::Mine(claim) }))
    }

    /// Makes room for this many bytes within a limit. Returns how many entries were evicted, or `None` if there is no
    /// room.
    pub(super) fn reserve(&mut self, length: u64, limit: u64) -> io::Result<Option<u64>> {
        let bytes = disk_bytes(length);
        if bytes > limit {
            return Ok(None);
        }
        let folder = Arc::clone(&self.folder);
        let mut usage = lock_usage(&folder)?;
        if self.lock.known.length > 0 {
            // A dead owner's bytes were already counted.
            self.lock.file.set_len(0)?;
            usage.recount(self.name.slot())?;
        }
        let mut evicted = 0;
        if usage.table.total().saturating_add(bytes) > limit {
            evicted = evict(&mut usage, limit - bytes, (limit - bytes).saturating_sub(limit / 32))?;
            if usage.table.total().saturating_add(bytes) > limit {
                return Ok(None);
            }
        }
        usage.table.add(self.name.slot(), bytes);
        usage.table.limit_bytes = limit;
        usage.save()?;
        self.reserved = bytes;
        self.lock.file.set_len(length)?;
        Ok(Some(evicted))
    }

    /// Writes the content into the reserved space.
    pub(super) fn write(&self, content: &[u8], tail: &[u8]) -> io::Result<()> {
        self.lock.file.write_all_at(content, 0)?;
        self.lock.file.write_all_at(tail, content.len() as u64)
    }

    /// Renames it to its entry; false if the part file was removed meanwhile.
    pub(super) fn commit(mut self) -> io::Result<bool> {
        let part = self.name.part();
        let folder = Arc::clone(&self.folder);
        let mut usage = lock_usage(&folder)?;
        if !self.lock.is_in_place(&self.shard, &part) {
            return Ok(false);
        }
        let is_replacing = self.shard.stat(&self.name.entry).is_ok();
        self.shard.rename(&part, &self.name.entry)?;
        self.is_done = true;
        if is_replacing {
            usage.recount(self.name.slot())?;
            usage.save()?;
        }
        Ok(true)
    }
}

/// Evicts a large part of the cache, at least twice `wanted`, for a disk that is fuller than the limit assumes. Returns
/// the bytes left, and how many entries were evicted.
pub(super) fn make_room(folder: &Folder, wanted: u64) -> io::Result<(u64, u64)> {
    let mut usage = lock_usage(folder)?;
    let total = usage.table.total();
    let (must, wish) = (total.saturating_sub(2 * wanted), total - total / 8);
    let evicted = evict(&mut usage, must, wish.min(must))?;
    Ok((usage.table.total(), evicted))
}

/// The lock on the whole cache; an error if it is not free in time.
pub(super) fn lock_usage(folder: &Folder) -> io::Result<UsageLock<'_>> {
    match UsageLock::acquire(folder, Instant::now() + MAX_LOCK_WAIT, None)? {
        Waited::Done(usage) => Ok(usage),
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
            // Nothing was reserved for it. If it cannot be removed, the next scan finds it.
            let _removed = self.shard.unlink(&part);
            return;
        }
        // Without the table's lock the count stays too large until the next scan.
        let usage = lock_usage(&self.folder);
        if self.shard.unlink(&part).is_ok()
            && let Ok(mut usage) = usage
        {
            let _saved = usage.recount(self.name.slot()).and_then(|_| usage.save());
        }
    }
}
