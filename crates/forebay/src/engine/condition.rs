//! A condition variable that counts its waiters. A notification without waiters is still a system call, and almost always there
//! are none: threads that have work do not wait.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::sync::{AtomicUsize, Condvar, MutexGuard};

/// Notifies waiters after the guarded state changed.
///
/// A waiter is counted under the mutex, before the wait releases it. So a thread that takes the mutex afterwards, changes the
/// state and notifies, under the mutex or after it, sees the count; and a thread that comes to wait later sees the change.
#[derive(Debug, Default)]
pub(crate) struct Condition {
    condvar: Condvar,
    waiting: AtomicUsize,
}

impl Condition {
    /// Waits for a notification. Wake-ups may be spurious: check the state again.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.counted(|| self.condvar.wait(guard).unwrap_or_else(PoisonError::into_inner))
    }

    /// The same, with a time limit.
    pub(crate) fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, most: Duration) -> MutexGuard<'a, T> {
        self.counted(|| self.condvar.wait_timeout(guard, most).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Waits while `condition` holds, with a time limit.
    pub(crate) fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        most: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let waited = || self.condvar.wait_timeout_while(guard, most, condition);
        self.counted(|| waited().unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Runs `wait` with one more waiter counted; it begins and ends with the mutex held.
    fn counted<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.waiting.fetch_add(1, Relaxed);
        let result = wait();
        self.waiting.fetch_sub(1, Relaxed);
        result
    }

    /// Wakes one waiter, if there is any.
    pub(crate) fn notify_one(&self) {
        if self.waiting.load(Relaxed) > 0 {
            self.condvar.notify_one();
        }
    }

    /// Wakes all waiters.
    pub(crate) fn notify_all(&self) {
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
    fn no_notification_is_lost() {
        // Tickets are given out one by one, and each time only one thread is woken; a lost notification would leave a
        // ticket and a sleeping thread behind.
        const TICKETS: u32 = 20_000;
        let (state, given, taken) = (Mutex::new((0u32, 0u32)), Condition::default(), Condition::default());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut guard = state.lock().unwrap();
                    loop {
                        guard = given.wait_while(guard, LONG, |(ready, done)| *ready == 0 && *done < TICKETS);
                        if guard.1 == TICKETS {
                            return given.notify_one(); // the next one is to see it, too
                        }
                        assert!(guard.0 > 0, "waited for a minute with {guard:?}");
                        *guard = (guard.0 - 1, guard.1 + 1);
                        if guard.1 == TICKETS {
                            given.notify_one();
                        }
                        drop(guard);
                        taken.notify_one();
                        guard = state.lock().unwrap();
                    }
                });
            }
            for _ in 0..TICKETS {
                let mut guard = taken.wait_while(state.lock().unwrap(), LONG, |(ready, _)| *ready >= 3);
                assert!(guard.0 < 3, "waited for a minute with {guard:?}");
                guard.0 += 1;
                drop(guard);
                given.notify_one();
            }
        });
        assert_eq!(*state.lock().unwrap(), (0, TICKETS));
    }

    #[test]
    fn a_wait_ends_at_its_limit_and_is_no_longer_counted() {
        let (mutex, condition) = (Mutex::new(()), Condition::default());
        let guard = condition.wait_for(mutex.lock().unwrap(), Duration::from_millis(1));
        drop(condition.wait_while(guard, Duration::from_millis(1), |()| true));
        assert_eq!(condition.waiting.load(Relaxed), 0);
        condition.notify_one();
        condition.notify_all();
    }
}
