//! Detects a cache disk that hangs: records which threads are in a call to it, and since when.
//!
//! A call to a mount that is gone does not return and cannot be cancelled. So other threads check here first, and read
//! from the store while the disk hangs. A thread that waits for something other than the disk records that ([`outside_disk_call`],
//! [`restart_clock`]).

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// How long a disk call may take before the disk counts as hanging, for a read that may take `within`: short enough to
/// leave time to read from the store.
pub(super) fn hang_limit(within: Duration) -> Duration {
    (within / 4).min(Duration::from_secs(2))
}

/// The disk calls in progress: thread and start time.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<Vec<(ThreadId, Instant)>>);

thread_local! {
    /// The record that this thread's calls are entered in.
    static COUNTED: RefCell<Option<Arc<Calls>>> = const { RefCell::new(None) };
}

impl Calls {
    fn since(&self) -> MutexGuard<'_, Vec<(ThreadId, Instant)>> {
        self.0.lock()
    }

    /// Records this thread as calling the disk until the returned guard is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Calling {
        COUNTED.set(Some(Arc::clone(self)));
        restart_clock();
        Calling
    }

    /// The age of the oldest call in progress.
    pub(super) fn longest(&self) -> Option<Duration> {
        let oldest = self.since().iter().map(|(_, since)| *since).min();
        oldest.map(|since| since.elapsed())
    }
}

/// A thread's sequence of disk calls.
#[derive(Debug)]
pub(super) struct Calling;

impl Drop for Calling {
    fn drop(&mut self) {
        change(|calls, thread| calls.retain(|(other, _)| *other != thread));
        COUNTED.set(None);
    }
}

/// Runs something slow that is not a disk call: this thread does not count as calling the disk meanwhile.
pub(super) fn outside_disk_call<T>(wait: impl FnOnce() -> T) -> T {
    change(|calls, thread| calls.retain(|(other, _)| *other != thread));
    let waited = wait();
    restart_clock();
    waited
}

/// Restarts the clock: this thread's last call has returned.
pub(super) fn restart_clock() {
    change(|calls, thread| {
        calls.retain(|(other, _)| *other != thread);
        calls.push((thread, Instant::now()));
    });
}

fn change(change: impl FnOnce(&mut Vec<(ThreadId, Instant)>, ThreadId)) {
    COUNTED.with_borrow(|counted| {
        if let Some(calls) = counted {
            change(&mut calls.since(), std::thread::current().id());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_in_calls_counts() {
        let calls = Arc::new(Calls::default());
        restart_clock();
        assert_eq!(calls.longest(), None, "nothing is counted before it begins");
        let calling = calls.begin();
        let pause = Duration::from_millis(5);
        std::thread::sleep(pause);
        assert!(calls.longest().is_some_and(|longest| longest >= pause));
        assert_eq!(outside_disk_call(|| calls.longest()), None);
        let before = Instant::now();
        restart_clock();
        assert!(calls.longest().is_some_and(|longest| longest <= before.elapsed()), "the call before is over");
        drop(calling);
        assert_eq!(calls.longest(), None);
    }

    #[test]
    fn a_panic_during_a_wait_leaves_nothing_behind() {
        let calls = Arc::new(Calls::default());
        let calling = calls.begin();
        let wait = std::panic::AssertUnwindSafe(move || {
            let _calling = calling;
            outside_disk_call(|| panic!("as any store may"))
        });
        assert!(std::panic::catch_unwind(wait).is_err());
        assert_eq!(calls.longest(), None);
    }
}
