//! What all threads of a mirror share: both ends, how often and how long to try, how many requests at a time, and what
//! has become of it so far.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use forebay_core::{Error, Kind, Result, Retry};
use forebay_store::{Sink, Store};

use super::pace::Pace;
use crate::limit::Limit;

/// One after the other, without a copy in between, that could not be had: whoever does not answer them answers no other.
const MAX_STREAK: u64 = 100;

/// Which end of the mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Target,
}

pub(super) struct Trip {
    pub(super) source: Arc<dyn Store>,
    pub(super) root: PathBuf,
    pub(super) sink: Box<dyn Sink>,
    pub(super) retry_source: Retry,
    pub(super) retry_target: Retry,
    pub(super) pace: Option<Pace>,
    pub(super) meters: Meters,
    /// What earlier runs have left of copies, by the names of the parts.
    pub(super) leftovers: OnceLock<HashSet<PathBuf>>,
    gate: Mutex<Gate>,
    freed: Condvar,
    state: Mutex<State>,
    halted: Condvar,
}

/// What was done so far.
#[derive(Debug, Default)]
pub(super) struct Meters {
    pub(super) listed_files: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) copied_files: AtomicU64,
    pub(super) copied_bytes: AtomicU64,
    pub(super) resumed_bytes: AtomicU64,
    pub(super) compared_files: AtomicU64,
    pub(super) failed_files: AtomicU64,
    pub(super) retries: AtomicU64,
    streak: AtomicU64,
}

struct Gate {
    limit: Limit,
    busy: usize,
}

#[derive(Default)]
struct State {
    failures: Vec<Error>,
    /// Why everything stops.
    halt: Option<Error>,
}

