//! The file system itself: shows a folder, and asks the rules before each answer. What changes the folder: `writing`.
//!
//! Nothing is cached by the kernel (`direct_io`, timeouts of zero), so that every call comes here and rules act at once.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use crate::history::{History, Named, Names};
use crate::rules::{Content, Operation, Rules, Verdict};
use crate::start;

/// A folder, shown.
#[derive(Debug)]
pub(crate) struct Passthrough {
    shown: Arc<Shown>,
    rules: Arc<Rules>,
}

#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) source: PathBuf,
    nodes: Mutex<Nodes>,
    files: Mutex<HashMap<u64, Arc<Opened>>>,
    last_handle: AtomicU64,
    /// What a power cut would leave, where somebody wants to know.
    history: Option<Mutex<History>>,
}

/// Numbers of files, for ever: a test's folder is small. A file that is renamed keeps its number, and one that takes a
/// name over has one of its own.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) numbers: HashMap<PathBuf, u64>,
}

#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) node: u64,
    content: Content,
}

impl Passthrough {
    pub(crate) fn new(source: &Path, rules: Arc<Rules>, history: Option<&Path>) -> io::Result<Self> {
        let root = PathBuf::new();
        let nodes = Nodes { paths: vec![root.clone()], numbers: HashMap::from([(root, INodeNo::ROOT.0)]) };
        let mut shown = Shown {
            source: source.to_owned(),
            nodes: Mutex::new(nodes),
            files: Mutex::default(),
            last_handle: AtomicU64::new(0),
            history: None,
        };
        if let Some(folder) = history {
            let (names, mut bytes) = (shown.names()?, HashMap::new());
            for (directory, entries) in &names {
                for (name, named) in entries {
                    if let Named::File(node) = named {
                        bytes.insert(*node, fs::read(source.join(directory).join(name))?);
                    }
                }
            }
            shown.history = Some(Mutex::new(History::new(folder.to_owned(), names, bytes)));
        }
        Ok(Self { shown: Arc::new(shown), rules })
    }

