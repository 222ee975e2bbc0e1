//! How much a cache holds, for all processes together: one small file, and a lock on it that is held for moments.
//!
//! A number for each directory of entries. Whatever changes what lies there is done under the lock, and in such an order
//! that a process which dies in between leaves a number that is too large, never one that is too small; the next scan of
//! that directory puts it right. After the machine was started anew, or if the file is not what was written, everything is
//! counted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::Instant;

use xxhash_rust::xxh3::xxh3_64;

use super::entry::fill;
use super::folder::Folder;
use super::key::{SHARDS, Sort, shard, sort_of};
use super::lock::{Lock, Waited, wait};
use crate::store::Ends;

/// The file's name.
pub(super) const USAGE: &str = "usage";
const MAGIC: u64 = u64::from_le_bytes(*b"fb-use-1");
/// Magic, boot, cursor, limit, the directories, a checksum.
const WORDS: usize = 4 + SHARDS + 1;

/// What a file takes on the disk: whole blocks.
pub(super) fn disk_bytes(length: u64) -> u64 {
    /// Of most file systems.
    const BLOCK: u64 = 4096;
    length.div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// What each directory holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    bytes: Vec<u64>,
    /// The directory that is looked at next for what to remove.
    pub(super) cursor: usize,
    /// The limit of whoever wrote last, for people.
    pub(super) limit_bytes: u64,
}

impl Table {
    pub(super) fn total(&self) -> u64 {
        self.bytes.iter().fold(0, |total, bytes| total.saturating_add(*bytes))
    }

    pub(super) fn get(&self, slot: usize) -> u64 {
        self.bytes[slot]
    }

    pub(super) fn add(&mut self, slot: usize, bytes: u64) {
        self.bytes[slot] = self.bytes[slot].saturating_add(bytes);
    }

    pub(super) fn subtract(&mut self, slot: usize, bytes: u64) {
        self.bytes[slot] = self.bytes[slot].saturating_sub(bytes);
    }

    fn set(&mut self, slot: usize, bytes: u64) {
        self.bytes[slot] = bytes;
    }
}

/// The lock on a cache, and its table.
#[derive(Debug)]
pub(super) struct Gate<'a> {
    lock: Lock,
    pub(super) folder: &'a Folder,
    pub(super) table: Table,
}

impl<'a> Gate<'a> {
    /// Enters; counts everything where the table is not to be believed.
    pub(super) fn enter(folder: &'a Folder, until: Instant, ends: Option<&Ends>) -> io::Result<Waited<Self>> {
        Ok(match wait(until, ends, || Lock::attempt(folder, USAGE))? {
            Waited::Done(lock) => Waited::Done(Self::within(lock, folder)?),
            Waited::Late => Waited::Late,
            Waited::Stopped => Waited::Stopped,
        })
    }

    fn within(lock: Lock, folder: &'a Folder) -> io::Result<Self> {
        if let Some(table) = load(&lock.file)? {
            return Ok(Self { lock, folder, table });
        }
        let table = Table { bytes: vec![0; SHARDS], cursor: 0, limit_bytes: 0 };
        let mut gate = Self { lock, folder, table };
        for slot in 0..SHARDS {
            gate.recount(slot)?;
        }
        gate.save()?;
        Ok(gate)
    }

    /// Counts one directory.
    pub(super) fn recount(&mut self, slot: usize) -> io::Result<Scanned> {
        let scanned = scan(self.folder, slot)?;
        self.table.set(slot, scanned.total());
        Ok(scanned)
    }

    /// Writes the table down.
    pub(super) fn save(&self) -> io::Result<()> {
        let Table { bytes, cursor, limit_bytes } = &self.table;
        let words = [MAGIC, boot(), *cursor as u64, *limit_bytes];
        let mut file: Vec<u8> = words.iter().chain(bytes).flat_map(|word| word.to_le_bytes()).collect();
        file.extend_from_slice(&xxh3_64(&file).to_le_bytes());
        // One page: a process that is killed has written all of it or nothing.
        self.lock.file.write_all_at(&file, 0)
    }
}

