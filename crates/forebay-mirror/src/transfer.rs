//! What all threads of a mirror share: source and target, the retry policies, the limit of concurrent calls, the counters and the
//! failures so far.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay::ConcurrencyLimit;
use forebay_core::{Error, Kind, Result, Retry};
use forebay_store::{Sink, Store};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::rate_limit::RateLimit;

/// Consecutive failures after which the mirror stops: the store is down.
const MAX_STREAK: u64 = 100;

/// Source or target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Target,
}

/// One run of a mirror.
pub(super) struct Transfer {
    pub(super) source: Arc<dyn Store>,
    pub(super) root: PathBuf,
    pub(super) sink: Box<dyn Sink>,
    pub(super) retry_source: Retry,
    pub(super) retry_target: Retry,
    pub(super) rate_limit: Option<RateLimit>,
    pub(super) meters: Meters,
    /// Part files of earlier runs, by name.
    pub(super) leftovers: OnceLock<HashSet<PathBuf>>,
    calls: Mutex<Calls>,
    freed: Condvar,
    state: Mutex<State>,
    halted: Condvar,
}

/// Counters.
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

struct Calls {
    limit: ConcurrencyLimit,
    busy: usize,
}

#[derive(Default)]
struct State {
    failures: Vec<Error>,
    /// Why the mirror stops.
    halt: Option<Error>,
}