    /// Answers a call that changes something, and notes what a power cut would leave after it.
    fn change(
        &self,
        operation: Operation,
        path: PathBuf,
        reply: ReplyEmpty,
        change: impl FnOnce(&Shown, &Path, Verdict) -> io::Result<()> + Send + 'static,
    ) {
        self.answer(operation, path, |shown, path, _, verdict| {
            match change(shown, path, verdict).and_then(|()| shown.note()) {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    /// Answers a call as the rules say: at once in this thread, or in one of its own if it is to wait.
    fn answer(
        &self,
        operation: Operation,
        path: PathBuf,
        answer: impl FnOnce(&Shown, &Path, &Rules, Verdict) + Send + 'static,
    ) {
        let verdict = self.rules.judge(operation, &path);
        if !verdict.waits() {
            return answer(&self.shown, &path, &self.rules, verdict);
        }
        let (shown, rules) = (Arc::clone(&self.shown), Arc::clone(&self.rules));
        // Without a thread the request is dropped, which fuser answers with EIO.
        let _ = start("waiting", move || {
            rules.wait(&verdict);
            answer(&shown, &path, &rules, verdict);
        });
    }
}

/// What a rule wants instead of the truth.
pub(crate) fn obey(verdict: Verdict) -> io::Result<()> {
    verdict.errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
}

impl Shown {
    pub(crate) fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn files(&self) -> MutexGuard<'_, HashMap<u64, Arc<Opened>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, node: INodeNo) -> PathBuf {
        self.nodes().paths[node.0 as usize - 1].clone()
    }

    pub(crate) fn node(&self, path: &Path) -> u64 {
        let mut nodes = self.nodes();
        if let Some(number) = nodes.numbers.get(path) {
            return *number;
        }
        nodes.paths.push(path.to_owned());
        let number = nodes.paths.len() as u64;
        nodes.numbers.insert(path.to_owned(), number);
        number
    }

    /// A file of this number that is open, whatever has its name by now.
    pub(crate) fn open_file(&self, node: u64) -> Option<Arc<Opened>> {
        self.files().values().find(|opened| opened.node == node).map(Arc::clone)
    }

    /// Whether the file of this number still has its name.
    pub(crate) fn is_named(&self, node: u64, path: &Path) -> bool {
        self.nodes().numbers.get(path) == Some(&node)
    }

    pub(crate) fn attributes(&self, path: &Path, verdict: Verdict) -> io::Result<FileAttr> {
        self.attributes_of(self.node(path), path, verdict)
    }

    pub(crate) fn attributes_of(&self, node: u64, path: &Path, verdict: Verdict) -> io::Result<FileAttr> {
        obey(verdict)?;
        let metadata = match self.open_file(node).filter(|_| !self.is_named(node, path)) {
            Some(opened) => opened.file.metadata()?,
            None => fs::symlink_metadata(self.source.join(path))?,
        };
        let mut attributes = attributes(node, &metadata)?;
        attributes.size = verdict.size_bytes.unwrap_or(attributes.size) + verdict.changed.bytes;
        attributes.mtime += Duration::from_secs(verdict.changed.seconds);
        Ok(attributes)
    }

    /// All entries of all directories.
    fn names(&self) -> io::Result<Names> {
        let (mut names, mut left) = (Names::new(), vec![PathBuf::new()]);
        while let Some(directory) = left.pop() {
            let entries = names.entry(directory.clone()).or_default();
            for (node, kind, name) in self.entries(&directory)? {
                if kind == FileType::Directory {
                    left.push(directory.join(&name));
                }
                entries.insert(name, if kind == FileType::Directory { Named::Directory } else { Named::File(node) });
            }
        }
        Ok(names)
    }

    fn history(&self) -> Option<MutexGuard<'_, History>> {
        self.history.as_ref().map(|history| history.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Something has changed.
    pub(crate) fn note(&self) -> io::Result<()> {
        self.history().map_or(Ok(()), |mut history| history.note(&self.names()?))
    }

    fn synced(&self, opened: &Opened) -> io::Result<()> {
        self.history().map_or(Ok(()), |mut history| history.file_synced(opened.node, &opened.file))
    }

    fn directory_synced(&self, path: &Path) -> io::Result<()> {
        self.history().map_or(Ok(()), |mut history| {
            history.directory_synced(path, &self.names()?);
            Ok(())
        })
    }

    fn open(&self, path: &Path, writes: bool, rules: &Rules, verdict: Verdict) -> io::Result<u64> {
        obey(verdict)?;
        let file = OpenOptions::new().read(true).write(writes).open(self.source.join(path))?;
        Ok(self.opened(file, path, rules))
    }

    /// A handle for a file.
    pub(crate) fn opened(&self, file: File, path: &Path, rules: &Rules) -> u64 {
        let (handle, node) = (self.last_handle.fetch_add(1, Relaxed) + 1, self.node(path));
        self.files().insert(handle, Arc::new(Opened { file, node, content: rules.content(path) }));
        handle
    }

    fn entries(&self, path: &Path) -> io::Result<Vec<(u64, FileType, std::ffi::OsString)>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.source.join(path))? {
            let entry = entry?;
            let kind = FileType::from_std(entry.file_type()?).unwrap_or(FileType::RegularFile);
            entries.push((self.node(&path.join(entry.file_name())), kind, entry.file_name()));
        }
        entries.sort_by(|a, b| a.2.cmp(&b.2));
        Ok(entries)
    }
}

impl Opened {
    fn read(&self, offset: u64, size: u32) -> io::Result<Vec<u8>> {
        let Content { ends_at, garbage_from, pieces_of } = self.content;
        let left = ends_at.map_or(u64::MAX, |end| end.saturating_sub(offset));
        let size = u64::from(size).min(left).min(pieces_of.unwrap_or(u64::MAX));
        let mut bytes = vec![0; size as usize];
        let mut have = 0;
        while have < bytes.len() {
            match self.file.read_at(&mut bytes[have..], offset + have as u64)? {
                0 => break,
                count => have += count,
            }
        }
        bytes.truncate(have);
        if let Some(from) = garbage_from {
            let spared = usize::try_from(from.saturating_sub(offset)).unwrap_or(usize::MAX).min(have);
            bytes[spared..].iter_mut().for_each(|byte| *byte = !*byte);
        }
        Ok(bytes)
    }
}

fn attributes(node: u64, metadata: &Metadata) -> io::Result<FileAttr> {
    let time = |seconds: i64, nanos: i64| {
        UNIX_EPOCH + Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0))
    };
    Ok(FileAttr {
        ino: INodeNo(node),
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        ctime: time(metadata.ctime(), metadata.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: FileType::from_std(metadata.file_type()).ok_or(io::ErrorKind::Unsupported)?,
        perm: (metadata.mode() & 0o7777) as u16,
        nlink: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: metadata.rdev() as u32,
        blksize: metadata.blksize() as u32,
        flags: 0,
    })
}

impl Filesystem for Passthrough {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let path = self.shown.path(parent).join(name);
        self.answer(Operation::Lookup, path, |shown, path, _, verdict| match shown.attributes(path, verdict) {
            Ok(attributes) => reply.entry(&Duration::ZERO, &attributes, Generation(0)),
            Err(error) => reply.error(error.into()),
        });
    }

