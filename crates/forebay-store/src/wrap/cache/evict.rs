//! Eviction: the least recently used entries go first.
//!
//! A cache of up to a few thousand entries is examined as a whole. Of a larger one a sample is: entries are spread over
//! directories by hash, so any few directories are a fair sample, and the oldest entries of a sample are among the
//! oldest of all. A reader has its entry open, and can finish reading after it was removed.

use std::io;

use super::folder::Folder;
use super::key::{SHARDS, shard};
use super::usage::{ScannedEntry, UsageLock};

/// Entries examined for one decision. 4096 take some 30 ms (measured: 15 ms for 2000).
const SAMPLE: usize = 4096;

/// Evicts the oldest entries until at most `must` bytes are left, or nothing more can be removed. Then continues
/// towards `wish`, so that not every write has to evict, but only briefly, because others wait. Returns how many were
/// evicted.
pub(super) fn evict(usage: &mut UsageLock<'_>, must: u64, wish: u64) -> io::Result<u64> {
    /// Removing an entry takes some 30 µs on a fast disk, and a few ms on a slow one. Not measured.
    const ENOUGH: u64 = 512;
    let mut evicted = 0;
    let mut looked_at = 0;
    let is_done = |usage: &UsageLock<'_>, evicted| {
        let total = usage.table.total();
        total <= wish || total <= must && evicted >= ENOUGH
    };
    let mut sample = Vec::new();
    while !is_done(usage, evicted) && looked_at < SHARDS {
        let wanted = sample.len() + SAMPLE;
        while sample.len() < wanted && looked_at < SHARDS {
            let slot = usage.table.cursor;
            usage.table.cursor = (slot + 1) % SHARDS;
            looked_at += 1;
            // Counts are never too small, so a zero means an empty directory.
            if usage.table.get(slot) > 0 {
                sample.extend(usage.recount(slot)?.entries);
            }
        }
        sample.sort_unstable_by_key(|seen: &ScannedEntry| seen.mtime_ns);
        // The younger half of a sample may be younger than many entries outside it.
        let count = if looked_at == SHARDS { sample.len() } else { sample.len() / 2 };
        for seen in sample.drain(..count) {
            if is_done(usage, evicted) {
                break;
            }
            evicted += u64::from(remove(usage, &seen));
        }
    }
    usage.save()?;
    Ok(evicted)
}

/// First the file, then the count: after a crash in between the count is too large, never too small.
fn remove(usage: &mut UsageLock<'_>, seen: &ScannedEntry) -> bool {
    let Ok(folder) = usage.folder.folder(&shard(seen.slot)) else { return false };
    // If one cannot be removed (an immutable file, say), others can.
    let is_gone = folder.unlink(&seen.name).is_ok();
    if is_gone {
        usage.table.subtract(seen.slot, seen.bytes);
    }
    is_gone
}

/// Removes an entry if it is still the file that was examined.
pub(super) fn remove_known(
    usage: &mut UsageLock<'_>,
    folder: &Folder,
    slot: usize,
    name: &str,
    identity: (u64, u64),
) -> io::Result<bool> {
    let is_gone = remove_uncounted(folder, name, identity)?;
    if is_gone {
        // Damage may have changed its length since it was counted.
        usage.recount(slot)?;
        usage.save()?;
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

#[cfg(test)]
mod tests {
    use super::super::claim::lock_usage;
    use super::super::key::Key;
    use super::*;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    #[test]
    fn of_a_large_cache_a_sample_is_looked_at_and_the_old_go() {
        const COUNT: usize = 2 * SAMPLE;
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let name = |number: usize| Key::whole("", Path::new(&format!("/{number}"))).name;
        for number in 0..COUNT {
            let name = name(number);
            let (file, _) = folder.make_folder(&name.shard).unwrap().write(&name.entry).unwrap();
            file.set_len(1).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(number as u64)).unwrap();
        }
        let mut usage = lock_usage(&folder).unwrap();
        assert_eq!(usage.table.total(), COUNT as u64 * 4096, "counted when it is first looked at");
        let goal = usage.table.total() / 10 * 9;
        let evicted = evict(&mut usage, goal, 0).unwrap();
        assert!(usage.table.total() <= goal && evicted as usize <= COUNT / 10 + 1, "no more than has to");
        assert!(usage.table.cursor > SHARDS / 4 && usage.table.cursor < SHARDS, "of a part of the directories");
        let is_gone = |number: &usize| !place.path().join(&name(*number).shard).join(&name(*number).entry).exists();
        let gone: Vec<_> = (0..COUNT).filter(is_gone).collect();
        assert_eq!(gone.len() as u64, evicted);
        // The oldest tenth of all is the oldest fifth of half of them.
        assert!(gone.iter().all(|number| *number < COUNT / 4), "{:?}", gone.last());
        let counted = usage.table.clone();
        (0..SHARDS).for_each(|slot| drop(usage.recount(slot).unwrap()));
        assert_eq!(usage.table, counted, "and what is left was counted right");
        assert_eq!(evict(&mut usage, 0, 0).unwrap(), COUNT as u64 - evicted, "all of them, if need be");
        assert_eq!(usage.table.total(), 0);
    }
}