fn load(file: &File) -> io::Result<Option<Table>> {
    let mut bytes = [0; WORDS * 8];
    if !fill(file, &mut bytes, 0)? {
        return Ok(None);
    }
    let (checked, checksum) = bytes.split_at(bytes.len() - 8);
    let words: Vec<u64> = checked
        .chunks_exact(8)
        .map(|word| word.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
        .collect();
    let is_ours = xxh3_64(checked).to_le_bytes() == *checksum && words[..2] == [MAGIC, boot()];
    Ok(is_ours.then(|| Table { bytes: words[4..].to_vec(), cursor: words[2] as usize % SHARDS, limit_bytes: words[3] }))
}

/// Which start of the machine this is: what was not written to the disk before it ended may be lost.
fn boot() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    *BOOT.get_or_init(|| std::fs::read("/proc/sys/kernel/random/boot_id").map_or(0, |text| xxh3_64(&text)))
}

/// An entry found by a scan.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) slot: usize,
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) mtime_ns: i64,
}

/// What lies in one directory.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    pub(super) entries: Vec<Seen>,
    /// Bytes of what is not complete.
    pub(super) part_bytes: u64,
}

impl Scanned {
    pub(super) fn total(&self) -> u64 {
        self.entries.iter().fold(self.part_bytes, |total, entry| total.saturating_add(entry.bytes))
    }
}

/// Looks at one directory, and removes what dead processes left half done in it. What is not ours is passed over.
fn scan(folder: &Folder, slot: usize) -> io::Result<Scanned> {
    let mut scanned = Scanned::default();
    let shard = match folder.folder(&shard(slot)) {
        Ok(shard) => shard,
        Err(error) if is_absent(&error) => return Ok(scanned),
        Err(error) => return Err(error),
    };
    for name in shard.names()? {
        let Some((name, sort)) = name.to_str().and_then(|name| Some((name, sort_of(name)?))) else { continue };
        let Ok(known) = shard.stat(name) else { continue };
        if !known.is_file {
            continue;
        }
        let bytes = disk_bytes(known.length);
        match sort {
            Sort::Entry => {
                scanned.entries.push(Seen { slot, name: name.to_owned(), bytes, mtime_ns: known.mtime_ns });
            }
            Sort::Part if is_abandoned(&shard, name) => {}
            Sort::Part => scanned.part_bytes = scanned.part_bytes.saturating_add(bytes),
        }
    }
    Ok(scanned)
}

/// Removes a part whose owner is gone.
fn is_abandoned(shard: &Folder, name: &str) -> bool {
    matches!(Lock::attempt(shard, name), Ok(Some(_alone)) if shard.unlink(name).is_ok())
}

/// No directory, or something else in its place, which is not ours.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP))
}

/// The table as it is, without waiting for anybody; `None` where it is not to be believed.
pub(super) fn peek(folder: &Folder) -> Option<Table> {
    let (file, _) = folder.read(USAGE).ok()?;
    load(&file).ok()?
}

#[cfg(test)]
mod tests {
    use super::super::claim::enter;
    use super::super::key::Key;
    use super::*;
    use std::path::Path;

    #[test]
    fn after_a_start_of_the_machine_everything_is_counted() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let mut gate = enter(&folder).unwrap();
        gate.table.add(7, 1_000_000);
        gate.save().unwrap();
        drop(gate);
        assert_eq!(enter(&folder).unwrap().table.total(), 1_000_000, "believed, of this start");
        let name = Key::whole("", Path::new("/a")).name;
        folder.make_folder(&name.shard).unwrap().write(&name.entry).unwrap().0.set_len(5_000).unwrap();
        let path = place.path().join(USAGE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[8] ^= 1; // of the boot's number
        let end = bytes.len() - 8;
        let checksum = xxh3_64(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&checksum);
        std::fs::write(&path, bytes).unwrap();
        assert!(peek(&folder).is_none());
        let gate = enter(&folder).unwrap();
        assert_eq!((gate.table.total(), gate.table.get(name.slot())), (8_192, 8_192));
    }
}
