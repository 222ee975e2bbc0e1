//! Worker threads: they run jobs until there are none; a job may add others. The calling thread shows progress.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Builder;
use std::time::Duration;

use forebay::panicked;
use forebay_core::{Error, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// How often the calling thread shows progress.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The jobs that wait, and how many run.
pub(super) struct JobQueue<J> {
    state: Mutex<State<J>>,
    asked: Condvar,
    ended: Condvar,
}

struct State<J> {
    waiting: VecDeque<J>,
    busy: usize,
    panicked: Option<Error>,
}

impl<J> JobQueue<J> {
    fn state(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock()
    }

    /// Adds a job.
    pub(super) fn add(&self, job: J) {
        self.state().waiting.push_back(job);
        self.asked.notify_one();
    }

    /// The loop of a thread: until no job waits, and none runs that may add one.
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
                self.asked.wait(&mut state);
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

/// Runs all jobs, and those that they add. If some threads cannot be started, the others do the work.
pub(super) fn run<J: Send>(
    threads: usize,
    jobs: impl IntoIterator<Item = J>,
    work: impl Fn(J, &JobQueue<J>) + Sync,
    watch: &mut dyn FnMut(),
) -> Result<()> {
    let state = State { waiting: jobs.into_iter().collect(), busy: 0, panicked: None };
    let queue = JobQueue { state: Mutex::new(state), asked: Condvar::new(), ended: Condvar::new() };
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for number in 0..threads.max(1) {
            let started =
                Builder::new().name(format!("forebay-mirror-{number}")).spawn_scoped(scope, || queue.work(&work));
            match started {
                Ok(thread) => workers.push(thread),
                Err(error) if workers.is_empty() => return Err(Error::io("given a thread", error)),
                Err(_) => break,
            }
        }
        let is_going = |state: &mut State<J>| state.busy > 0 || !state.waiting.is_empty() && state.panicked.is_none();
        loop {
            if !queue.ended.wait_while_for(&mut queue.state(), is_going, POLL_INTERVAL).timed_out() {
                return Ok(());
            }
            watch();
        }
    })?;
    watch();
    let state = queue.state.into_inner();
    state.panicked.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[test]
    fn all_jobs_are_done_and_those_that_they_bring() {
        let (done, mut looks) = (AtomicU64::new(0), 0);
        let work = |depth: u32, queue: &JobQueue<u32>| {
            done.fetch_add(1, Relaxed);
            (0..2).filter(|_| depth > 0).for_each(|_| queue.add(depth - 1));
        };
        run(4, [9, 9], work, &mut || looks += 1).unwrap();
        assert_eq!(done.load(Relaxed), 2 * (1024 - 1));
        assert!(looks > 0);
        run(4, [], |(): (), _: &JobQueue<()>| {}, &mut || {}).unwrap();
    }

    #[test]
    fn a_panic_is_an_error_and_ends_it() {
        let work = |number: u32, _: &JobQueue<u32>| assert!(number != 3, "three");
        let error = run(2, 0..100, work, &mut || {}).unwrap_err();
        assert!(error.to_string().contains("forebay-mirror-") && error.to_string().contains("three"), "{error}");
    }
}
