//! Files of this machine and its mounts: open, read, close. `kept.rs` leaves out the first and the last. No mmap, because an I/O
//! error under mmap is SIGBUS: `mapped/` is for those who ask for it.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use forebay_core::{Error, Kind, Listing, Result, Stage};

use crate::hint::failed;
use crate::read_request::ReadRequest;
use crate::reader::directory::Directory;
use crate::store::{Allot, Object, Stat, Store};

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Local;

impl Store for Local {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        request.check_cancel()?;
        read(request, allot).map_err(|error| error.at_path(request.path).at_stage(Stage::Fetch))
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        let metadata = fs::metadata(path).map_err(|error| failed("examined", path, error).at_stage(Stage::Fetch))?;
        Ok(stat_of(&metadata))
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        list(directory).map_err(|error| failed("listed", directory, error).at_stage(Stage::Scan))
    }
}

/// Opens a regular file.
pub(crate) fn open(path: &Path) -> Result<(File, Stat)> {
    open_examined(path).map(|(file, metadata)| (file, stat_of(&metadata)))
}

/// The same with all of its metadata.
pub(crate) fn open_examined(path: &Path) -> Result<(File, Metadata)> {
    // O_NONBLOCK: opening a pipe for reading would wait for a writer, perhaps for ever.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| open_failed(error, |error| failed("opened", path, error)))?;
    let metadata = file.metadata().map_err(|error| failed("examined", path, error))?;
    if !metadata.is_file() {
        return Err(not_regular(metadata.mode()));
    }
    Ok((file, metadata))
}

fn read(request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
    let (file, stat) = open(request.path)?;
    read_opened(request, &file, stat, allot).map(|(object, _)| object)
}

/// Reads from a file that was opened, and that was `stat` a moment ago. Gives what it is afterwards, too.
pub(crate) fn read_opened(
    request: &ReadRequest<'_>,
    file: &File,
    stat: Stat,
    allot: &mut Allot<'_>,
) -> Result<(Object, Metadata)> {
    let path = request.path;
    let range = request.bytes_of(stat)?;
    let size_bytes = range.end - range.start;
    let mut bytes = allot(size_bytes)?;
    resize(&mut bytes, size_bytes)?;
    let have = fill(path, file, &mut bytes, range.start)?;
    let after = file.metadata().map_err(|error| failed("examined", path, error))?;
    complete(stat, size_bytes, have as u64, stat_of(&after))?;
    Ok((Object { bytes: bytes.into(), stat }, after))
}

/// Resizes the buffer for a file. Lack of memory is an error and does not end the process. A reused buffer keeps its
/// length, so that only growth is zeroed.
pub(crate) fn resize(bytes: &mut Vec<u8>, size_bytes: u64) -> Result<()> {
    let size = size_bytes as usize;
    bytes
        .try_reserve_exact(size.saturating_sub(bytes.len()))
        .map_err(|_| Error::new(Kind::Exhausted, format!("does not fit in memory ({size_bytes} bytes)")))?;
    bytes.resize(size, 0);
    Ok(())
}

/// Fills `bytes` from offset `begin` of the file, or as many as the file has.
pub(crate) fn fill(path: &Path, file: &File, bytes: &mut [u8], begin: u64) -> Result<usize> {
    /// A signal interrupts a read now and then; a file system that returns nothing but EINTR is broken.
    const MAX_INTERRUPTIONS: u32 = 100;
    let (mut have, mut interruptions) = (0, 0);
    while have < bytes.len() {
        match file.read_at(&mut bytes[have..], begin + have as u64) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted && interruptions < MAX_INTERRUPTIONS => {
                interruptions += 1;
            }
            Err(error) => {
                return Err(failed("read", path, error).with_detail(format!(
                    "at byte {} of {}",
                    begin + have as u64,
                    begin + bytes.len() as u64
                )));
            }
        }
    }
    Ok(have)
}

/// Whether a read of `expected` bytes that returned `have` is complete and consistent: the file was `before` when it
/// was opened, and is `after` now. A file that was written to in between may be half old and half new, which a decoder
/// need not notice.
pub(crate) fn complete(before: Stat, expected: u64, have: u64, after: Stat) -> Result<()> {
    // Only the time decides here: FUSE reports a smaller size as well when it cuts a read short.
    if have < expected && after.mtime_ns == before.mtime_ns {
        // Seen on FUSE: a 300,000-byte file that reads as 1,000 bytes without an error.
        return Err(Error::new(Kind::Unavailable, format!("ended early (expected {expected} bytes, got {have})"))
            .transient()
            .with_hint("the storage cut the read short, or something is rewriting the file"));
    }
    if after == before {
        return Ok(());
    }
    let what = match after.size_bytes {
        size if size == before.size_bytes => {
            let seconds = after.mtime_ns.saturating_sub(before.mtime_ns) as f64 / 1e9;
            format!("its modification time moved by {seconds:.6} s")
        }
        size => format!("expected {} bytes, got {size}", before.size_bytes),
    };
    Err(Error::new(Kind::Changed, format!("changed while it was read ({what})")))
}

/// The error for a mode that is not a regular file's.
pub(crate) fn not_regular(mode: u32) -> Error {
    let what = match mode & libc::S_IFMT {
        libc::S_IFDIR => "a directory",
        libc::S_IFIFO => "a named pipe",
        libc::S_IFSOCK => "a socket",
        libc::S_IFBLK | libc::S_IFCHR => "a device",
        _ => "something else",
    };
    Error::new(Kind::Undecodable, format!("is {what}, not a regular file"))
}

