//! A sink that writes files below a directory. How one file is written: `part.rs`.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use parking_lot::Mutex;
use rustix::fs::OFlags;

use super::part::{Part, is_part, part_name};
use super::{Age, Held, Sink, SinkEntry, Writing, at};
use crate::hint::failed;
use crate::reader::directory::Directory;
use crate::store::Stat;

/// The path with links resolved, as far as it exists.
pub fn real_path(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let found = path.ancestors().find_map(|part| Some((fs::canonicalize(part).ok()?, path.strip_prefix(part).ok()?)));
    found.map_or_else(|| path.clone(), |(real, rest)| real.components().chain(rest.components()).collect())
}

/// A local directory as a sink.
#[derive(Debug)]
pub struct DirectorySink(Arc<Root>);

#[derive(Debug)]
pub(super) struct Root {
    pub(super) path: PathBuf,
    /// `None` while it does not exist, when nothing will be written.
    file: Option<File>,
    pub(super) verifies: bool,
    /// Directories whose entries may not have reached the disk yet.
    changed: Mutex<HashSet<PathBuf>>,
}

impl DirectorySink {
    /// Creates the directory if necessary. With `verifies` every copy is read back before it gets its name.
    pub fn open(path: &Path, verifies: bool) -> Result<Self> {
        fs::create_dir_all(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                Error::config("target: expected a directory or a path that does not exist, got a file")
                    .at_path(path)
                    .with_source(error)
            }
            _ => failed("created", path, error),
        })?;
        Self::open_existing(path, verifies)
    }

    /// Opens it without creating it: a missing directory counts as empty.
    pub fn open_existing(path: &Path, verifies: bool) -> Result<Self> {
        let file = match Directory::open(path) {
            Ok(directory) => Some(directory.handle().map_err(|error| failed("opened", path, error))?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("opened", path, error)),
        };
        Ok(Self(Arc::new(Root { path: path.to_owned(), file, verifies, changed: Mutex::default() })))
    }
}

impl Root {
    pub(super) fn failed(&self, doing: &str, name: &Path, error: io::Error) -> Error {
        failed(doing, &self.path.join(name), error)
    }

    /// Records that the entries of a directory changed, for [`Sink::sync`].
    pub(super) fn changed(&self, directory: &Path) {
        self.changed.lock().insert(directory.to_owned());
    }

