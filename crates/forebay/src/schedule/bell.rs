//! A condition variable that knows whether anybody waits. To wake nobody is a system call all the same, and almost
//! always there is nobody to wake: threads that have work do not wait for it.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::sync::{AtomicUsize, Condvar, MutexGuard};

/// Rung by whoever has changed, under the mutex, what others wait for under it.
///
/// Who waits is counted under the mutex, before it is released. So whoever takes the mutex after that, changes
/// something and rings, with the mutex or after it, finds the count; and who comes to wait later finds the change.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    condvar: Condvar,
    waiting: AtomicUsize,
}

impl Bell {
    /// Waits for the bell, or for nothing at all: look again.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.counted(|| self.condvar.wait(guard).unwrap_or_else(PoisonError::into_inner))
    }

    /// The same, for so long at most.
    pub(crate) fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, most: Duration) -> MutexGuard<'a, T> {
        self.counted(|| self.condvar.wait_timeout(guard, most).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Waits while `condition` holds, for so long at most.
    pub(crate) fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        most: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let waited = || self.condvar.wait_timeout_while(guard, most, condition);
        self.counted(|| waited().unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Runs `wait` with one more counted; it begins and ends with the mutex held.
    fn counted<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.waiting.fetch_add(1, Relaxed);
        let result = wait();
        self.waiting.fetch_sub(1, Relaxed);
        result
    }

    /// Wakes one that waits, if any does.
    pub(crate) fn ring_one(&self) {
        if self.waiting.load(Relaxed) > 0 {
            self.condvar.notify_one();
        }
    }

    /// Wakes all that wait.
    pub(crate) fn ring_all(&self) {
        if self.waiting.load(Relaxed) > 0 {
            self.condvar.notify_all();
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn nobody_sleeps_through_it() {
        // Tickets are given out one by one, and each time only one thread is woken; a bell that was not heard would leave
        // a ticket and a sleeper behind.
        const TICKETS: u32 = 20_000;
        let (state, given, taken) = (Mutex::new((0u32, 0u32)), Bell::default(), Bell::default());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut guard = state.lock().unwrap();
                    loop {
                        guard = given.wait_while(guard, LONG, |(ready, done)| *ready == 0 && *done < TICKETS);
                        if guard.1 == TICKETS {
                            return given.ring_one(); // the next one is to see it, too
                        }
                        assert!(guard.0 > 0, "waited for a minute with {guard:?}");
                        *guard = (guard.0 - 1, guard.1 + 1);
                        if guard.1 == TICKETS {
                            given.ring_one();
                        }
                        drop(guard);
                        taken.ring_one();
                        guard = state.lock().unwrap();
                    }
                });
            }
            for _ in 0..TICKETS {
                let mut guard = taken.wait_while(state.lock().unwrap(), LONG, |(ready, _)| *ready >= 3);
                assert!(guard.0 < 3, "waited for a minute with {guard:?}");
                guard.0 += 1;
                drop(guard);
                given.ring_one();
            }
        });
        assert_eq!(*state.lock().unwrap(), (0, TICKETS));
    }

    #[test]
    fn waits_no_longer_than_it_was_told_and_counts_nobody_afterwards() {
        let (mutex, bell) = (Mutex::new(()), Bell::default());
        let guard = bell.wait_for(mutex.lock().unwrap(), Duration::from_millis(1));
        drop(bell.wait_while(guard, Duration::from_millis(1), |()| true));
        assert_eq!(bell.waiting.load(Relaxed), 0);
        bell.ring_one();
        bell.ring_all();
    }
}
