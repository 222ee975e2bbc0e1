//! Whether the disk of a cache answers: which threads are in a call on it, and since when.
//!
//! A call on a mount that is gone does not come back, and cannot be ended. So the others look here first, and read from
//! the store instead for as long as it lasts. What a thread waits for besides, it says here ([`away`], [`again`]).

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// How long a call may take before the disk is said to hang, of a read that may take `within`: soon enough for it to be
/// read elsewhere.
pub(super) fn hang_limit(within: Duration) -> Duration {
    (within / 4).min(Duration::from_secs(2))
}

/// The calls that have not come back.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<Vec<(ThreadId, Instant)>>);

thread_local! {
    /// Where the calls of this thread are counted.
    static COUNTED: RefCell<Option<Arc<Calls>>> = const { RefCell::new(None) };
}

impl Calls {
    fn since(&self) -> MutexGuard<'_, Vec<(ThreadId, Instant)>> {
        self.0.lock()
    }

    /// This thread calls the disk, until what this gives is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Calling {
        COUNTED.set(Some(Arc::clone(self)));
        again();
        Calling
    }

    /// How long the call has taken that has taken longest.
    pub(super) fn longest(&self) -> Option<Duration> {
        let oldest = self.since().iter().map(|(_, since)| *since).min();
        oldest.map(|since| since.elapsed())
    }
}

/// One thread's calls of the disk, one after the other.
#[derive(Debug)]
pub(super) struct Calling;

impl Drop for Calling {
    fn drop(&mut self) {
        change(|calls, thread| calls.retain(|(other, _)| *other != thread));
        COUNTED.set(None);
    }
}

/// Something else that may take long: it is not the disk that is waited for.
pub(super) fn away<T>(wait: impl FnOnce() -> T) -> T {
    change(|calls, thread| calls.retain(|(other, _)| *other != thread));
    let waited = wait();
    again();
    waited
}

/// This thread's call has come back, and another one begins.
pub(super) fn again() {
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
        again();
        assert_eq!(calls.longest(), None, "nothing is counted before it begins");
        let calling = calls.begin();
        let pause = Duration::from_millis(5);
        std::thread::sleep(pause);
        assert!(calls.longest().is_some_and(|longest| longest >= pause));
        assert_eq!(away(|| calls.longest()), None);
        let before = Instant::now();
        again();
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
            away(|| panic!("as any store may"))
        });
        assert!(std::panic::catch_unwind(wait).is_err());
        assert_eq!(calls.longest(), None);
    }
}