impl Transfer {
    pub(super) fn new(
        (source, root, retry_source): (Arc<dyn Store>, PathBuf, Retry),
        (sink, retry_target): (Box<dyn Sink>, Retry),
        rate_limit: Option<RateLimit>,
        threads: usize,
    ) -> Self {
        Self {
            source,
            root,
            sink,
            retry_source,
            retry_target,
            rate_limit,
            meters: Meters::default(),
            leftovers: OnceLock::new(),
            calls: Mutex::new(Calls { limit: ConcurrencyLimit::new(threads, threads), busy: 0 }),
            freed: Condvar::new(),
            state: Mutex::default(),
            halted: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock()
    }

    pub(super) fn is_halted(&self) -> bool {
        self.state().halt.is_some()
    }

    /// Stops the mirror for this reason.
    pub(super) fn halt(&self, why: Error) {
        self.state().halt.get_or_insert(why);
        self.halted.notify_all();
    }

    /// Records a failure.
    pub(super) fn fail(&self, error: Error) {
        // Failures after the stop are consequences of it.
        let mut state = self.state();
        if state.halt.is_none() {
            self.meters.failed_files.fetch_add(1, Relaxed);
            state.failures.push(error);
        }
    }

    /// Records a file that could not be copied, and stops the mirror if all copies fail.
    pub(super) fn record_loss(&self, end: End, error: Error) {
        if matches!(error.errno(), Some(libc::ENOSPC | libc::EDQUOT | libc::EROFS)) {
            return self.halt(error);
        }
        let is_general = end == End::Target || matches!(error.kind(), Kind::Unavailable | Kind::Timeout);
        let streak = if is_general { self.meters.streak.fetch_add(1, Relaxed) + 1 } else { 0 };
        let last = error.to_string();
        self.fail(error);
        if streak >= MAX_STREAK {
            let what = if end == End::Target { "writes to the target" } else { "reads from the source" };
            let message = format!("all {what} fail: {streak} files failed in a row, the last one: {last}");
            self.halt(
                Error::new(Kind::Unavailable, message).with_hint("restore the storage, and run the same command again"),
            );
        }
    }

    pub(super) fn has_copied(&self) {
        self.meters.streak.store(0, Relaxed);
        self.meters.copied_files.fetch_add(1, Relaxed);
    }

    /// The failures, and why the mirror stopped, if it did.
    pub(super) fn into_failures(self) -> (Vec<Error>, Option<Error>) {
        let state = self.state.into_inner();
        (state.failures, state.halt)
    }

    /// Waits; an error if the mirror was stopped.
    pub(super) fn sleep(&self, pause: Duration) -> Result<()> {
        let mut state = self.state();
        self.halted.wait_while_for(&mut state, |state| state.halt.is_none(), pause);
        match state.halt {
            Some(_) => Err(Error::new(Kind::Stopped, "the mirror was stopped")),
            None => Ok(()),
        }
    }

    /// Calls `attempt` until it succeeds, or until `Retry` says that it is not to be tried again.
    pub(super) fn with_retries<T>(&self, end: End, mut attempt: impl FnMut(Duration) -> Result<T>) -> Result<T> {
        let retry = if end == End::Source { self.retry_source } else { self.retry_target };
        let (mut started, mut attempts) = (Instant::now(), 1);
        loop {
            self.sleep(Duration::ZERO)?;
            let error = match self.limited(|| attempt(retry.deadline.saturating_sub(started.elapsed()))) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if error.has_progressed() {
                // A new page has its own attempts and its own time.
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

    /// Runs a call within the limit of concurrent calls.
    fn limited<T>(&self, attempt: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut calls = self.calls();
        while calls.busy >= calls.limit.current() {
            self.freed.wait(&mut calls);
        }
        calls.busy += 1;
        let busy = calls.busy;
        calls.limit.started(busy, true);
        if busy < calls.limit.current() {
            // The limit may have grown: each call that ends wakes one waiter, which wakes the next.
            self.freed.notify_one();
        }
        drop(calls);
        let started = Instant::now();
        let guard = EndCall(self);
        let done = attempt();
        {
            let mut calls = self.calls();
            let others = calls.busy - 1;
            match &done {
                Ok(_) => calls.limit.succeeded(started.elapsed()),
                Err(error) => calls.limit.failed(error, others),
            }
        }
        drop(guard);
        done
    }
}

/// Ends a call, also after a panic: others wait for it.
struct EndCall<'a>(&'a Transfer);

impl Drop for EndCall<'_> {
    fn drop(&mut self) {
        self.0.calls().busy -= 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers;
    use forebay_store::testing::Memory;
    use forebay_store::{DirectorySink, Stat};
    use std::path::Path;

    fn transfer(folder: &Path, threads: usize) -> Transfer {
        let retry = Retry { retries: 20, first_pause: Duration::from_millis(1), ..Retry::default() };
        let sink = Box::new(DirectorySink::open(folder, false).unwrap());
        Transfer::new((Arc::new(Memory::default()), folder.to_owned(), retry), (sink, retry), None, threads)
    }

    #[test]
    fn storage_that_asks_for_less_load_gets_less_and_then_more_again() {
        let folder = tempfile::tempdir().unwrap();
        let transfer = transfer(folder.path(), 16);
        let (at_a_time, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let call = |is_busy: bool| {
            most.fetch_max(at_a_time.fetch_add(1, Relaxed) + 1, Relaxed);
            std::thread::sleep(Duration::from_millis(1));
            at_a_time.fetch_sub(1, Relaxed);
            if is_busy { Err(Error::new(Kind::Unavailable, "busy").throttled(None)) } else { Ok(()) }
        };
        for _ in 0..6 {
            // Sequential calls: calls that began before the last halving would not lower the limit again.
            let mut is_busy = true;
            transfer.with_retries(End::Source, |_| call(std::mem::take(&mut is_busy))).unwrap();
        }
        assert!(transfer.calls().limit.current() <= 2, "{}", transfer.calls().limit.current());
        assert_eq!(transfer.meters.retries.load(Relaxed), 6);
        most.store(0, Relaxed);
        let work = |_: u32, _: &workers::JobQueue<u32>| transfer.with_retries(End::Source, |_| call(false)).unwrap();
        workers::run(16, 0..2_000, work, &mut || {}).unwrap();
        assert_eq!(transfer.calls().limit.current(), 16);
        assert!(most.load(Relaxed) >= 14, "the limit is used: {}", most.load(Relaxed));
    }

    #[test]
    fn an_end_that_gives_nothing_any_more_stops_it() {
        let folder = tempfile::tempdir().unwrap();
        let lost = |transfer: &Transfer, kind, count| {
            (0..count).for_each(|_| transfer.record_loss(End::Source, Error::new(kind, "was lost")));
            transfer.is_halted()
        };
        assert!(!lost(&transfer(folder.path(), 1), Kind::Denied, 2 * MAX_STREAK), "each of them is a file of its own");
        let transfer = transfer(folder.path(), 1);
        assert!(!lost(&transfer, Kind::Unavailable, MAX_STREAK - 1));
        transfer.has_copied();
        assert!(!lost(&transfer, Kind::Unavailable, MAX_STREAK - 1), "one in between is a sign of life");
        assert!(lost(&transfer, Kind::Timeout, 1));
        assert_eq!(transfer.with_retries(End::Source, |_| Ok(())).unwrap_err().kind(), Kind::Stopped);
        let (failures, halt) = transfer.into_failures();
        assert_eq!(failures.len() as u64, 2 * MAX_STREAK - 1);
        assert!(halt.unwrap().message().starts_with("all reads from the source fail: 100 files failed"));
    }

    #[test]
    fn a_full_disk_stops_it_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let transfer = transfer(folder.path(), 1);
        for errno in [libc::ENOSPC, libc::EDQUOT] {
            transfer.record_loss(End::Target, Error::io("written", std::io::Error::from_raw_os_error(errno)));
        }
        let stat = Stat { size_bytes: 0, mtime_ns: 0 };
        assert!(transfer.with_retries(End::Target, |_| transfer.sink.put(Path::new("a"), b"", stat)).is_err());
        let (failures, halt) = transfer.into_failures();
        assert_eq!((failures.len(), halt.unwrap().errno()), (0, Some(libc::ENOSPC)), "one message");
    }
}
