//! Threads that work on jobs until there are none; a job may bring others. The calling thread watches.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use forebay_core::{Error, Result};

use crate::recover::panicked;

/// How often the calling thread looks.
const GLANCE: Duration = Duration::from_millis(100);

/// The jobs.
pub(super) struct Desk<J> {
    state: Mutex<State<J>>,
    asked: Condvar,
    ended: Condvar,
}

struct State<J> {
    waiting: VecDeque<J>,
    busy: usize,
    panicked: Option<Error>,
}

impl<J> Desk<J> {
    fn state(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more job.
    pub(super) fn add(&self, job: J) {
        self.state().waiting.push_back(job);
        self.asked.notify_one();
    }

    /// A thread's life: until there is no job, and none that may bring one.
    fn work(&self, work: &(impl Fn(J, &Self) + Sync)) {
        let mut state = self.state();
        loop {
            if state.panicked.is_some() {
                return;
            }
            let Some(job) = state.waiting.pop_front() else {
                if state.busy == 0 {
                    return;
                }
                state = self.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.busy += 1;
            drop(state);
            let done = catch_unwind(AssertUnwindSafe(|| work(job, self)));
            state = self.state();
            state.busy -= 1;
            if let Err(panic) = done {
                state.panicked.get_or_insert(panicked(&*panic));
            }
            if state.busy == 0 && state.waiting.is_empty() || state.panicked.is_some() {
                self.asked.notify_all();
                self.ended.notify_all();
            }
        }
    }
}

/// Does all jobs and those that they bring, in so many threads; fewer will do where no more can be had, but not none.
pub(super) fn run<J: Send>(
    threads: usize,
    jobs: impl IntoIterator<Item = J>,
    work: impl Fn(J, &Desk<J>) + Sync,
    watch: &mut dyn FnMut(),
) -> Result<()> {
    let state = State { waiting: jobs.into_iter().collect(), busy: 0, panicked: None };
    let desk = Desk { state: Mutex::new(state), asked: Condvar::new(), ended: Condvar::new() };
    std::thread::scope(|scope| {
        let mut crew = Vec::new();
        for number in 0..threads.max(1) {
            let started =
                Builder::new().name(format!("forebay-mirror-{number}")).spawn_scoped(scope, || desk.work(&work));
            match started {
                Ok(thread) => crew.push(thread),
                Err(error) if crew.is_empty() => return Err(Error::io("given a thread", error)),
                Err(_) => break,
            }
        }
        let is_going = |state: &mut State<J>| state.busy > 0 || !state.waiting.is_empty() && state.panicked.is_none();
        loop {
            let waited = desk.ended.wait_timeout_while(desk.state(), GLANCE, is_going);
            if !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
                return Ok(());
            }
            watch();
        }
    })?;
    watch();
    let state = desk.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    state.panicked.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[test]
    fn all_jobs_are_done_and_those_that_they_bring() {
        let (done, mut looks) = (AtomicU64::new(0), 0);
        let work = |depth: u32, desk: &Desk<u32>| {
            done.fetch_add(1, Relaxed);
            (0..2).filter(|_| depth > 0).for_each(|_| desk.add(depth - 1));
        };
        run(4, [9, 9], work, &mut || looks += 1).unwrap();
        assert_eq!(done.load(Relaxed), 2 * (1024 - 1));
        assert!(looks > 0);
        run(4, [], |(): (), _: &Desk<()>| {}, &mut || {}).unwrap();
    }

    #[test]
    fn a_panic_is_an_error_and_ends_it() {
        let work = |number: u32, _: &Desk<u32>| assert!(number != 3, "three");
        let error = run(2, 0..100, work, &mut || {}).unwrap_err();
        assert!(error.to_string().contains("forebay-mirror-") && error.to_string().contains("three"), "{error}");
    }
}
