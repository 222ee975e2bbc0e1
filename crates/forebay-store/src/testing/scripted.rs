//! A store that fails as scripted, and counts its reads.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_core::{Error, Kind, Listing, Result, Stage};
use parking_lot::{Condvar, Mutex};

use crate::read_request::ReadRequest;
use crate::store::{Allot, Object, Stat, Store};

/// The fault of one read of a path.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The system call fails with this errno.
    Errno(i32),
    /// The read succeeds with no bytes: other loaders report this storage error as a corrupt image.
    Empty,
    /// Fewer bytes than announced.
    Short,
    /// The object is written to during the read.
    Changed,
    /// The read succeeds with these bytes instead.
    Garbage(Vec<u8>),
    /// The thread panics.
    Panic,
    /// The read waits until [`Scripted::release`].
    Wait,
    /// The same, after its memory was allotted.
    WaitFilled,
    /// The read waits until [`Scripted::release`], or until it is cancelled.
    WaitCancel,
}

/// Wraps a store with a script of faults by path. Each read takes the next fault; after the last one, reads succeed.
#[derive(Debug)]
pub struct Scripted<S> {
    inner: S,
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct State {
    scripts: HashMap<PathBuf, Vec<Fault>>,
    reads: HashMap<PathBuf, u32>,
    is_released: bool,
}

impl<S: Store> Scripted<S> {
    /// A store without faults yet.
    pub fn new(inner: S) -> Self {
        Self { inner, state: Mutex::default(), released: Condvar::new() }
    }

    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Sets the faults of the next reads of a path.
    pub fn script(&self, path: impl Into<PathBuf>, faults: Vec<Fault>) {
        self.state().scripts.insert(path.into(), faults.into_iter().rev().collect());
    }

    /// How often a path was read, faults included.
    pub fn reads(&self, path: &Path) -> u32 {
        self.state().reads.get(path).copied().unwrap_or(0)
    }

    /// How many reads there were in all.
    pub fn total_reads(&self) -> u32 {
        self.state().reads.values().sum()
    }

    fn wait(&self) {
        self.released.wait_while(&mut self.state(), |state| !state.is_released);
    }

    /// Waits for a release, and fails if the read is cancelled first.
    fn wait_unless(&self, request: &ReadRequest<'_>) -> Result<()> {
        /// A cancel does not notify this wait, so it is polled.
        const POLL_INTERVAL: Duration = Duration::from_millis(5);
        let mut state = self.state();
        while !state.is_released {
            request.check_cancel()?;
            self.released.wait_for(&mut state, POLL_INTERVAL);
        }
        Ok(())
    }

    /// Lets all waiting reads continue.
    pub fn release(&self) {
        self.state().is_released = true;
        self.released.notify_all();
    }
}

impl<S: Store> Store for Scripted<S> {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        let path = request.path;
        let fault = {
            let mut state = self.state();
            *state.reads.entry(path.to_owned()).or_default() += 1;
            state.scripts.get_mut(path).and_then(Vec::pop)
        };
        let Some(fault) = fault else { return self.inner.fetch(request, allot) };
        // A waiting read has begun: it returns its bytes even if it was cancelled meanwhile.
        let begun = &ReadRequest { cancel: None, ..request.clone() };
        let result = match fault {
            Fault::Errno(errno) => Err(Error::io("read", std::io::Error::from_raw_os_error(errno))),
            Fault::Empty => allot(0).map(|bytes| (bytes, Vec::new())),
            Fault::Short => Err(Error::new(Kind::Unavailable, "ended early (expected 9 bytes, got 3)").transient()),
            Fault::Changed => Err(Error::new(Kind::Changed, "changed while it was read (expected 9 bytes, got 12)")),
            Fault::Garbage(content) => allot(content.len() as u64).map(|bytes| (bytes, content)),
            Fault::Panic => panic!("scripted panic"),
            Fault::Wait => {
                self.wait();
                return self.inner.fetch(begun, allot);
            }
            Fault::WaitCancel => {
                self.wait_unless(request)?;
                return self.inner.fetch(begun, allot);
            }
            Fault::WaitFilled => {
                let object = self.inner.fetch(begun, allot);
                self.wait();
                return object;
            }
        };
        let (mut bytes, content) = result.map_err(|error| error.at_path(path).at_stage(Stage::Fetch))?;
        bytes.clear();
        bytes.extend_from_slice(&content);
        Ok(Object { bytes: bytes.into(), stat: self.inner.stat(path)? })
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        self.inner.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        self.inner.list(directory)
    }
}
