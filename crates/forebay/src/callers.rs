//! The threads that call a store for a scan: they list directories, examine files, read them. They can be left alone: one
//! that is stuck in the kernel keeps nobody from going on.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use forebay_core::{Error, Result, Retry, Stage};
use forebay_store::late;

/// Does jobs, several at a time, in the order they are asked for; they come in the order they are done.
///
/// Dropped, it waits for idle threads and leaves the others alone: they end when their call comes back.
pub(crate) struct Callers<J, T> {
    shared: Arc<Shared<J, T>>,
    threads: Vec<JoinHandle<()>>,
    max_threads: usize,
    /// Asked for, and not given back by `next`.
    open: usize,
    /// Written off.
    lost: usize,
}

type Call<J, T> = dyn Fn(&J) -> Result<T> + Send + Sync;

struct Shared<J, T> {
    retry: Retry,
    /// Calls come back in time by themselves.
    keeps_deadlines: bool,
    /// What is done for a job, in a thread of its own.
    call: Box<Call<J, T>>,
    desk: Mutex<Desk<J, T>>,
    asked: Condvar,
    done: Condvar,
    /// Something is not wanted any more.
    unwanted: Condvar,
}

struct Desk<J, T> {
    waiting: VecDeque<J>,
    /// One for each thread that was started.
    threads: Vec<Doing<J>>,
    done: VecDeque<(J, std::thread::Result<Result<T>>)>,
    is_closed: bool,
}

/// What a thread does.
enum Doing<J> {
    Nothing,
    Calling {
        job: J,
        started: Instant,
        attempts: u32,
        attempt_started: Instant,
    },
    /// It did not come back in time, and nobody waits for it any more.
    Lost,
}

impl<J> Doing<J> {
    fn is_calling(&self) -> bool {
        matches!(self, Self::Calling { .. })
    }
}

/// What [`Callers::poll`] found.
pub(crate) enum Polled<J, T> {
    /// A job is done, or could not be.
    Done(J, Result<T>),
    /// None within the time that was given.
    Waiting,
    /// There is none left.
    End,
}

