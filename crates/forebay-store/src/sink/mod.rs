//! Destinations of copies: a directory, or an object store. A copy appears complete or not at all; a killed process
//! leaves no partial copy under the final name.

mod at;
mod directory;
mod objects;
mod part;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_core::{Error, Kind, Result};

use crate::store::Stat;
pub use directory::{DirectorySink, real_path};
pub use objects::ObjectSink;
pub use part::is_part;

/// The time by which a copy is compared with its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// It is a copy of a file with this modification time, in nanoseconds since 1970.
    SourceTime(i64),
    /// Its source is unknown; it was written at this time.
    WrittenAt(i64),
    /// Unknown, or only available with an extra request: [`Sink::held`].
    Unknown,
}

/// The metadata of an existing copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its length.
    pub size_bytes: u64,
    /// The time of its source.
    pub age: Age,
}

/// An entry of a sink's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkEntry {
    /// A directory, not a link to one.
    Directory(OsString),
    /// A file or an object.
    File(OsString, Held),
    /// A link, a pipe … which cannot be a copy.
    Other(OsString),
    /// The part file of an unfinished copy.
    Part(OsString),
}

/// A destination for copies. Names are relative to its root, and were checked by [`check_name`].
///
/// # Contract
/// - What `put` and `finish` have written is there complete, with the time of `stat`. Before that nothing of it is
///   visible.
/// - Every call can be repeated after it failed.
/// - Nothing outside the root is written, removed or examined: links are not followed.
/// - A sink never retries.
pub trait Sink: Send + Sync + std::fmt::Debug {
    /// The entries of a directory; none where it does not exist. The root's name is empty.
    fn list(&self, directory: &Path) -> Result<Vec<SinkEntry>>;
    /// The metadata under a name, its age included; `None` if nothing is there.
    fn held(&self, name: &Path) -> Result<Option<Held>>;
    /// Writes a whole copy, replacing an existing one.
    fn put(&self, name: &Path, bytes: &[u8], stat: Stat) -> Result<()>;
    /// Begins a copy that is written in pieces, or resumes one of the same file.
    fn begin(&self, name: &Path, stat: Stat) -> Result<Box<dyn Writing>>;
    /// The part file's name that an unfinished copy has; `None` if unfinished copies leave nothing.
    fn part(&self, _name: &Path, _stat: Stat) -> Option<PathBuf> {
        None
    }
    /// Removes a file, or the part file of one.
    fn remove(&self, name: &Path) -> Result<()>;
    /// Removes a directory if it is empty. Returns whether it did.
    fn remove_directory(&self, name: &Path) -> Result<bool>;
    /// Makes every name written so far survive a power cut.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// A copy that is written in pieces.
pub trait Writing: Send {
    /// Bytes that an earlier process has already written.
    fn have_bytes(&self) -> u64;
    /// Reads those bytes, in order.
    fn show(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<()>;
    /// The required length of all pieces but the last; `None` if any length will do.
    fn piece_bytes(&self) -> Option<u64>;
    /// Writes a piece at its offset.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;
    /// Says how long it is in the end, where that was not known when it began. Everything has been written.
    fn set_size(&mut self, size_bytes: u64);
    /// Makes it appear under its name.
    fn finish(&mut self) -> Result<()>;
    /// Discards everything written so far.
    fn discard(&mut self) -> Result<()>;
}

/// Checks that a relative name stays below a root; other names are refused.
pub fn check_name(name: &Path) -> Result<()> {
    let bytes = name.as_os_str().as_bytes();
    let refuse = |why: &str| {
        Err(Error::new(Kind::Denied, format!("was refused: {why}"))
            .at_path(name)
            .with_hint("such a name could escape the target: rename it in the source, or exclude it"))
    };
    if bytes.contains(&0) {
        return refuse("its name contains a NUL byte");
    }
    if bytes.starts_with(b"/") {
        return refuse("its name is absolute");
    }
    for part in bytes.split(|&byte| byte == b'/') {
        match part {
            b"" => return refuse("its name has an empty component"),
            b"." | b".." => return refuse(&format!("its name has the component {:?}", OsStr::from_bytes(part))),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_are_refused() {
        for name in ["a", "a/b.jpg", "...", "a/..b", ".hidden", "\u{fc}/\n"] {
            assert!(check_name(Path::new(name)).is_ok(), "{name}");
        }
        for name in ["", "/etc/passwd", "..", "a/../../b", "./a", "a//b", "a/", "a\0b", "a/.."] {
            let error = check_name(Path::new(name)).unwrap_err();
            assert_eq!(error.kind(), Kind::Denied, "{name}");
            assert!(error.message().starts_with("was refused"), "{error}");
        }
    }
}
