//! Inspecting a cache from outside: its size, its integrity, and clearing it. Runs that use it can continue.

use std::io;
use std::path::Path;
use std::sync::Arc;

use forebay_core::{Error, Result};

use super::claim::lock_usage;
use super::directory::{Cache, format_folder, is_format, root};
use super::entry::{self, Head};
use super::evict::remove_known;
use super::folder::Folder;
use super::key::{FileKind, Key, SHARDS, file_kind, is_shard, shard};
use super::lock::Lock;
use super::usage::{USAGE, disk_bytes, is_absent, peek};
use crate::hint::failed;
use crate::local::resize;

/// The content of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheInfo {
    /// Cached objects, and ranges of objects.
    pub entries: u64,
    /// Their size on disk.
    pub bytes: u64,
    /// The size limit of the process that wrote last; `None` if none has.
    pub limit_bytes: Option<u64>,
    /// Entries that are being written.
    pub parts: u64,
    /// When the least recently used entry was used, in nanoseconds since 1970.
    pub oldest_ns: Option<i64>,
    /// Files that are not forebay's. They are never touched.
    pub foreign: u64,
    /// Entries of other format versions: their number, and their size on disk.
    pub other_formats: (u64, u64),
}

/// A damaged entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Its file, below the cache.
    pub file: String,
    /// The path of its object, if it is still readable.
    pub path: Option<String>,
    /// Whether it could be removed.
    pub is_removed: bool,
}

/// The result of verifying a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Intact entries.
    pub entries: u64,
    /// Object bytes in them.
    pub bytes: u64,
    /// Damaged entries, which were removed if possible.
    pub damaged: Vec<Damaged>,
}

/// The result of clearing a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Entries removed, of any format version.
    pub entries: u64,
    /// Their size on disk.
    pub bytes: u64,
    /// Files that are not forebay's, and were left.
    pub foreign: u64,
}

impl Cache {
    /// The content of the cache at a path.
    pub fn info(path: &Path) -> Result<CacheInfo> {
        let look = |root: &Folder| {
            let mut info = CacheInfo::default();
            each_format(root, &mut |format, name| {
                let is_own = name == format_folder();
                if is_own {
                    info.limit_bytes = peek(format).map(|table| table.limit_bytes).filter(|bytes| *bytes > 0);
                }
                each_file(format, &mut |_, found| {
                    match found {
                        Found::Foreign => info.foreign += 1,
                        Found::Part(_) => info.parts += u64::from(is_own),
                        Found::Entry { bytes, mtime_ns, .. } if is_own => {
                            info.entries += 1;
                            info.bytes += bytes;
                            info.oldest_ns = Some(info.oldest_ns.map_or(mtime_ns, |oldest| oldest.min(mtime_ns)));
                        }
                        Found::Entry { bytes, .. } => {
                            info.other_formats.0 += 1;
                            info.other_formats.1 += bytes;
                        }
                    }
                    Ok(())
                })
            })?;
            Ok(info)
        };
        look(&marked(path)?).map_err(|error| failed("examined", path, error))
    }

