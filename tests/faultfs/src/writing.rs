//! What changes the folder that is shown: new files, new bytes, new names. Only where the mount can be written to.

use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::SystemTime;

use fuser::TimeOrNow;

use crate::passthrough::{Shown, obey};
use crate::rules::{Rules, Verdict};

impl Shown {
    /// Makes a file, unless it is there, and opens it.
    pub(crate) fn create(
        &self,
        path: &Path,
        mode: u32,
        flags: i32,
        rules: &Rules,
        verdict: Verdict,
    ) -> io::Result<u64> {
        obey(verdict)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(mode).custom_flags(flags & (libc::O_EXCL | libc::O_TRUNC));
        let file = options.open(self.source.join(path))?;
        Ok(self.opened(file, path, rules))
    }

    pub(crate) fn make_directory(&self, path: &Path, mode: u32, verdict: Verdict) -> io::Result<()> {
        obey(verdict)?;
        DirBuilder::new().mode(mode).create(self.source.join(path))
    }

    /// Removes a name. Whoever has the file open goes on with it.
    pub(crate) fn remove(
        &self,
        path: &Path,
        verdict: Verdict,
        remove: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        obey(verdict)?;
        remove(&self.source.join(path))?;
        self.nodes().numbers.remove(path);
        Ok(())
    }

    /// Gives a file another name. A directory keeps its own: what lies in it is known by paths here.
    pub(crate) fn rename(&self, from: &Path, to: &Path, verdict: Verdict) -> io::Result<()> {
        obey(verdict)?;
        let (old, new) = (self.source.join(from), self.source.join(to));
        if fs::symlink_metadata(&old)?.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::ENOTSUP));
        }
        let node = self.node(from);
        let mut nodes = self.nodes();
        fs::rename(old, new)?;
        nodes.numbers.remove(from);
        nodes.numbers.insert(to.to_owned(), node);
        nodes.paths[node as usize - 1] = to.to_owned();
        Ok(())
    }

    /// Gives a file another size, another time, or both.
    pub(crate) fn set(
        &self,
        node: u64,
        path: &Path,
        size: Option<u64>,
        mtime: Option<TimeOrNow>,
        verdict: Verdict,
    ) -> io::Result<()> {
        obey(verdict)?;
        let opened = self.open_file(node).filter(|_| !self.is_named(node, path));
        let file = match opened {
            Some(opened) => opened.file.try_clone()?,
            None if size.is_some() => OpenOptions::new().write(true).open(self.source.join(path))?,
            None => File::open(self.source.join(path))?,
        };
        if let Some(size) = size {
            file.set_len(size)?;
        }
        let time = mtime.map(|time| match time {
            TimeOrNow::SpecificTime(time) => time,
            TimeOrNow::Now => SystemTime::now(),
        });
        time.map_or(Ok(()), |time| file.set_times(FileTimes::new().set_modified(time)))
    }
}
