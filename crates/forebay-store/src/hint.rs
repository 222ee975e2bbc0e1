//! Hints for failed system calls that depend on the machine: they name the mount, the limit, the owner or the missing
//! directory. Only called for errors, so it may make further system calls.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_core::Error;
use rustix::process::{getegid, geteuid};

use crate::machine;
use crate::mount::Mount;

/// A failed system call on a path, with a hint for this machine.
pub(crate) fn failed(doing: &str, path: &Path, error: io::Error) -> Error {
    hinted(doing, path, error, true)
}

/// The same for a call made by another process: nothing here touches the path, because that could hang.
pub(crate) fn failed_elsewhere(doing: &str, path: &Path, error: io::Error) -> Error {
    hinted(doing, path, error, false)
}

fn hinted(doing: &str, path: &Path, error: io::Error, may_look: bool) -> Error {
    let hint = error.raw_os_error().and_then(|errno| hint(path, errno, may_look));
    let error = Error::io(doing, error).at_path(path);
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

/// The hint alone, for an error that is worded elsewhere.
pub(crate) fn hint(path: &Path, errno: i32, may_look: bool) -> Option<String> {
    let on_mount = || Mount::of(path).map_or("the storage".to_owned(), |mount| mount.to_string());
    Some(match errno {
        libc::EIO | libc::EREMOTEIO => format!(
            "the device or server behind {} failed: look at the kernel log (`dmesg`); raise `retries` if it recovers by itself",
            on_mount()
        ),
        libc::ESTALE => format!(
            "the server of {} no longer knows this file handle: the file was replaced, or the export restarted; remount if this persists",
            on_mount()
        ),
        libc::ENOTCONN | libc::ECONNREFUSED | libc::ECONNRESET | libc::ECONNABORTED | libc::EPIPE => {
            format!("the server or FUSE daemon behind {} is gone; remount it", on_mount())
        }
        libc::ETIMEDOUT | libc::EHOSTDOWN | libc::EHOSTUNREACH | libc::ENETDOWN | libc::ENETUNREACH => {
            format!(
                "the server of {} cannot be reached: check the network, then the mount's `timeo` and `retrans`",
                on_mount()
            )
        }
        libc::EMFILE => format!(
            "this process has {} of {} descriptors open: raise `ulimit -n`, or see what holds them in /proc/{}/fd",
            machine::open_files().map_or("all".to_owned(), |count| count.to_string()),
            machine::max_open_files(),
            std::process::id()
        ),
        libc::ENFILE => {
            "the whole system is out of descriptors: see /proc/sys/fs/file-nr, raise fs.file-max".to_owned()
        }
        libc::ENOMEM | libc::ENOBUFS => format!(
            "the system has {} MiB left for this process: lower `num_workers` or `memory_budget`",
            machine::available_memory_bytes() >> 20
        ),
        libc::ENOSPC => format!("{} is full{}: free some space, or write elsewhere", on_mount(), room(path, may_look)),
        libc::EDQUOT => {
            let (user, group) = (geteuid(), getegid());
            format!(
                "a disk quota on {} is used up: that of user {user}, of group {group} or of the directory's project{}; see \
                 `quota -s` (`lfs quota` on Lustre), free some space, or write elsewhere",
                on_mount(),
                room(path, may_look)
            )
        }
        libc::EROFS => format!(
            "{} is mounted read-only: write elsewhere; if this is unexpected, the kernel remounted it after an error (`dmesg`)",
            on_mount()
        ),
        libc::EACCES | libc::EPERM if may_look => denied(path),
        libc::ENOENT | libc::ENOTDIR if may_look => missing(path)?,
        libc::ELOOP => "it is, or passes through, a symbolic link that leads to itself: see `namei -l`".to_owned(),
        libc::ENAMETOOLONG => {
            "a component of the path is longer than this file system allows (often 255 bytes)".to_owned()
        }
        _ => return None,
    })
}

/// Free space of a file system for users who are not root: bytes and inodes.
fn room(path: &Path, may_look: bool) -> String {
    let Some(space) = may_look.then(|| machine::space_of(path)).flatten() else { return String::new() };
    let machine::Space { free_bytes, total_bytes, free_inodes } = space;
    let inodes = free_inodes.map_or(String::new(), |count| format!(", inodes free: {count}"));
    format!(" (bytes free: {free_bytes} of {total_bytes}{inodes})")
}

/// Names the path component that denies access, and its owner: "Permission denied" alone sends people to the wrong
/// file.
fn denied(path: &Path) -> String {
    let user = geteuid();
    // From the file upwards, the first component that can be examined is the one that denies access to what is below
    // it.
    let blamed = path.ancestors().filter(|part| !part.as_os_str().is_empty()).find_map(|part| {
        let metadata = fs::symlink_metadata(part).ok()?;
        Some(format!(": {part:?} belongs to user {}, mode {:o}", metadata.uid(), metadata.mode() & 0o7777))
    });
    format!("this process runs as user {user}{}", blamed.unwrap_or_default())
}

/// Says which directory is missing, when it is not only the file.
fn missing(path: &Path) -> Option<String> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty())?;
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) {
        let target = fs::read_link(path).unwrap_or_default();
        return Some(format!("it is a symbolic link to {target:?}, which does not exist"));
    }
    let existing = parent.ancestors().find(|part| part.is_dir())?;
    (existing != parent).then(|| format!("a directory above it is missing, too: the path exists up to {existing:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(path: &Path, errno: i32) -> String {
        failed("opened", path, io::Error::from_raw_os_error(errno)).hint().to_owned()
    }

    #[test]
    fn hints_name_what_only_this_machine_knows() {
        let path = Path::new("/proc/self/status");
        assert!(said(path, libc::EIO).contains("\"/proc\" (proc from proc)"), "{}", said(path, libc::EIO));
        assert!(said(path, libc::ESTALE).contains("remount"));
        assert!(said(path, libc::EMFILE).contains(&format!("of {} descriptors", machine::max_open_files())));
        assert!(said(path, libc::EACCES).contains("belongs to user"));
        assert!(said(path, libc::ENOMEM).contains("MiB left"));
    }

    #[test]
    fn a_full_disk_is_named_with_what_is_left_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, mount) = (folder.path().join("not/yet/ledger.jsonl"), Mount::of(folder.path()).unwrap());
        let full = said(&path, libc::ENOSPC);
        assert!(full.starts_with(&format!("{mount} is full (bytes free: ")), "{full}");
        let quota = said(&path, libc::EDQUOT);
        let user = geteuid();
        assert!(
            quota.starts_with(&format!("a disk quota on {mount} is used up: that of user {user}, of group ")),
            "{quota}"
        );
        assert!(quota.contains("(bytes free: ") && quota.contains("`quota -s`"), "{quota}");
        assert!(said(&path, libc::EROFS).starts_with(&format!("{mount} is mounted read-only")));
        // A mount that may hang is not examined.
        for errno in [libc::ENOSPC, libc::EDQUOT] {
            assert!(!hint(&path, errno, false).unwrap().contains("bytes free"));
        }
    }

    #[test]
    fn the_missing_part_of_a_path_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let gone = folder.path().join("gone/deeper/1.jpg");
        assert!(said(&gone, libc::ENOENT).contains(&format!("exists up to {:?}", folder.path())));
        let file = folder.path().join("1.jpg");
        assert!(said(&file, libc::ENOENT).contains("after the folder was scanned"), "the kind's own hint");
        let link = folder.path().join("link.jpg");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(said(&link, libc::ENOENT).contains("symbolic link to \"nowhere\""));
    }

    #[test]
    fn every_transient_errno_of_storage_has_a_hint_of_its_own() {
        for errno in
            [libc::EIO, libc::ESTALE, libc::ETIMEDOUT, libc::ENOTCONN, libc::EMFILE, libc::ENFILE, libc::ENOMEM]
        {
            assert!(hint(Path::new("/x"), errno, true).is_some(), "errno {errno}");
        }
    }
}