    /// Reads every entry of the cache at a path and removes damaged ones. `progress` receives the number of directories
    /// done, and their total.
    pub fn verify(path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Verified> {
        let root = marked(path)?;
        let mut verified = Verified::default();
        let folder = match root.folder(&format_folder()) {
            Ok(folder) => Arc::new(folder),
            Err(error) if is_absent(&error) => return Ok(verified),
            Err(error) => return Err(failed("examined", path, error)),
        };
        let mut buffer = Vec::new();
        for slot in 0..SHARDS {
            progress(slot as u64, SHARDS as u64);
            let done = each_in_shard(&folder, slot, &mut |shard, found| match found {
                Found::Entry { name, .. } => examine(&folder, shard, slot, name, &mut buffer, &mut verified),
                Found::Part(_) | Found::Foreign => Ok(()),
            });
            done.map_err(|error| failed("examined", path, error))?;
        }
        progress(SHARDS as u64, SHARDS as u64);
        Ok(verified)
    }

    /// Removes every entry of the cache at a path, of any format version, and nothing else. The directory stays a
    /// cache.
    pub fn clear(path: &Path) -> Result<Cleared> {
        let empty = |root: &Folder| {
            let mut cleared = Cleared::default();
            each_format(root, &mut |format, name| {
                // Entries of other versions are known by their names only, and cannot be locked.
                let mut usage = if name == format_folder() { Some(lock_usage(format)?) } else { None };
                for slot in 0..SHARDS {
                    each_in_shard(format, slot, &mut |shard, found| {
                        match found {
                            Found::Foreign => cleared.foreign += 1,
                            // A part file with a live owner will be an entry in a moment.
                            Found::Part(name) => {
                                if let Some(_alone) = Lock::attempt(shard, name)? {
                                    shard.unlink(name)?;
                                }
                            }
                            Found::Entry { name, bytes, .. } => {
                                shard.unlink(name)?;
                                cleared.entries += 1;
                                cleared.bytes += bytes;
                            }
                        }
                        Ok(())
                    })?;
                    if let Some(usage) = &mut usage {
                        usage.recount(slot)?;
                    }
                    // Fails if a foreign file is left in it.
                    let _removed = format.remove_folder(&shard(slot));
                }
                cleared.foreign += foreign_in(format)?;
                match usage {
                    Some(usage) => usage.save(),
                    None => {
                        // As above.
                        let _removed = root.remove_folder(name);
                        Ok(())
                    }
                }
            })?;
            Ok(cleared)
        };
        empty(&marked(path)?).map_err(|error| failed("emptied", path, error))
    }
}

/// Opens the directory of a cache; an error if it is not a cache.
fn marked(path: &Path) -> Result<Folder> {
    match root(path) {
        Ok(Some(root)) => Ok(root),
        Ok(None) => Err(Error::config("is not a forebay cache: it contains no file \"forebay-cache\"")
            .at_path(path)
            .with_hint("use the directory that was passed as `cache`; nothing was changed")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(failed("opened", path, error).with_hint("use the directory that was passed as `cache`"))
        }
        Err(error) => Err(failed("opened", path, error)),
    }
}

/// The kind of a file in an entry directory.
enum Found<'a> {
    Entry { name: &'a str, bytes: u64, mtime_ns: i64 },
    Part(&'a str),
    Foreign,
}

fn each_format(root: &Folder, each: &mut dyn FnMut(&Folder, &str) -> io::Result<()>) -> io::Result<()> {
    for name in root.names()? {
        let Some(name) = name.to_str().filter(|name| is_format(name)) else { continue };
        match root.folder(name) {
            Ok(format) => each(&format, name)?,
            // A file or a link of that name is not forebay's.
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Visits every file in the entry directories.
fn each_file(format: &Folder, each: &mut dyn FnMut(&Folder, Found<'_>) -> io::Result<()>) -> io::Result<()> {
    for slot in 0..SHARDS {
        each_in_shard(format, slot, each)?;
    }
    (0..foreign_in(format)?).try_for_each(|_| each(format, Found::Foreign))
}

/// The number of foreign files beside the entry directories.
fn foreign_in(format: &Folder) -> io::Result<u64> {
    let is_ours = |name: &str| name == USAGE || is_shard(name);
    Ok(format.names()?.iter().filter(|name| !name.to_str().is_some_and(is_ours)).count() as u64)
}

fn each_in_shard(
    format: &Folder,
    slot: usize,
    each: &mut dyn FnMut(&Folder, Found<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let shard = match format.folder(&shard(slot)) {
        Ok(shard) => shard,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if is_absent(&error) => return each(format, Found::Foreign),
        Err(error) => return Err(error),
    };
    for name in shard.names()? {
        let ours = name.to_str().and_then(|name| Some((name, file_kind(name)?)));
        let found = match ours.map(|(name, sort)| (name, sort, shard.stat(name))) {
            Some((_, _, Err(_))) => continue, // gone meanwhile
            Some((name, FileKind::Entry, Ok(known))) if known.is_file => {
                Found::Entry { name, bytes: disk_bytes(known.length), mtime_ns: known.mtime_ns }
            }
            Some((name, FileKind::Part, Ok(known))) if known.is_file => Found::Part(name),
            _ => Found::Foreign,
        };
        each(&shard, found)?;
    }
    Ok(())
}

fn examine(
    folder: &Folder,
    shard: &Folder,
    slot: usize,
    name: &str,
    buffer: &mut Vec<u8>,
    verified: &mut Verified,
) -> io::Result<()> {
    let (file, known) = match shard.read(name) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()), // evicted meanwhile
        Err(error) => return Err(error),
    };
    let head: Option<Head> = entry::head(&file, known.length).unwrap_or(None);
    let is_whole = head.as_ref().is_some_and(|head| {
        resize(buffer, head.content_bytes).is_ok()
            && entry::fill(&file, buffer, 0).unwrap_or(false)
            && head.is_of(buffer)
            && Key::name_of(&head.key) == (super::key::shard(slot), name.to_owned())
    });
    if let Some(head) = head.as_ref().filter(|_| is_whole) {
        verified.entries += 1;
        verified.bytes += head.content_bytes;
        return Ok(());
    }
    let removed = lock_usage(folder).and_then(|mut usage| remove_known(&mut usage, shard, slot, name, known.identity));
    verified.damaged.push(Damaged {
        file: format!("{}/{}/{name}", format_folder(), super::key::shard(slot)),
        path: head.map(|head| Key::path_in(&head.key)),
        is_removed: removed.is_ok(),
    });
    Ok(())
}