/// open(2) of a socket in the file system fails with ENXIO, which would not be understood.
pub(crate) fn open_failed(error: io::Error, otherwise: impl FnOnce(io::Error) -> Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENXIO) => not_regular(libc::S_IFSOCK).with_source(error),
        _ => otherwise(error),
    }
}

pub(crate) fn stat_of(metadata: &Metadata) -> Stat {
    let mtime_ns = metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
    Stat { size_bytes: metadata.len(), mtime_ns }
}

fn list(directory: &Path) -> io::Result<Listing> {
    let mut entries = Directory::open(directory)?;
    let metadata = entries.metadata()?;
    let mut listing = Listing::new((metadata.dev(), metadata.ino()));
    while let Some((name, is_directory)) = entries.next()? {
        listing.push(name, is_directory);
    }
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn unlimited(size: u64) -> Result<Vec<u8>> {
        Ok(Vec::with_capacity(size as usize))
    }

    #[test]
    fn what_is_not_a_file_is_named_and_never_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe.jpg");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: `name` is a valid C string for the duration of the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let socket = folder.path().join("socket.jpg");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, what) in [
            (pipe, "a named pipe"),
            (socket, "a socket"),
            (folder.path().into(), "a directory"),
            ("/dev/zero".into(), "a device"),
        ] {
            let error = Local.read(&path, Duration::MAX, &mut unlimited).unwrap_err();
            assert_eq!(error.kind(), Kind::Undecodable);
            assert!(error.to_string().ends_with(&format!("is {what}, not a regular file")), "{error}");
        }
    }

    #[test]
    fn links_are_followed_and_loops_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let link = |name: &str, target: &str| {
            let path = folder.path().join(name);
            std::os::unix::fs::symlink(target, &path).unwrap();
            path
        };
        let (looping, dangling) = (link("loop.jpg", "loop.jpg"), link("gone.jpg", "nowhere"));
        for (path, errno) in [(looping, libc::ELOOP), (dangling, libc::ENOENT)] {
            let error = Local.read(&path, Duration::MAX, &mut unlimited).unwrap_err();
            assert_eq!((error.kind(), error.errno(), error.is_transient()), (Kind::NotFound, Some(errno), false));
        }
    }

    #[test]
    fn a_file_that_is_written_to_while_it_is_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let set = |content: &[u8], seconds| {
            fs::write(&path, content).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            OpenOptions::new().write(true).open(&path).unwrap().set_modified(time).unwrap();
        };
        for (content, seconds, said) in [
            (b"54321".as_slice(), 3, "changed while it was read (its modification time moved by 2.000000 s)"),
            (b"54321", 0, "changed while it was read (its modification time moved by -1.000000 s)"),
            (b"1234567", 3, "changed while it was read (expected 5 bytes, got 7)"),
            (b"1234567", 1, "changed while it was read (expected 5 bytes, got 7)"),
            (b"123", 3, "changed while it was read (expected 5 bytes, got 3)"),
        ] {
            set(b"12345", 1);
            let read = Local.read(&path, Duration::MAX, &mut |size| {
                set(content, seconds);
                unlimited(size)
            });
            let error = read.unwrap_err();
            assert_eq!((error.kind(), error.is_transient(), error.message()), (Kind::Changed, false, said));
            assert_eq!(&*Local.read(&path, Duration::MAX, &mut unlimited).unwrap().bytes, content);
        }
        // As when FUSE cuts a read short: the size is smaller, but nothing wrote to the file.
        set(b"12345", 1);
        let read = Local.read(&path, Duration::MAX, &mut |size| {
            set(b"123", 1);
            unlimited(size)
        });
        let error = read.unwrap_err();
        assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, true));
        assert_eq!(error.message(), "ended early (expected 5 bytes, got 3)");
    }

    #[test]
    fn what_cannot_be_listed_says_why() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), []).unwrap();
        for (name, errno) in [("none", libc::ENOENT), ("file", libc::ENOTDIR)] {
            let error = Local.list(&folder.path().join(name)).unwrap_err();
            assert_eq!((error.errno(), error.stage()), (Some(errno), Some(Stage::Scan)));
        }
        // Removed while it is listed: its samples must not be missing silently.
        let gone = folder.path().join("gone");
        fs::create_dir(&gone).unwrap();
        let mut directory = Directory::open(&gone).unwrap();
        fs::remove_dir(&gone).unwrap();
        assert_eq!(directory.next().unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn links_are_directories_where_they_lead_to_one() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("directory")).unwrap();
        fs::write(folder.path().join("file"), []).unwrap();
        for (name, target) in [("d", "directory"), ("f", "file"), ("l", "l"), ("n", "nowhere"), ("dd", "d")] {
            std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
        }
        let listing = Local.list(folder.path()).unwrap();
        let mut entries: Vec<_> =
            listing.iter().map(|entry| (entry.name.to_str().unwrap(), entry.is_directory)).collect();
        entries.sort();
        let expected =
            [("d", true), ("dd", true), ("directory", true), ("f", false), ("file", false), ("l", false), ("n", false)];
        assert_eq!(entries, expected);
    }

    #[test]
    fn a_refused_buffer_ends_the_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, b"12345").unwrap();
        let error = Local
            .read(&path, Duration::MAX, &mut |size| Err(Error::internal(format!("asked for {size}"))))
            .unwrap_err();
        assert_eq!(error.message(), "asked for 5");
    }
}
