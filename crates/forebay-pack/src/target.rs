//! Where shards go: a directory or an object store, with what is there already. Calls are tried again by the loader's policy.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::{Defaults, kind_of};
use forebay_core::{Error, Kind, Result, Retry};
use forebay_store::{
    DirectorySink, Local, MountKind, ObjectSink, ReadRequest, Remote, Sink, SinkEntry, Stat, StorageOptions, Store,
    is_url, machine,
};
use parking_lot::{Condvar, Mutex};

/// More than an index takes. What is larger is not forebay's.
const MAX_READ_BYTES: u64 = 64 << 30;

/// Why packing stops, if it does; every pause ends then.
#[derive(Debug, Default)]
pub(crate) struct Halt {
    why: Mutex<Option<Error>>,
    raised: Condvar,
}

impl Halt {
    pub(crate) fn is_raised(&self) -> bool {
        self.why.lock().is_some()
    }

    /// Stops, for this reason unless there is an earlier one.
    pub(crate) fn raise(&self, why: Error) {
        // What others say because of the stop is no reason of its own.
        if why.kind() != Kind::Stopped {
            self.why.lock().get_or_insert(why);
            self.raised.notify_all();
        }
    }

    pub(crate) fn take(&self) -> Option<Error> {
        self.why.lock().take()
    }

    /// Waits; an error if it was stopped.
    pub(crate) fn sleep(&self, pause: Duration) -> Result<()> {
        let mut why = self.why.lock();
        self.raised.wait_while_for(&mut why, |why| why.is_none(), pause);
        if why.is_some() { Err(Error::new(Kind::Stopped, "packing was stopped")) } else { Ok(()) }
    }

    /// Calls `attempt` until it succeeds or is not to be tried again.
    pub(crate) fn retried<T>(&self, retry: Retry, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let (started, mut attempts) = (Instant::now(), 1);
        loop {
            self.sleep(Duration::ZERO)?;
            let error = match attempt() {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            match retry.pause(&error, attempts, started.elapsed(), u64::from(attempts)) {
                Some(pause) => self.sleep(pause)?,
                None => return Err(error.after(attempts, started.elapsed())),
            }
            attempts += 1;
        }
    }
}

/// The target of shards.
pub(crate) struct Target {
    pub(crate) sink: Box<dyn Sink>,
    store: Arc<dyn Store>,
    /// A directory, or a URL without options.
    pub(crate) root: PathBuf,
    pub(crate) is_remote: bool,
    pub(crate) retry: Retry,
}

impl Target {
    /// Creates a directory that is not there.
    pub(crate) fn open(path: &Path, options: &StorageOptions, verifies: bool) -> Result<Self> {
        let retry = |kind| Defaults::on(kind, machine::available_cpus()).retry;
        if is_url(path) {
            let (store, root) = Remote::open(path, options)?;
            let sink = Box::new(ObjectSink::open(store.clone(), root.clone(), verifies)?);
            let retry = retry(Some(MountKind::Remote));
            return Ok(Self { sink, store: Arc::new(store), root, is_remote: true, retry });
        }
        let sink = Box::new(DirectorySink::open(path, verifies)?);
        let (store, root) = (Arc::new(Local), path.to_owned());
        Ok(Self { sink, store, root, is_remote: false, retry: retry(kind_of(&Local, path)) })
    }

    /// All of a small file; `None` where nothing is.
    pub(crate) fn read(&self, halt: &Halt, name: &Path) -> Result<Option<Vec<u8>>> {
        let path = self.root.join(name);
        let read = halt.retried(self.retry, || {
            let request = ReadRequest::new(&path, self.retry.deadline);
            let object = self.store.fetch(&request, &mut |size| {
                let mut buffer = Vec::new();
                let fits = size <= MAX_READ_BYTES && buffer.try_reserve_exact(size as usize).is_ok();
                let no_memory = || Error::new(Kind::Exhausted, format!("no memory was left for {size} bytes of it"));
                fits.then_some(buffer).ok_or_else(no_memory)
            })?;
            Ok(object.bytes.into_vec())
        });
        match read {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Puts a file in its place in one step.
    pub(crate) fn put(&self, halt: &Halt, name: &Path, bytes: &[u8], mtime_ns: i64) -> Result<()> {
        let stat = Stat { size_bytes: bytes.len() as u64, mtime_ns };
        halt.retried(self.retry, || self.sink.put(name, bytes, stat))
    }

    /// Removes what killed processes have left of files in a directory. What another process is writing stays.
    pub(crate) fn tidy(&self, halt: &Halt, directory: &Path) -> Result<()> {
        for entry in halt.retried(self.retry, || self.sink.list(directory))? {
            if let SinkEntry::Part(name) = entry {
                halt.retried(self.retry, || self.sink.remove(&directory.join(&name)))?;
            }
        }
        Ok(())
    }

    /// The size of a file that is there.
    pub(crate) fn size(&self, halt: &Halt, name: &Path) -> Result<Option<u64>> {
        Ok(halt.retried(self.retry, || self.sink.held(name))?.map(|held| held.size_bytes))
    }
}
