//! Where copies are put: a directory, or the objects of a store. A copy appears at once and complete, or not at all; a
//! process that is killed leaves no half of one under its name.

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

/// Of which time something is a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// Of a file that was changed then, in nanoseconds since 1970.
    Of(i64),
    /// Of nobody knows what; it was written then.
    Since(i64),
    /// Nobody knows, or it takes a question of its own: [`Sink::held`].
    Unknown,
}

/// What lies under the name of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its length.
    pub size_bytes: u64,
    /// What it is a copy of.
    pub age: Age,
}

/// What lies in a directory of a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkEntry {
    /// A directory, not a link to one.
    Directory(OsString),
    /// A file or an object.
    File(OsString, Held),
    /// A link, a pipe … which is no copy of anything.
    Other(OsString),
    /// What a copy that was not finished has left.
    Part(OsString),
}

/// A place that copies are put to. Names are relative to its root, and were checked by [`check_name`].
///
/// # Contract
/// - What `put` and `finish` have written is there complete, with the time of `stat`, and nothing of it before.
/// - Every call can be made again after it failed, and then starts where it would have.
/// - Nothing outside the root is written, removed or examined, whatever lies in it: links are not followed.
/// - A sink never retries.
pub trait Sink: Send + Sync + std::fmt::Debug {
    /// The entries of a directory; none where it does not exist. The root's name is empty.
    fn list(&self, directory: &Path) -> Result<Vec<SinkEntry>>;
    /// What lies under a name, its age included; `None` where nothing does.
    fn held(&self, name: &Path) -> Result<Option<Held>>;
    /// Puts a whole copy in the place of whatever is there.
    fn put(&self, name: &Path, bytes: &[u8], stat: Stat) -> Result<()>;
    /// Begins a copy that comes in pieces, or goes on with one of the same file.
    fn begin(&self, name: &Path, stat: Stat) -> Result<Box<dyn Writing>>;
    /// What a process that did not finish has left of a copy is called this; `None` where nothing is left.
    fn part(&self, _name: &Path, _stat: Stat) -> Option<PathBuf> {
        None
    }
    /// Removes a file, or what was left of one.
    fn remove(&self, name: &Path) -> Result<()>;
    /// Removes a directory if nothing is in it; whether it did.
    fn remove_directory(&self, name: &Path) -> Result<bool>;
    /// Makes sure that every name given so far outlives a power cut.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// A copy that comes in pieces.
pub trait Writing: Send {
    /// Bytes that are there already, from an earlier process that did not finish.
    fn have_bytes(&self) -> u64;
    /// Shows those bytes, in order.
    fn show(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<()>;
    /// How long pieces are: all but the last exactly so, or any where there is none.
    fn piece_bytes(&self) -> Option<u64>;
    /// Writes a piece at its place.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;
    /// Makes it appear under its name.
    fn finish(&mut self) -> Result<()>;
    /// Forgets what is there of it.
    fn discard(&mut self) -> Result<()>;
}

/// Whether a relative name may be written below a root: one that leads out of it, or is none, is refused.
pub fn check_name(name: &Path) -> Result<()> {
    let bytes = name.as_os_str().as_bytes();
    let refuse = |why: &str| {
        Err(Error::new(Kind::Denied, format!("was refused: {why}"))
            .at_path(name)
            .with_hint("a name like this could lead out of the target: rename it in the source, or exclude it"))
    };
    if bytes.contains(&0) {
        return refuse("its name has a zero byte in it");
    }
    if bytes.starts_with(b"/") {
        return refuse("its name is absolute");
    }
    for part in bytes.split(|&byte| byte == b'/') {
        match part {
            b"" => return refuse("a part of its name is empty"),
            b"." | b".." => return refuse(&format!("a part of its name is {:?}", OsStr::from_bytes(part))),
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