    /// Opens a directory below the root without following links.
    pub(super) fn walk(&self, directory: &Path, is_made: bool) -> Result<File> {
        let missing = || self.failed("opened", directory, io::Error::from_raw_os_error(libc::ENOENT));
        let root = self.file.as_ref().ok_or_else(missing)?;
        let mut open = root.try_clone().map_err(|error| self.failed("opened", Path::new(""), error))?;
        let mut so_far = PathBuf::new();
        for part in directory {
            so_far.push(part);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let next = match at::open(&open, part, flags) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && is_made => {
                    match at::make_directory(&open, part) {
                        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                        _ => {
                            self.changed(so_far.parent().unwrap_or(Path::new("")));
                            at::open(&open, part, flags)
                        }
                    }
                }
                other => other,
            };
            open = next.map_err(|error| match at::status(&open, part) {
                Ok(status) if status.is_link() => self.is_link(&so_far),
                _ => self.failed("opened", &so_far, error),
            })?;
        }
        Ok(open)
    }

    fn is_link(&self, name: &Path) -> Error {
        let message = "was refused: it is a symbolic link, and symbolic links in the target are not followed";
        Error::new(Kind::Denied, message).at_path(&self.path.join(name)).with_hint(
            "the link may point outside the target: remove it, or use the directory that it points to as the target",
        )
    }

    /// The parent directory of a name, if it exists.
    fn parent(&self, name: &Path) -> Result<Option<File>> {
        match self.walk(name.parent().unwrap_or(Path::new("")), false) {
            Ok(directory) => Ok(Some(directory)),
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, open: &File, directory: &Path) -> io::Result<Vec<SinkEntry>> {
        let mut entries =
            Directory::of(at::open(open, OsStr::new("."), OFlags::DIRECTORY)?, &self.path.join(directory));
        let mut found = Vec::new();
        while let Some((name, _)) = entries.next()? {
            let status = match at::status(open, name) {
                // Removed since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            let name = name.to_owned();
            found.push(if status.is_directory() {
                SinkEntry::Directory(name)
            } else if !status.is_file() {
                SinkEntry::Other(name)
            } else if is_part(&name) {
                SinkEntry::Part(name)
            } else {
                SinkEntry::File(name, held(status))
            });
        }
        Ok(found)
    }
}

fn held(status: at::Status) -> Held {
    let age = if status.is_file() { Age::SourceTime(status.mtime_ns) } else { Age::Unknown };
    Held { size_bytes: status.size_bytes, age }
}

impl Sink for DirectorySink {
    fn list(&self, directory: &Path) -> Result<Vec<SinkEntry>> {
        let open = match self.0.walk(directory, false) {
            Ok(open) => open,
            Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        self.0.list(&open, directory).map_err(|error| self.0.failed("listed", directory, error))
    }

    fn held(&self, name: &Path) -> Result<Option<Held>> {
        let Some(directory) = self.0.parent(name)? else { return Ok(None) };
        match at::status(&directory, name.file_name().unwrap_or_default()) {
            Ok(status) => Ok(Some(held(status))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.0.failed("examined", name, error)),
        }
    }

    fn put(&self, name: &Path, bytes: &[u8], stat: Stat) -> Result<()> {
        let mut part = Part::open(&self.0, name, stat)?;
        part.write(0, bytes).and_then(|()| part.finish()).inspect_err(|_| {
            // The copy is useless. Report its error, not one of removing it.
            let _removed = part.discard();
        })
    }

    fn begin(&self, name: &Path, stat: Stat) -> Result<Box<dyn Writing>> {
        Ok(Box::new(Part::open(&self.0, name, stat)?))
    }

    fn part(&self, name: &Path, stat: Stat) -> Option<PathBuf> {
        Some(name.with_file_name(part_name(name, stat)))
    }

    fn remove(&self, name: &Path) -> Result<()> {
        let Some(directory) = self.0.parent(name)? else { return Ok(()) };
        let last = name.file_name().unwrap_or_default();
        if is_part(last)
            && let Ok(file) = at::open(&directory, last, OFlags::RDWR)
            && !at::lock(&file).unwrap_or(false)
        {
            // Another process is writing it.
            return Ok(());
        }
        match at::remove(&directory, last, false) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.0.failed("removed", name, error)),
            _ => Ok(()),
        }
    }

    fn remove_directory(&self, name: &Path) -> Result<bool> {
        let Some(directory) = self.0.parent(name)? else { return Ok(false) };
        match at::remove(&directory, name.file_name().unwrap_or_default(), true) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTEMPTY | libc::EEXIST | libc::ENOENT)) => {
                Ok(false)
            }
            Err(error) => Err(self.0.failed("removed", name, error)),
        }
    }

    fn sync(&self) -> Result<()> {
        let mut changed: Vec<_> = {
            let mut changed = self.0.changed.lock();
            std::mem::take(&mut *changed).into_iter().collect()
        };
        // Parents last: a directory's entries reach the disk before its own name.
        changed.sort_by(|one, other| other.cmp(one));
        for directory in changed {
            let synced = match self.0.walk(&directory, false) {
                // Removed since, with all its entries.
                Err(error) if error.errno() == Some(libc::ENOENT) => continue,
                opened => opened?.sync_all(),
            };
            match synced {
                // Not every file system can flush directories.
                Err(error) if error.raw_os_error() != Some(libc::EINVAL) => {
                    return Err(self.0.failed("flushed", &directory, error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const STAT: Stat = Stat { size_bytes: 3, mtime_ns: 1_700_000_000_123_456_789 };

    #[test]
    fn links_in_the_target_lead_nowhere() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("1.jpg"), "precious").unwrap();
        symlink(outside.path(), folder.path().join("cat")).unwrap();
        symlink(outside.path().join("1.jpg"), folder.path().join("1.jpg")).unwrap();
        let sink = DirectorySink::open(folder.path(), false).unwrap();
        for name in ["cat/1.jpg", "cat/new.jpg", "cat/deep/2.jpg"] {
            for error in [
                sink.put(Path::new(name), b"new", STAT).unwrap_err(),
                sink.begin(Path::new(name), STAT).err().unwrap(),
                sink.remove(Path::new(name)).unwrap_err(),
                sink.held(Path::new(name)).unwrap_err(),
                sink.remove_directory(Path::new("cat/deep")).unwrap_err(),
            ] {
                assert_eq!(error.kind(), Kind::Denied, "{error}");
                assert!(error.to_string().contains("symbolic link"), "{error}");
            }
        }
        assert!(sink.list(Path::new("cat")).is_err());
        // A link under the name of a copy is replaced; its destination is not touched.
        sink.put(Path::new("1.jpg"), b"new", STAT).unwrap();
        assert_eq!(fs::read(folder.path().join("1.jpg")).unwrap(), b"new");
        assert_eq!(fs::read(outside.path().join("1.jpg")).unwrap(), b"precious");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("cat")).unwrap();
        fs::write(folder.path().join("dog"), "").unwrap();
        let sink = DirectorySink::open(folder.path(), false).unwrap();
        let error = sink.put(Path::new("cat"), b"new", STAT).unwrap_err();
        assert!(
            error.errno().is_some() && error.to_string().contains("/cat\" could not be put in its place"),
            "{error}"
        );
        let error = sink.put(Path::new("dog/1.jpg"), b"new", STAT).unwrap_err();
        assert!(error.to_string().contains("/dog\" could not be opened: Not a directory"), "{error}");
        assert_eq!(sink.list(Path::new("")).unwrap().len(), 2, "and nothing is left behind");
    }

    #[test]
    fn a_directory_that_is_only_looked_at_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        let sink = DirectorySink::open_existing(&path, false).unwrap();
        assert_eq!(sink.list(Path::new("")).unwrap(), []);
        assert_eq!(sink.held(Path::new("a")).unwrap(), None);
        assert!(sink.put(Path::new("a"), b"new", STAT).is_err() && !path.exists());
    }

    #[test]
    fn where_a_path_lies_is_told_before_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        symlink(folder.path(), folder.path().join("link")).unwrap();
        let real = fs::canonicalize(folder.path()).unwrap();
        assert_eq!(real_path(&folder.path().join("link/a/b")), real.join("a/b"));
        assert_eq!(real_path(&folder.path().join("link")), real);
    }
}
