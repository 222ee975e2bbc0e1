//! The size of a cache across all processes: one small file, with a lock that is held for moments.
//!
//! The file has a byte count for each entry directory. Changes are made under the lock, in such an order that a crash
//! leaves a count too large, never too small; the next scan of that directory corrects it. After a reboot, or if the
//! file is damaged, everything is counted again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::Instant;

use xxhash_rust::xxh3::xxh3_64;

use super::entry::fill;
use super::folder::Folder;
use super::key::{FileKind, SHARDS, file_kind, shard};
use super::lock::{Lock, Waited, wait};
use crate::store::CancelSignals;

/// The file's name.
pub(super) const USAGE: &str = "usage";
const MAGIC: u64 = u64::from_le_bytes(*b"fb-use-1");
/// Magic, boot id, cursor, limit, the directories, a checksum.
const WORDS: usize = 4 + SHARDS + 1;

/// The size of a file on disk: whole blocks.
pub(super) fn disk_bytes(length: u64) -> u64 {
    /// The block size of most file systems.
    const BLOCK: u64 = 4096;
    length.div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// The byte count of each directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    bytes: Vec<u64>,
    /// The next directory to examine for eviction.
    pub(super) cursor: usize,
    /// The limit of the process that wrote last, for display.
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

/// The lock on a cache, and its usage table.
#[derive(Debug)]
pub(super) struct UsageLock<'a> {
    lock: Lock,
    pub(super) folder: &'a Folder,
    pub(super) table: Table,
}

impl<'a> UsageLock<'a> {
    /// Takes the lock; counts everything if the table is not valid.
    pub(super) fn acquire(
        folder: &'a Folder,
        until: Instant,
        signals: Option<&CancelSignals>,
    ) -> io::Result<Waited<Self>> {
        Ok(match wait(until, signals, || Lock::attempt(folder, USAGE))? {
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
        let mut usage = Self { lock, folder, table };
        for slot in 0..SHARDS {
            usage.recount(slot)?;
        }
        usage.save()?;
        Ok(usage)
    }

    /// Recounts one directory.
    pub(super) fn recount(&mut self, slot: usize) -> io::Result<Scanned> {
        let scanned = scan(self.folder, slot)?;
        self.table.set(slot, scanned.total());
        Ok(scanned)
    }

    /// Writes the table to the file.
    pub(super) fn save(&self) -> io::Result<()> {
        let Table { bytes, cursor, limit_bytes } = &self.table;
        let words = [MAGIC, boot(), *cursor as u64, *limit_bytes];
        let mut file: Vec<u8> = words.iter().chain(bytes).flat_map(|word| word.to_le_bytes()).collect();
        file.extend_from_slice(&xxh3_64(&file).to_le_bytes());
        // One page: if the process is killed, all of it is written or nothing.
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

/// Identifies the boot: data that was not flushed before a crash of the machine may be lost.
fn boot() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    *BOOT.get_or_init(|| std::fs::read("/proc/sys/kernel/random/boot_id").map_or(0, |text| xxh3_64(&text)))
}

/// An entry found by a scan.
#[derive(Debug)]
pub(super) struct ScannedEntry {
    pub(super) slot: usize,
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) mtime_ns: i64,
}

/// The content of one directory.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    pub(super) entries: Vec<ScannedEntry>,
    /// Bytes of incomplete entries.
    pub(super) part_bytes: u64,
}

impl Scanned {
    pub(super) fn total(&self) -> u64 {
        self.entries.iter().fold(self.part_bytes, |total, entry| total.saturating_add(entry.bytes))
    }
}

/// Scans one directory, and removes incomplete entries of dead processes. Foreign files are skipped.
fn scan(folder: &Folder, slot: usize) -> io::Result<Scanned> {
    let mut scanned = Scanned::default();
    let shard = match folder.folder(&shard(slot)) {
        Ok(shard) => shard,
        Err(error) if is_absent(&error) => return Ok(scanned),
        Err(error) => return Err(error),
    };
    for name in shard.names()? {
        let Some((name, kind)) = name.to_str().and_then(|name| Some((name, file_kind(name)?))) else { continue };
        let Ok(known) = shard.stat(name) else { continue };
        if !known.is_file {
            continue;
        }
        let bytes = disk_bytes(known.length);
        match kind {
            FileKind::Entry => {
                scanned.entries.push(ScannedEntry { slot, name: name.to_owned(), bytes, mtime_ns: known.mtime_ns });
            }
            FileKind::Part if is_abandoned(&shard, name) => {}
            FileKind::Part => scanned.part_bytes = scanned.part_bytes.saturating_add(bytes),
        }
    }
    Ok(scanned)
}

/// Removes a part file whose owner is dead.
fn is_abandoned(shard: &Folder, name: &str) -> bool {
    matches!(Lock::attempt(shard, name), Ok(Some(_alone)) if shard.unlink(name).is_ok())
}

/// The directory does not exist, or is not a directory and thus not forebay's.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP))
}

/// The table without taking the lock; `None` if it is not valid.
pub(super) fn peek(folder: &Folder) -> Option<Table> {
    let (file, _) = folder.read(USAGE).ok()?;
    load(&file).ok()?
}

#[cfg(test)]
mod tests {
    use super::super::claim::lock_usage;
    use super::super::key::Key;
    use super::*;
    use std::path::Path;

    #[test]
    fn after_a_start_of_the_machine_everything_is_counted() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let mut usage = lock_usage(&folder).unwrap();
        usage.table.add(7, 1_000_000);
        usage.save().unwrap();
        drop(usage);
        assert_eq!(lock_usage(&folder).unwrap().table.total(), 1_000_000, "believed, of this start");
        let name = Key::whole("", Path::new("/a")).name;
        folder.make_folder(&name.shard).unwrap().write(&name.entry).unwrap().0.set_len(5_000).unwrap();
        let path = place.path().join(USAGE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[8] ^= 1; // of the boot id
        let end = bytes.len() - 8;
        let checksum = xxh3_64(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&checksum);
        std::fs::write(&path, bytes).unwrap();
        assert!(peek(&folder).is_none());
        let usage = lock_usage(&folder).unwrap();
        assert_eq!((usage.table.total(), usage.table.get(name.slot())), (8_192, 8_192));
    }
}
