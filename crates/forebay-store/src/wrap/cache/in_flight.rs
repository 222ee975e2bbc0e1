//! Threads of one process that need the same object at the same time: one fetches it, the others wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::key::Name;
use super::lock::Waited;
use crate::store::CancelSignals;

/// The result of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The object is cached now.
    Kept,
    /// Fetched, but not cached.
    Passed,
    /// The fetch failed.
    Failed,
}

#[derive(Debug)]
struct Fetch {
    /// `None` until it has finished.
    outcome: Mutex<Option<Outcome>>,
    finished: Condvar,
}

/// Objects that threads of this process are fetching.
#[derive(Debug, Default)]
pub(super) struct FetchesInFlight(Mutex<HashMap<Name, Arc<Fetch>>>);

/// The next step for a thread that needs an object.
pub(super) enum Joined<'a> {
    /// Fetch it.
    Leader(Leader<'a>),
    /// Another thread has finished.
    Finished(Outcome),
}

/// The other threads wait until this is dropped.
pub(super) struct Leader<'a> {
    fetches: &'a FetchesInFlight,
    name: Name,
    fetch: Arc<Fetch>,
    pub(super) outcome: Outcome,
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.fetches.map().remove(&self.name);
        *lock(&self.fetch.outcome) = Some(self.outcome);
        self.fetch.finished.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl FetchesInFlight {
    fn map(&self) -> MutexGuard<'_, HashMap<Name, Arc<Fetch>>> {
        lock(&self.0)
    }

    /// Becomes the leader, or waits for the thread that is.
    pub(super) fn join(&self, name: &Name, until: Instant, signals: Option<&CancelSignals>) -> Waited<Joined<'_>> {
        /// Delay until a stop is noticed.
        const SLICE: Duration = Duration::from_millis(50);
        let fetch = {
            let mut map = self.map();
            match map.get(name) {
                Some(fetch) => Arc::clone(fetch),
                None => {
                    let fetch = Arc::new(Fetch { outcome: Mutex::new(None), finished: Condvar::new() });
                    map.insert(name.clone(), Arc::clone(&fetch));
                    drop(map);
                    return Waited::Done(Joined::Leader(Leader {
                        fetches: self,
                        name: name.clone(),
                        fetch,
                        outcome: Outcome::Failed,
                    }));
                }
            }
        };
        let mut outcome = lock(&fetch.outcome);
        loop {
            if let Some(outcome) = *outcome {
                return Waited::Done(Joined::Finished(outcome));
            }
            if signals.is_some_and(CancelSignals::is_raised) {
                return Waited::Stopped;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Waited::Late;
            }
            fetch.finished.wait_for(&mut outcome, left.min(SLICE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::Key;
    use super::*;
    use std::path::Path;

    #[test]
    fn one_leads_and_the_others_wait_for_it_or_are_late() {
        let (fetches, name) = (FetchesInFlight::default(), Key::whole("", Path::new("/a")).name);
        let soon = || Instant::now() + Duration::from_millis(20);
        let Waited::Done(Joined::Leader(mut leader)) = fetches.join(&name, soon(), None) else {
            panic!("nobody else does")
        };
        assert!(matches!(fetches.join(&name, soon(), None), Waited::Late));
        let other = Key::whole("", Path::new("/b")).name;
        assert!(matches!(fetches.join(&other, soon(), None), Waited::Done(Joined::Leader(_))));
        let far = Instant::now() + Duration::from_secs(60);
        let wait = || matches!(fetches.join(&name, far, None), Waited::Done(Joined::Finished(Outcome::Kept)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(wait);
            // Until the other thread holds it too, besides the map and the leader.
            while Arc::strong_count(&leader.fetch) < 3 {
                std::thread::yield_now();
            }
            leader.outcome = Outcome::Kept;
            drop(leader);
            assert!(waiting.join().unwrap());
        });
        assert!(fetches.map().is_empty(), "nothing is kept");
    }

    #[test]
    fn a_leader_that_panics_lets_the_others_go() {
        let (fetches, name) = (FetchesInFlight::default(), Key::whole("", Path::new("/a")).name);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _leader = fetches.join(&name, Instant::now(), None);
            panic!("as any store may");
        }));
        assert!(panicked.is_err());
        assert!(matches!(fetches.join(&name, Instant::now(), None), Waited::Done(Joined::Leader(_))));
    }
}