    fn getattr(&self, _request: &Request, node: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(Operation::Getattr, self.shown.path(node), move |shown, path, _, verdict| {
            match shown.attributes_of(node.0, path, verdict) {
                Ok(attributes) => reply.attr(&Duration::ZERO, &attributes),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        match fs::read_link(self.shown.source.join(self.shown.path(node))) {
            Ok(target) => reply.data(target.as_os_str().as_encoded_bytes()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn open(&self, _request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        let operation = if writes { Operation::Change } else { Operation::Open };
        self.answer(operation, self.shown.path(node), move |shown, path, rules, verdict| {
            match shown.open(path, writes, rules, verdict) {
                Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn read(
        &self,
        _request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(opened) = self.shown.files().get(&handle.0).map(Arc::clone) else { return reply.error(Errno::EBADF) };
        self.answer(Operation::Read, self.shown.path(node), move |_, _, _, verdict| {
            match obey(verdict).and_then(|()| opened.read(offset, size)) {
                Ok(bytes) => reply.data(&bytes),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn release(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.shown.files().remove(&handle.0);
        reply.ok();
    }

    fn write(
        &self,
        _request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(opened) = self.shown.files().get(&handle.0).map(Arc::clone) else { return reply.error(Errno::EBADF) };
        let data = data.to_vec();
        self.answer(Operation::Write, self.shown.path(node), move |shown, _, _, verdict| {
            match obey(verdict).and_then(|()| opened.file.write_all_at(&data, offset)).and_then(|()| shown.note()) {
                Ok(()) => reply.written(data.len() as u32),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let path = self.shown.path(parent).join(name);
        self.answer(Operation::Create, path, move |shown, path, rules, verdict| {
            let made = shown.create(path, mode & !umask, flags, rules, verdict);
            let made = made.and_then(|handle| shown.note().map(|()| handle));
            match made.and_then(|handle| Ok((handle, shown.attributes(path, Verdict::default())?))) {
                Ok((handle, attributes)) => {
                    let (handle, flags) = (FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
                    reply.created(&Duration::ZERO, &attributes, Generation(0), handle, flags);
                }
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn mkdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let path = self.shown.path(parent).join(name);
        self.answer(Operation::Create, path, move |shown, path, _, verdict| {
            let made = shown.make_directory(path, mode & !umask, verdict);
            match made.and_then(|()| shown.note()).and_then(|()| shown.attributes(path, Verdict::default())) {
                Ok(attributes) => reply.entry(&Duration::ZERO, &attributes, Generation(0)),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let path = self.shown.path(parent).join(name);
        self.change(Operation::Change, path, reply, |shown, path, verdict| {
            shown.remove(path, verdict, |path| fs::remove_file(path))
        });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let path = self.shown.path(parent).join(name);
        self.change(Operation::Change, path, reply, |shown, path, verdict| {
            shown.remove(path, verdict, |path| fs::remove_dir(path))
        });
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (path, to) = (self.shown.path(parent).join(name), self.shown.path(new_parent).join(new_name));
        self.change(Operation::Change, path, reply, move |shown, path, verdict| shown.rename(path, &to, verdict));
    }

    fn setattr(
        &self,
        _request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || user.is_some() || group.is_some() {
            return reply.error(Errno::ENOTSUP);
        }
        self.answer(Operation::Change, self.shown.path(node), move |shown, path, _, verdict| {
            let set = shown.set(node.0, path, size, mtime, verdict);
            match set.and_then(|()| shown.note()).and_then(|()| shown.attributes_of(node.0, path, Verdict::default())) {
                Ok(attributes) => reply.attr(&Duration::ZERO, &attributes),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn fsync(&self, _request: &Request, node: INodeNo, handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let Some(opened) = self.shown.files().get(&handle.0).map(Arc::clone) else { return reply.error(Errno::EBADF) };
        self.change(Operation::Write, self.shown.path(node), reply, move |shown, _, verdict| {
            obey(verdict).and_then(|()| shown.synced(&opened))
        });
    }

    fn fsyncdir(&self, _request: &Request, node: INodeNo, _handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.change(Operation::Write, self.shown.path(node), reply, |shown, path, verdict| {
            obey(verdict).and_then(|()| shown.directory_synced(path))
        });
    }

    fn readdir(&self, _request: &Request, node: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.answer(Operation::Readdir, self.shown.path(node), move |shown, path, _, verdict| {
            match obey(verdict).and_then(|()| shown.entries(path)) {
                Ok(entries) => {
                    for (number, (node, kind, name)) in entries.iter().enumerate().skip(offset as usize) {
                        if reply.add(INodeNo(*node), number as u64 + 1, *kind, name) {
                            break;
                        }
                    }
                    reply.ok();
                }
                Err(error) => reply.error(error.into()),
            }
        });
    }
}