impl Trip {
    pub(super) fn new(
        (source, root, retry_source): (Arc<dyn Store>, PathBuf, Retry),
        (sink, retry_target): (Box<dyn Sink>, Retry),
        pace: Option<Pace>,
        threads: usize,
    ) -> Self {
        Self {
            source,
            root,
            sink,
            retry_source,
            retry_target,
            pace,
            meters: Meters::default(),
            leftovers: OnceLock::new(),
            gate: Mutex::new(Gate { limit: Limit::new(threads, threads), busy: 0 }),
            freed: Condvar::new(),
            state: Mutex::default(),
            halted: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_halted(&self) -> bool {
        self.state().halt.is_some()
    }

    /// Stops everything, for this reason.
    pub(super) fn halt(&self, why: Error) {
        self.state().halt.get_or_insert(why);
        self.halted.notify_all();
    }

    /// Notes what could not be done.
    pub(super) fn fail(&self, error: Error) {
        // What was under way when everything stopped says nothing of its own.
        let mut state = self.state();
        if state.halt.is_none() {
            self.meters.failed_files.fetch_add(1, Relaxed);
            state.failures.push(error);
        }
    }

    /// Notes a file that could not be copied, and stops where no other could be, either.
    pub(super) fn lose(&self, end: End, error: Error) {
        if matches!(error.errno(), Some(libc::ENOSPC | libc::EDQUOT | libc::EROFS)) {
            return self.halt(error);
        }
        let is_general = end == End::Target || matches!(error.kind(), Kind::Unavailable | Kind::Timeout);
        let streak = if is_general { self.meters.streak.fetch_add(1, Relaxed) + 1 } else { 0 };
        let last = error.to_string();
        self.fail(error);
        if streak >= MAX_STREAK {
            let what = if end == End::Target { "target takes" } else { "source gives" };
            let message =
                format!("the {what} nothing any more: {streak} files failed one after the other, the last: {last}");
            self.halt(
                Error::new(Kind::Unavailable, message).with_hint("bring it back, and run the same command again"),
            );
        }
    }

    pub(super) fn has_copied(&self) {
        self.meters.streak.store(0, Relaxed);
        self.meters.copied_files.fetch_add(1, Relaxed);
    }

    /// What could not be done, and why everything stopped if it did.
    pub(super) fn into_failures(self) -> (Vec<Error>, Option<Error>) {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        (state.failures, state.halt)
    }

    /// Waits; the error is that everything stops.
    pub(super) fn sleep(&self, pause: Duration) -> Result<()> {
        let woken = self.halted.wait_timeout_while(self.state(), pause, |state| state.halt.is_none());
        match woken.unwrap_or_else(PoisonError::into_inner).0.halt {
            Some(_) => Err(Error::new(Kind::Stopped, "the mirror was stopped")),
            None => Ok(()),
        }
    }

    /// Tries until it goes well, or until there is no reason to try again. `Retry` decides about that, as everywhere.
    pub(super) fn persist<T>(&self, end: End, mut attempt: impl FnMut(Duration) -> Result<T>) -> Result<T> {
        let retry = if end == End::Source { self.retry_source } else { self.retry_target };
        let (mut started, mut attempts) = (Instant::now(), 1);
        loop {
            self.sleep(Duration::ZERO)?;
            let error = match self.pass(|| attempt(retry.deadline.saturating_sub(started.elapsed()))) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if error.has_progressed() {
                // A page of many: it has its own attempts and its own time.
                (attempts, started) = (1, Instant::now());
            }
            let key = self.meters.retries.load(Relaxed);
            let Some(pause) = retry.pause(&error, attempts, started.elapsed(), key) else {
                return Err(error.after(attempts, started.elapsed()));
            };
            self.meters.retries.fetch_add(1, Relaxed);
            attempts += 1;
            self.sleep(pause)?;
        }
    }

    /// Through the gate: as many at a time as the storage bears.
    fn pass<T>(&self, attempt: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut gate = self.gate();
        while gate.busy >= gate.limit.current() {
            gate = self.freed.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        gate.busy += 1;
        let busy = gate.busy;
        gate.limit.departed(busy, true);
        if busy < gate.limit.current() {
            // The limit may have grown: each that leaves lets one in, and that one the next.
            self.freed.notify_one();
        }
        drop(gate);
        let started = Instant::now();
        let guard = Leave(self);
        let done = attempt();
        {
            let mut gate = self.gate();
            let others = gate.busy - 1;
            match &done {
                Ok(_) => gate.limit.landed(started.elapsed()),
                Err(error) => gate.limit.failed(error, others),
            }
        }
        drop(guard);
        done
    }
}

/// Leaves the gate, also when what passed it panics: others wait for it.
struct Leave<'a>(&'a Trip);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.gate().busy -= 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::crew;
    use forebay_store::testing::Memory;
    use forebay_store::{DirectorySink, Stat};
    use std::path::Path;

    fn trip(folder: &Path, threads: usize) -> Trip {
        let retry = Retry { retries: 20, first_pause: Duration::from_millis(1), ..Retry::default() };
        let sink = Box::new(DirectorySink::open(folder, false).unwrap());
        Trip::new((Arc::new(Memory::default()), folder.to_owned(), retry), (sink, retry), None, threads)
    }

    #[test]
    fn storage_that_asks_for_less_load_gets_less_and_then_more_again() {
        let folder = tempfile::tempdir().unwrap();
        let trip = trip(folder.path(), 16);
        let (at_a_time, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let call = |is_busy: bool| {
            most.fetch_max(at_a_time.fetch_add(1, Relaxed) + 1, Relaxed);
            std::thread::sleep(Duration::from_millis(1));
            at_a_time.fetch_sub(1, Relaxed);
            if is_busy { Err(Error::new(Kind::Unavailable, "busy").throttled(None)) } else { Ok(()) }
        };
        for _ in 0..6 {
            // One after the other: calls that began before the last halving would say nothing new.
            let mut is_busy = true;
            trip.persist(End::Source, |_| call(std::mem::take(&mut is_busy))).unwrap();
        }
        assert!(trip.gate().limit.current() <= 2, "{}", trip.gate().limit.current());
        assert_eq!(trip.meters.retries.load(Relaxed), 6);
        most.store(0, Relaxed);
        let work = |_: u32, _: &crew::Desk<u32>| trip.persist(End::Source, |_| call(false)).unwrap();
        crew::run(16, 0..2_000, work, &mut || {}).unwrap();
        assert_eq!(trip.gate().limit.current(), 16);
        assert!(most.load(Relaxed) >= 14, "the limit is used: {}", most.load(Relaxed));
    }

    #[test]
    fn an_end_that_gives_nothing_any_more_stops_it() {
        let folder = tempfile::tempdir().unwrap();
        let lost = |trip: &Trip, kind, count| {
            (0..count).for_each(|_| trip.lose(End::Source, Error::new(kind, "was lost")));
            trip.is_halted()
        };
        assert!(!lost(&trip(folder.path(), 1), Kind::Denied, 2 * MAX_STREAK), "each of them is a file of its own");
        let trip = trip(folder.path(), 1);
        assert!(!lost(&trip, Kind::Unavailable, MAX_STREAK - 1));
        trip.has_copied();
        assert!(!lost(&trip, Kind::Unavailable, MAX_STREAK - 1), "one in between is a sign of life");
        assert!(lost(&trip, Kind::Timeout, 1));
        assert_eq!(trip.persist(End::Source, |_| Ok(())).unwrap_err().kind(), Kind::Stopped);
        let (failures, halt) = trip.into_failures();
        assert_eq!(failures.len() as u64, 2 * MAX_STREAK - 1);
        assert!(halt.unwrap().message().starts_with("the source gives nothing any more: 100 files failed"));
    }

    #[test]
    fn a_full_disk_stops_it_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let trip = trip(folder.path(), 1);
        for errno in [libc::ENOSPC, libc::EDQUOT] {
            trip.lose(End::Target, Error::io("written", std::io::Error::from_raw_os_error(errno)));
        }
        let stat = Stat { size_bytes: 0, mtime_ns: 0 };
        assert!(trip.persist(End::Target, |_| trip.sink.put(Path::new("a"), b"", stat)).is_err());
        let (failures, halt) = trip.into_failures();
        assert_eq!((failures.len(), halt.unwrap().errno()), (0, Some(libc::ENOSPC)), "one message");
    }
}
