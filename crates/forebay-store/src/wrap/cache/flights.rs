//! Threads of one process that want the same object at the same time: one of them gets it, and the others wait for that.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::key::Name;
use super::lock::Waited;
use crate::store::Ends;

/// What became of getting an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// There is an entry now.
    Kept,
    /// It was got, and not kept.
    Passed,
    /// It was not got.
    Failed,
}

#[derive(Debug)]
struct Flight {
    /// `None` until it has landed.
    outcome: Mutex<Option<Outcome>>,
    landed: Condvar,
}

/// Objects that threads of this process are getting.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<Name, Arc<Flight>>>);

/// What a thread that wants an object is to do.
pub(super) enum Joined<'a> {
    /// Get it.
    Lead(Lead<'a>),
    /// Another one tried.
    Landed(Outcome),
}

/// The others wait until this is dropped.
pub(super) struct Lead<'a> {
    flights: &'a Flights,
    name: Name,
    flight: Arc<Flight>,
    pub(super) outcome: Outcome,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.flights.map().remove(&self.name);
        *lock(&self.flight.outcome) = Some(self.outcome);
        self.flight.landed.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flights {
    fn map(&self) -> MutexGuard<'_, HashMap<Name, Arc<Flight>>> {
        lock(&self.0)
    }

    /// Leads, or waits for whoever does.
    pub(super) fn join(&self, name: &Name, until: Instant, ends: Option<&Ends>) -> Waited<Joined<'_>> {
        /// A stop is noticed this late.
        const SLICE: Duration = Duration::from_millis(50);
        let flight = {
            let mut map = self.map();
            match map.get(name) {
                Some(flight) => Arc::clone(flight),
                None => {
                    let flight = Arc::new(Flight { outcome: Mutex::new(None), landed: Condvar::new() });
                    map.insert(name.clone(), Arc::clone(&flight));
                    drop(map);
                    return Waited::Done(Joined::Lead(Lead {
                        flights: self,
                        name: name.clone(),
                        flight,
                        outcome: Outcome::Failed,
                    }));
                }
            }
        };
        let mut outcome = lock(&flight.outcome);
        loop {
            if let Some(outcome) = *outcome {
                return Waited::Done(Joined::Landed(outcome));
            }
            if ends.is_some_and(Ends::is_raised) {
                return Waited::Stopped;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Waited::Late;
            }
            outcome = flight.landed.wait_timeout(outcome, left.min(SLICE)).unwrap_or_else(PoisonError::into_inner).0;
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
        let (flights, name) = (Flights::default(), Key::whole("", Path::new("/a")).name);
        let soon = || Instant::now() + Duration::from_millis(20);
        let Waited::Done(Joined::Lead(mut lead)) = flights.join(&name, soon(), None) else {
            panic!("nobody else does")
        };
        assert!(matches!(flights.join(&name, soon(), None), Waited::Late));
        let other = Key::whole("", Path::new("/b")).name;
        assert!(matches!(flights.join(&other, soon(), None), Waited::Done(Joined::Lead(_))));
        let far = Instant::now() + Duration::from_secs(60);
        let wait = || matches!(flights.join(&name, far, None), Waited::Done(Joined::Landed(Outcome::Kept)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(wait);
            // Until the other one has it too, beside the map and the leader.
            while Arc::strong_count(&lead.flight) < 3 {
                std::thread::yield_now();
            }
            lead.outcome = Outcome::Kept;
            drop(lead);
            assert!(waiting.join().unwrap());
        });
        assert!(flights.map().is_empty(), "nothing is kept");
    }

    #[test]
    fn a_leader_that_panics_lets_the_others_go() {
        let (flights, name) = (Flights::default(), Key::whole("", Path::new("/a")).name);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _lead = flights.join(&name, Instant::now(), None);
            panic!("as any store may");
        }));
        assert!(panicked.is_err());
        assert!(matches!(flights.join(&name, Instant::now(), None), Waited::Done(Joined::Lead(_))));
    }
}
