//! The threads that call a store for a scan: they list directories, examine files and read them. A thread that is stuck in the
//! kernel is written off, and does not stop the scan.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use forebay_core::{Error, Result, Retry, Stage};
use forebay_store::late;

/// Runs jobs concurrently, in the order they are added; results come in the order they are ready.
///
/// When it is dropped, idle threads are joined; the others end when their call returns.
pub(crate) struct CallPool<J, T> {
    queue: Arc<JobQueue<J, T>>,
    threads: Vec<JoinHandle<()>>,
    max_threads: usize,
    /// Jobs that were added, and whose results were not taken.
    open: usize,
    /// Written off.
    lost: usize,
}

type Call<J, T> = dyn Fn(&J) -> Result<T> + Send + Sync;

struct JobQueue<J, T> {
    retry: Retry,
    /// Calls return within their deadline.
    keeps_deadlines: bool,
    /// The call for one job.
    call: Box<Call<J, T>>,
    state: Mutex<JobState<J, T>>,
    asked: Condvar,
    done: Condvar,
    /// Some jobs were dropped.
    unwanted: Condvar,
}

struct JobState<J, T> {
    waiting: VecDeque<J>,
    /// One for each thread that was started.
    threads: Vec<ThreadCall<J>>,
    done: VecDeque<(J, std::thread::Result<Result<T>>)>,
    is_closed: bool,
}

/// The state of a thread.
enum ThreadCall<J> {
    Nothing,
    Calling {
        job: J,
        started: Instant,
        attempts: u32,
        attempt_started: Instant,
    },
    /// Its call was written off.
    Lost,
}

impl<J> ThreadCall<J> {
    fn is_calling(&self) -> bool {
        matches!(self, Self::Calling { .. })
    }
}

/// What [`CallPool::poll`] gives.
pub(crate) enum Polled<J, T> {
    /// A job has ended.
    Done(J, Result<T>),
    /// No job has ended within the time.
    Waiting,
    /// No job is left.
    End,
}

impl<J, T> CallPool<J, T>
where
    J: AsRef<Path> + Clone + Send + 'static,
    T: Send + 'static,
{
    /// No thread is started yet.
    pub(crate) fn new(
        max_threads: usize,
        retry: Retry,
        keeps_deadlines: bool,
        call: impl Fn(&J) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        let state = JobState { waiting: VecDeque::new(), threads: Vec::new(), done: VecDeque::new(), is_closed: false };
        let queue = JobQueue {
            retry,
            keeps_deadlines,
            call: Box::new(call),
            state: Mutex::new(state),
            asked: Condvar::new(),
            done: Condvar::new(),
            unwanted: Condvar::new(),
        };
        Self { queue: Arc::new(queue), threads: Vec::new(), max_threads: max_threads.max(1), open: 0, lost: 0 }
    }

    /// Jobs that no thread has started.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().waiting.len()
    }

    /// Adds a job.
    pub(crate) fn ask(&mut self, job: J) {
        self.queue.lock().waiting.push_back(job);
        self.open += 1;
        self.queue.asked.notify_one();
    }

    /// The next job that has ended; `None` when no job is left.
    pub(crate) fn next(&mut self) -> Result<Option<(J, Result<T>)>> {
        loop {
            match self.poll(Duration::MAX)? {
                Polled::Done(job, done) => return Ok(Some((job, done))),
                Polled::Waiting => {}
                Polled::End => return Ok(None),
            }
        }
    }

    /// The same, with a time limit.
    pub(crate) fn poll(&mut self, patience: Duration) -> Result<Polled<J, T>> {
        if self.open == 0 {
            return Ok(Polled::End);
        }
        let begun = Instant::now();
        // Only here: whatever happened to the threads, the jobs that are waited for below have one.
        self.start_threads()?;
        let mut state = self.queue.lock();
        loop {
            if let Some((job, done)) = state.done.pop_front() {
                self.open -= 1;
                return Ok(Polled::Done(job, done.unwrap_or_else(|panic| resume_unwind(panic))));
            }
            if let Some((job, error)) = self.queue.overdue(&mut state) {
                (self.open, self.lost) = (self.open - 1, self.lost + 1);
                return Ok(Polled::Done(job, Err(error)));
            }
            let patience = patience.saturating_sub(begun.elapsed());
            if patience.is_zero() {
                return Ok(Polled::Waiting);
            }
            // A call that starts meanwhile is not overdue before that.
            let deadline = self.queue.retry.deadline;
            let left = self.queue.next_deadline(&state).map_or(deadline, |at| at - Instant::now().min(at));
            let woken = self.queue.done.wait_timeout(state, left.min(deadline).min(patience));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Drops the jobs that are not wanted: `next` does not give them, and threads that run them end by themselves.
    pub(crate) fn keep(&mut self, is_wanted: impl Fn(&J) -> bool) {
        let mut state = self.queue.lock();
        let before = state.waiting.len() + state.done.len();
        state.waiting.retain(&is_wanted);
        state.done.retain(|(job, _)| is_wanted(job));
        self.open -= before - state.waiting.len() - state.done.len();
        for doing in &mut state.threads {
            if matches!(doing, ThreadCall::Calling { job, .. } if !is_wanted(job)) {
                *doing = ThreadCall::Lost;
                (self.open, self.lost) = (self.open - 1, self.lost + 1);
            }
        }
        self.queue.unwanted.notify_all();
    }

    /// Starts threads for the jobs that wait. If the system refuses some, the others do the work; without any it is an error.
    fn start_threads(&mut self) -> Result<()> {
        loop {
            let mut state = self.queue.lock();
            let idle = state.threads.iter().filter(|doing| matches!(doing, ThreadCall::Nothing)).count();
            if idle >= state.waiting.len() || self.threads.len() - self.lost >= self.max_threads {
                return Ok(());
            }
            let number = state.threads.len();
            state.threads.push(ThreadCall::Nothing);
            drop(state);
            let queue = Arc::clone(&self.queue);
            let thread = Builder::new().name(format!("forebay-scan-{number}")).spawn(move || queue.work(number));
            match thread {
                Ok(thread) => self.threads.push(thread),
                Err(error) => {
                    let mut state = self.queue.lock();
                    state.threads.pop();
                    if self.threads.len() > self.lost {
                        return Ok(());
                    }
                    let path = state.waiting.front().map(|job| job.as_ref().to_owned()).unwrap_or_default();
                    return Err(Error::io("given a thread", error).at_path(&path).at_stage(Stage::Scan));
                }
            }
        }
    }
}

impl<J, T> Drop for CallPool<J, T> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.is_closed = true;
        state.waiting.clear();
        let is_idle: Vec<_> = state.threads.iter().map(|doing| matches!(doing, ThreadCall::Nothing)).collect();
        drop(state);
        self.queue.asked.notify_all();
        self.queue.unwanted.notify_all();
        for (thread, is_idle) in self.threads.drain(..).zip(is_idle) {
            if is_idle {
                // A panic came back as its job's result.
                let _ended = thread.join();
            }
        }
    }
}