impl<J, T> Callers<J, T>
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
        let desk = Desk { waiting: VecDeque::new(), threads: Vec::new(), done: VecDeque::new(), is_closed: false };
        let shared = Shared {
            retry,
            keeps_deadlines,
            call: Box::new(call),
            desk: Mutex::new(desk),
            asked: Condvar::new(),
            done: Condvar::new(),
            unwanted: Condvar::new(),
        };
        Self { shared: Arc::new(shared), threads: Vec::new(), max_threads: max_threads.max(1), open: 0, lost: 0 }
    }

    /// Jobs that no thread has begun with.
    pub(crate) fn waiting(&self) -> usize {
        self.shared.desk().waiting.len()
    }

    /// Asks for a job.
    pub(crate) fn ask(&mut self, job: J) {
        self.shared.desk().waiting.push_back(job);
        self.open += 1;
        self.shared.asked.notify_one();
    }

    /// The next one that is done, or could not be; `None` when there is none left.
    pub(crate) fn next(&mut self) -> Result<Option<(J, Result<T>)>> {
        loop {
            match self.poll(Duration::MAX)? {
                Polled::Done(job, done) => return Ok(Some((job, done))),
                Polled::Waiting => {}
                Polled::End => return Ok(None),
            }
        }
    }

    /// The same, waiting for this long at most.
    pub(crate) fn poll(&mut self, patience: Duration) -> Result<Polled<J, T>> {
        if self.open == 0 {
            return Ok(Polled::End);
        }
        let begun = Instant::now();
        // Here and nowhere else: whatever has become of the threads, what is waited for below has one.
        self.start_threads()?;
        let mut desk = self.shared.desk();
        loop {
            if let Some((job, done)) = desk.done.pop_front() {
                self.open -= 1;
                return Ok(Polled::Done(job, done.unwrap_or_else(|panic| resume_unwind(panic))));
            }
            if let Some((job, error)) = self.shared.overdue(&mut desk) {
                (self.open, self.lost) = (self.open - 1, self.lost + 1);
                return Ok(Polled::Done(job, Err(error)));
            }
            let patience = patience.saturating_sub(begun.elapsed());
            if patience.is_zero() {
                return Ok(Polled::Waiting);
            }
            // What a thread begins with meanwhile is not overdue before that.
            let deadline = self.shared.retry.deadline;
            let left = self.shared.next_deadline(&desk).map_or(deadline, |at| at - Instant::now().min(at));
            let woken = self.shared.done.wait_timeout(desk, left.min(deadline).min(patience));
            desk = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Forgets what is not wanted any more: `next` does not give it, and threads that are busy with it end by themselves.
    pub(crate) fn keep(&mut self, is_wanted: impl Fn(&J) -> bool) {
        let mut desk = self.shared.desk();
        let before = desk.waiting.len() + desk.done.len();
        desk.waiting.retain(&is_wanted);
        desk.done.retain(|(job, _)| is_wanted(job));
        self.open -= before - desk.waiting.len() - desk.done.len();
        for doing in &mut desk.threads {
            if matches!(doing, Doing::Calling { job, .. } if !is_wanted(job)) {
                *doing = Doing::Lost;
                (self.open, self.lost) = (self.open - 1, self.lost + 1);
            }
        }
        self.shared.unwanted.notify_all();
    }

    /// As many threads as there is work for. Fewer will do where no more can be had, but not none.
    fn start_threads(&mut self) -> Result<()> {
        loop {
            let mut desk = self.shared.desk();
            let idle = desk.threads.iter().filter(|doing| matches!(doing, Doing::Nothing)).count();
            if idle >= desk.waiting.len() || self.threads.len() - self.lost >= self.max_threads {
                return Ok(());
            }
            let number = desk.threads.len();
            desk.threads.push(Doing::Nothing);
            drop(desk);
            let shared = Arc::clone(&self.shared);
            let thread = Builder::new().name(format!("forebay-scan-{number}")).spawn(move || shared.work(number));
            match thread {
                Ok(thread) => self.threads.push(thread),
                Err(error) => {
                    let mut desk = self.shared.desk();
                    desk.threads.pop();
                    if self.threads.len() > self.lost {
                        return Ok(());
                    }
                    let path = desk.waiting.front().map(|job| job.as_ref().to_owned()).unwrap_or_default();
                    return Err(Error::io("given a thread", error).at_path(&path).at_stage(Stage::Scan));
                }
            }
        }
    }
}

impl<J, T> Drop for Callers<J, T> {
    fn drop(&mut self) {
        let mut desk = self.shared.desk();
        desk.is_closed = true;
        desk.waiting.clear();
        let is_idle: Vec<_> = desk.threads.iter().map(|doing| matches!(doing, Doing::Nothing)).collect();
        drop(desk);
        self.shared.asked.notify_all();
        self.shared.unwanted.notify_all();
        for (thread, is_idle) in self.threads.drain(..).zip(is_idle) {
            if is_idle {
                // A panic came back as its job's result.
                let _ended = thread.join();
            }
        }
    }
}

impl<J, T> Shared<J, T> {
    fn desk(&self) -> MutexGuard<'_, Desk<J, T>> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J: AsRef<Path> + Clone, T> Shared<J, T> {
    /// A thread's life.
    fn work(&self, number: usize) {
        let mut desk = self.desk();
        loop {
            let Some(job) = desk.waiting.pop_front() else {
                if desk.is_closed {
                    return;
                }
                desk = self.asked.wait(desk).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let own = job.clone();
            let now = Instant::now();
            desk.threads[number] = Doing::Calling { job, started: now, attempts: 1, attempt_started: now };
            drop(desk);
            let done = catch_unwind(AssertUnwindSafe(|| self.attempt(number, &own, now)));
            desk = self.desk();
            let Doing::Calling { job, .. } = std::mem::replace(&mut desk.threads[number], Doing::Nothing) else {
                desk.threads[number] = Doing::Lost;
                return;
            };
            desk.done.push_back((job, done));
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
            let mut desk = self.desk();
            let Doing::Calling { attempts, .. } = &mut desk.threads[number] else { return Err(error) };
            if error.has_progressed() {
                // A page of many: the ones before it are kept, and it has its own attempts and its own time.
                (*attempts, started) = (1, Instant::now());
            }
            let attempts = *attempts;
            let Some(pause) = self.retry.pause(&error, attempts, started.elapsed(), u64::from(attempts)) else {
                return Err(error.after(attempts, started.elapsed()));
            };
            let is_wanted = |desk: &mut Desk<J, T>| !desk.is_closed && desk.threads[number].is_calling();
            desk = self.unwanted.wait_timeout_while(desk, pause, is_wanted).unwrap_or_else(PoisonError::into_inner).0;
            match &mut desk.threads[number] {
                Doing::Calling { attempts, attempt_started, .. } => {
                    (*attempts, *attempt_started) = (*attempts + 1, Instant::now());
                }
                Doing::Nothing | Doing::Lost => return Err(error),
            }
            if desk.is_closed {
                return Err(error);
            }
        }
    }

    /// When the next job is overdue. Where the store keeps deadlines itself, none ever is.
    fn next_deadline(&self, desk: &Desk<J, T>) -> Option<Instant> {
        if self.keeps_deadlines {
            return None;
        }
        let started = desk.threads.iter().filter_map(|doing| match doing {
            Doing::Calling { started, .. } => Some(*started),
            _ => None,
        });
        started.min().map(|started| started + self.retry.deadline)
    }

    /// Writes off a thread whose job is overdue.
    fn overdue(&self, desk: &mut Desk<J, T>) -> Option<(J, Error)> {
        if self.keeps_deadlines {
            return None;
        }
        let now = Instant::now();
        let is_overdue = |started: Instant| started + self.retry.deadline <= now;
        let number = desk
            .threads
            .iter()
            .position(|doing| matches!(doing, Doing::Calling { started, .. } if is_overdue(*started)))?;
        match std::mem::replace(&mut desk.threads[number], Doing::Lost) {
            Doing::Calling { job, started, attempts, attempt_started } => {
                let within = self.retry.deadline.saturating_sub(attempt_started - started);
                let error = late(job.as_ref(), within).at_path(job.as_ref()).at_stage(Stage::Scan);
                Some((job, error.after(attempts, now - started)))
            }
            Doing::Nothing | Doing::Lost => None,
        }
    }
}
