//! What goes when there is no room: what was not used for longest.
//!
//! A cache of up to some thousand entries is looked at as a whole. Of a larger one a part is: entries are spread over
//! directories by hash, so that any few directories are a fair sample, and the oldest of a sample are among the oldest of all.
//! Whoever reads an entry has it open, and reads on when it is removed.

use std::io;

use super::folder::Folder;
use super::key::{SHARDS, shard};
use super::usage::{Gate, Seen};

/// Entries that are looked at for one decision. 4096 take some 30 ms (measured: 15 ms for 2000).
const SAMPLE: usize = 4096;

/// Removes the oldest entries until no more than `target` bytes are left, or nothing that can be removed. Returns how many
/// went.
pub(super) fn evict(gate: &mut Gate<'_>, target: u64) -> io::Result<u64> {
    let mut evicted = 0;
    let mut looked_at = 0;
    while gate.table.total() > target && looked_at < SHARDS {
        let mut sample = Vec::new();
        while sample.len() < SAMPLE && looked_at < SHARDS {
            let slot = gate.table.cursor;
            gate.table.cursor = (slot + 1) % SHARDS;
            looked_at += 1;
            // A count is never too small: there is nothing where it is zero.
            if gate.table.get(slot) > 0 {
                sample.extend(gate.recount(slot)?.entries);
            }
        }
        let is_all = looked_at == SHARDS;
        sample.sort_unstable_by_key(|seen| seen.mtime_ns);
        // The younger half of a part may be younger than much of what was not looked at.
        let count = if is_all { sample.len() } else { sample.len() / 2 };
        for seen in sample.iter().take(count) {
            if gate.table.total() <= target {
                break;
            }
            evicted += u64::from(remove(gate, seen));
        }
    }
    gate.save()?;
    Ok(evicted)
}

/// First the file, then the number: what dies in between counts too much.
fn remove(gate: &mut Gate<'_>, seen: &Seen) -> bool {
    let Ok(folder) = gate.folder.folder(&shard(seen.slot)) else { return false };
    // One that cannot be removed (an immutable file, say) is not the only one.
    let is_gone = folder.unlink(&seen.name).is_ok();
    if is_gone {
        gate.table.subtract(seen.slot, seen.bytes);
    }
    is_gone
}

/// Removes an entry if it is still the file that was looked at.
pub(super) fn remove_known(
    gate: &mut Gate<'_>,
    folder: &Folder,
    slot: usize,
    name: &str,
    identity: (u64, u64),
) -> io::Result<bool> {
    let is_gone = remove_uncounted(folder, name, identity)?;
    if is_gone {
        // Whoever damaged it may have made it longer or shorter than it was counted.
        gate.recount(slot)?;
        gate.save()?;
    }
    Ok(is_gone)
}

/// The same without the lock on the table.
pub(super) fn remove_uncounted(folder: &Folder, name: &str, identity: (u64, u64)) -> io::Result<bool> {
    if folder.stat(name).is_ok_and(|known| known.identity == identity) {
        return folder.unlink(name).map(|()| true);
    }
    Ok(false)
}