impl<J, T> JobQueue<J, T> {
    fn lock(&self) -> MutexGuard<'_, JobState<J, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J: AsRef<Path> + Clone, T> JobQueue<J, T> {
    /// A thread's life.
    fn work(&self, number: usize) {
        let mut state = self.lock();
        loop {
            let Some(job) = state.waiting.pop_front() else {
                if state.is_closed {
                    return;
                }
                state = self.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let own = job.clone();
            let now = Instant::now();
            state.threads[number] = ThreadCall::Calling { job, started: now, attempts: 1, attempt_started: now };
            drop(state);
            let done = catch_unwind(AssertUnwindSafe(|| self.attempt(number, &own, now)));
            state = self.lock();
            let ThreadCall::Calling { job, .. } = std::mem::replace(&mut state.threads[number], ThreadCall::Nothing)
            else {
                state.threads[number] = ThreadCall::Lost;
                return;
            };
            state.done.push_back((job, done));
            self.done.notify_one();
        }
    }

    /// Does a job, again after a pause where that may help.
    fn attempt(&self, number: usize, job: &J, mut started: Instant) -> Result<T> {
        loop {
            let error = match (self.call)(job) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let mut state = self.lock();
            let ThreadCall::Calling { attempts, .. } = &mut state.threads[number] else { return Err(error) };
            if error.has_progressed() {
                // A page of many: the ones before it are kept, and it has its own attempts and its own time.
                (*attempts, started) = (1, Instant::now());
            }
            let attempts = *attempts;
            let Some(pause) = self.retry.pause(&error, attempts, started.elapsed(), u64::from(attempts)) else {
                return Err(error.after(attempts, started.elapsed()));
            };
            let is_wanted = |state: &mut JobState<J, T>| !state.is_closed && state.threads[number].is_calling();
            state = self.unwanted.wait_timeout_while(state, pause, is_wanted).unwrap_or_else(PoisonError::into_inner).0;
            match &mut state.threads[number] {
                ThreadCall::Calling { attempts, attempt_started, .. } => {
                    (*attempts, *attempt_started) = (*attempts + 1, Instant::now());
                }
                ThreadCall::Nothing | ThreadCall::Lost => return Err(error),
            }
            if state.is_closed {
                return Err(error);
            }
        }
    }

    /// When the next job is overdue. Where the store keeps deadlines itself, none ever is.
    fn next_deadline(&self, state: &JobState<J, T>) -> Option<Instant> {
        if self.keeps_deadlines {
            return None;
        }
        let started = state.threads.iter().filter_map(|doing| match doing {
            ThreadCall::Calling { started, .. } => Some(*started),
            _ => None,
        });
        started.min().map(|started| started + self.retry.deadline)
    }

    /// Writes off a thread whose job is overdue.
    fn overdue(&self, state: &mut JobState<J, T>) -> Option<(J, Error)> {
        if self.keeps_deadlines {
            return None;
        }
        let now = Instant::now();
        let is_overdue = |started: Instant| started + self.retry.deadline <= now;
        let number = state
            .threads
            .iter()
            .position(|doing| matches!(doing, ThreadCall::Calling { started, .. } if is_overdue(*started)))?;
        match std::mem::replace(&mut state.threads[number], ThreadCall::Lost) {
            ThreadCall::Calling { job, started, attempts, attempt_started } => {
                let within = self.retry.deadline.saturating_sub(attempt_started - started);
                let error = late(job.as_ref(), within).at_path(job.as_ref()).at_stage(Stage::Scan);
                Some((job, error.after(attempts, now - started)))
            }
            ThreadCall::Nothing | ThreadCall::Lost => None,
        }
    }
}
