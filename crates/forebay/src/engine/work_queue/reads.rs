//! Reading in the work queue: which sample an I/O thread reads next, which memory it may take, how its read ends, and how
//! overdue ones are written off.

use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_core::{Error, Field, Hedge, Kind, Result, SampleId};

use super::batches::Pick;
use super::{ByKey, Charge, QueueState, WorkQueue};
use crate::engine::fetch::Read;
use crate::engine::item::{Fetched, Filled, Item};
use crate::engine::reads_in_flight::{EndedRead, ReadJob, WrittenOff};
use crate::loader::stream::Worker;
use crate::source::objects::Buffers;
use crate::sync::MutexGuard;

impl EndedRead {
    /// What a lost thread returns when its read ends: its bytes. Its sample is no longer counted as holding them.
    fn charge_of_lost_thread(&self) -> Charge {
        Charge { bytes: self.charged.unwrap_or(0), holding: 0 }
    }
}

impl WorkQueue {
    /// The next sample to read; waits for one. `None` when the stream stops.
    pub(crate) fn next_fetch(&self, thread: usize) -> Option<ReadJob> {
        let asked = self.context.clock.now();
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            let now = self.context.clock.now();
            let job = match self.pick_fetch(&mut state, now) {
                Pick::Read(mut item) => {
                    let elapsed = now.saturating_sub(*item.started.get_or_insert(now));
                    let within = self.context.config.retry.deadline.saturating_sub(elapsed);
                    Some(state.reads.begin(thread, item, now, within))
                }
                Pick::Open(opening) => {
                    drop(state);
                    state = self.open_batch(opening);
                    continue;
                }
                Pick::Nothing => self.pick_hedge(&mut state, thread, now),
            };
            if let Some(job) = job {
                let (reading, is_wanted) = (state.reads.reading(), state.ready.is_empty());
                state.concurrency.started(reading, is_wanted);
                let wants_another = is_wanted && reading < state.concurrency.current();
                drop(state);
                if wants_another {
                    // The CPU threads wait for the storage: use all reads that the limit allows.
                    self.fetch_work.notify_one();
                }
                self.context.meters.fetch.record_waiting(now.saturating_sub(asked));
                return Some(job);
            }
            let pause = state.backoff_ends.peek().map(|Reverse((until, _))| *until);
            let hedge = self.hedge_delay(&mut state, now).and_then(|hedge_delay| state.reads.next_hedge(hedge_delay));
            let held_up = state.head_blocked_at().filter(|at| *at > now);
            state = match pause.into_iter().chain(hedge).chain(held_up).min() {
                Some(until) => {
                    let wait = until.saturating_sub(now).max(Duration::from_millis(1));
                    self.fetch_work.wait_for(state, wait)
                }
                None => self.fetch_work.wait(state),
            };
        }
    }

    /// After how long a read is hedged; `None` while that is off or not known.
    fn hedge_delay(&self, state: &mut QueueState, now: Duration) -> Option<Duration> {
        // The second read goes to the origin, which does not hang.
        let hanging = self.context.source.store.hangs_for(self.context.config.retry.deadline);
        hanging.into_iter().chain(self.configured_hedge_delay(state, now)).min()
    }

    /// The same by the configuration.
    fn configured_hedge_delay(&self, state: &mut QueueState, now: Duration) -> Option<Duration> {
        /// A quantile of fewer reads is not reliable, and one of many is not computed every time.
        const MIN_READS: u64 = 100;
        const VALID_FOR: Duration = Duration::from_millis(100);
        let fraction = match self.context.config.hedge? {
            Hedge::After(wait) => return Some(wait),
            Hedge::Quantile(fraction) => fraction,
        };
        if let Some((hedge_delay, _)) = state.hedge_delay.filter(|(_, since)| now.saturating_sub(*since) < VALID_FOR) {
            return Some(hedge_delay);
        }
        let hedge_delay = self.context.meters.fetch.quantile(fraction, MIN_READS)?;
        state.hedge_delay = Some((hedge_delay, now));
        Some(hedge_delay)
    }

    /// A second read of the slowest sample, by an idle thread. There may be as many second reads as first ones: if all first
    /// reads hang, the second ones make progress.
    fn pick_hedge(&self, state: &mut QueueState, thread: usize, now: Duration) -> Option<ReadJob> {
        let hedge_delay = self.hedge_delay(state, now)?;
        if state.reads.hedging() >= state.concurrency.current() {
            return None;
        }
        let job = state.reads.hedge(thread, now, hedge_delay)?;
        self.context.meters.hedges.fetch_add(1, Relaxed);
        Some(job)
    }

    /// Refuses a sample that needs more memory than `max_sample_bytes`, before any is taken.
    pub(crate) fn check_sample_bytes(&self, size_bytes: u64, decode_bytes: u64) -> Result<()> {
        let (needed, most) = (size_bytes.saturating_add(decode_bytes), self.context.config.max_sample_bytes());
        if needed <= most {
            return Ok(());
        }
        let message = format!(
            "needs too much memory for one sample (expected at most {most} bytes, got {needed}: {size_bytes} to read and \
             {decode_bytes} to decode)"
        );
        let hint = "raise `max_sample_bytes`, or `memory_budget` where that is not given, if the file is meant to be in the \
                    dataset; leave it out if it is not";
        Err(Error::new(Kind::Exhausted, message).with_hint(hint))
    }

    /// Charges memory for compressed bytes, after a wait until the budget admits them, and gives a buffer for them.
    pub(crate) fn allot(&self, thread: usize, size_bytes: u64) -> Result<Vec<u8>> {
        let mut state = self.lock();
        // The fields of the sample that this thread has read before.
        let held = state.reads.held_bytes(thread);
        self.check_sample_bytes(held.unwrap_or(0).saturating_add(size_bytes), 0)?;
        let holding = usize::from(held.is_none());
        if let Some(before) = state.reads.uncharge(thread) {
            self.uncharge(&mut state, Charge { bytes: before, holding });
        }
        let is_full = |state: &QueueState| {
            let admits = match held {
                None => state.memory.admits_read(size_bytes),
                Some(_) => state.memory.admits_next_field(size_bytes),
            };
            !admits && !state.stopped
        };
        if is_full(&state) {
            state.reads.wait_for_memory(thread, self.context.clock.now());
            state.memory.waiting += usize::from(held.is_some());
            while is_full(&state) {
                state = self.memory_freed.wait(state);
            }
            state.memory.waiting -= usize::from(held.is_some());
            state.reads.end_wait_for_memory(thread, self.context.clock.now());
        }
        if state.stopped || !state.reads.charge(thread, size_bytes) {
            return Err(abandoned());
        }
        Ok(state.memory.charge_read(size_bytes, holding))
    }

    /// Moves a thread from the field that it has read to the next one. Gives how long reading that may take.
    pub(crate) fn next_field(&self, thread: usize, field: Field) -> Result<Duration> {
        let until = self.lock().reads.next_field(thread, field).ok_or_else(abandoned)?;
        Ok(until.saturating_sub(self.context.clock.now()))
    }

    /// Ends a read that succeeded. Gives the sample if its thread is to make it in its place: no other thread has it then. The
    /// flag is false if the thread was written off meanwhile: it has to end.
    pub(crate) fn fetched(&self, thread: usize, read: Read) -> (Option<Fetched>, bool) {
        let Read { objects, decoded, decode_bytes, made, is_placed } = read;
        let now = self.context.clock.now();
        let mut state = self.lock();
        let ended = state.reads.end(thread, true, now);
        let (mut done, mut own) = (None, None);
        match ended.item {
            Some(item) => {
                self.context.meters.fetch.record(ended.latency);
                self.context.meters.bytes_read.fetch_add(objects.read_bytes(), Relaxed);
                self.context.meters.hedges_won.fetch_add(ended.is_hedge.into(), Relaxed);
                state.concurrency.succeeded(ended.latency);
                self.context.meters.concurrent_reads.store(state.concurrency.current() as u64, Relaxed);
                if state.concurrency.current() > state.reads.working() {
                    self.watchdog_wake.notify_one();
                }
                let charged = ended.charged.unwrap_or(0);
                if let Some(value) = made {
                    self.release(&mut state, Some(charged), objects.into_buffers());
                    let filled = Filled::Done(item.sample, Some(value));
                    done = Self::fill_slot(&mut state, item, filled, now);
                } else {
                    let at = item.key.batch.checked_sub(state.first_batch);
                    let batch = at.and_then(|at| state.batches.get(at as usize));
                    // A slot that a late thread may still write to is not given to another one.
                    let batch = batch.filter(|batch| !batch.late.contains(&item.key.slot));
                    let places = batch.and_then(|batch| batch.places.clone());
                    let fetched = Fetched { item, objects, decoded, charged, decode_bytes, places };
                    if is_placed && fetched.places.is_some() {
                        own = Some(fetched);
                    } else {
                        state.ready.push(ByKey(fetched.item.key, fetched));
                    }
                }
            }
            None if ended.was_lost => self.uncharge(&mut state, ended.charge_of_lost_thread()),
            None => self.release(&mut state, ended.charged, objects.into_buffers()),
        }
        let continues = self.after_read(state, ended.was_lost);
        self.after_filling(done);
        (own, continues)
    }

    /// Ends the making of a sample in its place by the thread that has read it. One that failed goes to a CPU thread.
    pub(crate) fn placed(&self, mut fetched: Fetched, is_made: bool) {
        if is_made {
            // Before the slot is filled, so that the batch has its memory to itself; and not under the lock, which a batch that
            // is gone takes to return its memory.
            fetched.places = None;
        }
        let mut done = None;
        let mut state = self.lock();
        if is_made {
            let Fetched { item, objects, charged, .. } = fetched;
            self.release(&mut state, Some(charged), objects.into_buffers());
            let (sample, now) = (item.sample, self.context.clock.now());
            done = Self::fill_slot(&mut state, item, Filled::Done(sample, None), now);
        } else {
            state.ready.push(ByKey(fetched.item.key, fetched));
        }
        self.after_read(state, false);
        self.after_filling(done);
    }

    /// Ends a read that failed, and returns its memory. Gives the item with its error, unless another thread still reads it, and
    /// whether this thread continues.
    pub(crate) fn fetch_failed(&self, thread: usize, error: Error) -> (Option<(Item, Error)>, bool) {
        let now = self.context.clock.now();
        let mut state = self.lock();
        let mut ended = state.reads.end(thread, false, now);
        if ended.was_lost {
            self.uncharge(&mut state, ended.charge_of_lost_thread());
        } else {
            let reading = state.reads.reading();
            state.concurrency.failed(&error, reading);
            self.context.meters.concurrent_reads.store(state.concurrency.current() as u64, Relaxed);
            self.release(&mut state, ended.charged, Buffers::new());
        }
        let trouble = match ended.item.take() {
            Some(item) => Some((item, error)),
            None => {
                state.reads.record_error(&ended, error);
                None
            }
        };
        (trouble, self.after_read(state, ended.was_lost))
    }

    fn after_read(&self, state: MutexGuard<'_, QueueState>, was_lost: bool) -> bool {
        let (stopped, is_ready) = (state.stopped, !state.ready.is_empty());
        drop(state);
        if is_ready {
            self.decode_work.notify_one();
        }
        self.memory_freed.notify_all();
        if was_lost {
            // This thread ends: another one may take its place.
            self.context.meters.lost.fetch_sub(1, Relaxed);
            self.fetch_work.notify_one();
        }
        if stopped {
            self.calls_done.notify_all();
        }
        !was_lost
    }

    /// Whether fewer concurrent reads could still free descriptors.
    pub(crate) fn can_shrink(&self) -> bool {
        self.lock().reads.reading() > 1
    }

    /// Waits until a read or a decode is overdue, or a thread is missing. `None` when the stream stops.
    pub(crate) fn watch(&self) -> Option<Overdue> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            let now = self.context.clock.now();
            let late = if self.keeps_deadlines { Vec::new() } else { state.reads.write_off(now) };
            // A lost thread keeps its memory, so the bytes stay charged; but no sample waits for them.
            let holding = late.iter().filter(|late| late.charged.is_some()).count();
            self.uncharge(&mut state, Charge { bytes: 0, holding });
            let late_decodes = self.write_off_decodes(&mut state, now);
            let missing_ios = self.missing_threads(&mut state, now);
            let missing_cpus = state.decodes.missing();
            if !late.is_empty() || !late_decodes.is_empty() || missing_ios + missing_cpus > 0 {
                let ios = (0..missing_ios).map(|_| Worker::Io(state.reads.add_thread())).collect::<Vec<_>>();
                let cpus = (0..missing_cpus).map(|_| Worker::Cpu(state.decodes.add_thread()));
                let missing = ios.into_iter().chain(cpus).collect();
                let most = self.context.config.max_lost_threads;
                let stuck = if state.reads.lost() > most { state.reads.stuck() } else { Vec::new() };
                let stuck = stuck.iter().map(|(_, lost)| (lost.sample, now.saturating_sub(lost.since))).collect();
                let stuck_decodes = if state.decodes.lost() > most {
                    state.decodes.stuck().map(|(_, lost)| (lost.sample, now.saturating_sub(lost.since))).collect()
                } else {
                    Vec::new()
                };
                drop(state);
                self.memory_freed.notify_all();
                // A read that was written off no longer counts against the limit.
                self.fetch_work.notify_all();
                self.context.meters.written_off.fetch_add(late.len() as u64, Relaxed);
                self.context.meters.lost.fetch_add(late.len() as u64, Relaxed);
                return Some(Overdue { late, late_decodes, missing, stuck, stuck_decodes });
            }
            // A read that starts meanwhile is due one deadline from now, or sooner if it is not the first attempt.
            let tick =
                (self.context.config.retry.deadline / 8).clamp(Duration::from_millis(10), Duration::from_secs(1));
            let deadlines = state.reads.next_deadline().into_iter().chain(state.decodes.next_deadline());
            let next = deadlines.min().map_or(tick, |until| until.saturating_sub(now).min(tick));
            let wait = next.max(Duration::from_millis(1));
            state = self.watchdog_wake.wait_for(state, wait);
        }
    }

    /// I/O threads to start: one for each read that the limit allows, and if all are busy, some for hedges that are due.
    fn missing_threads(&self, state: &mut QueueState, now: Duration) -> usize {
        let (most, working) = (state.concurrency.current(), state.reads.working());
        let is_busy = state.reads.reading() >= working;
        let hedge_delay = if is_busy { self.hedge_delay(state, now) } else { None };
        let due = hedge_delay.map_or(0, |hedge_delay| state.reads.due(now, hedge_delay));
        (most + due.min(most)).saturating_sub(working)
    }

    /// An I/O thread could not be started. Without any, the run ends.
    pub(crate) fn no_reader(&self, thread: usize, error: Error) {
        let mut state = self.lock();
        state.reads.remove_thread(thread);
        let working = state.reads.working();
        state.concurrency.set_ceiling(working);
        if working == 0 {
            state.broken.get_or_insert(error);
            self.batch_done.notify_all();
        }
    }

    /// The threads that are lost, or still in a read or a decode `grace` after the stream was stopped.
    pub(crate) fn stuck(&self, grace: Duration) -> Vec<Worker> {
        let state = self.lock();
        let left = state.stopped_at.map_or(grace, |at| grace.saturating_sub(at.elapsed()));
        let is_busy = |state: &mut QueueState| state.reads.reading() + state.decodes.busy() > 0;
        let state = self.calls_done.wait_while(state, left, is_busy);
        let (readings, lost) = (state.reads.active_reads(), state.reads.stuck());
        let ios = readings.iter().chain(&lost).map(|(thread, _)| Worker::Io(*thread));
        let decodes =
            state.decodes.active().map(|(thread, _)| thread).chain(state.decodes.stuck().map(|(thread, _)| thread));
        ios.chain(decodes.map(Worker::Cpu)).collect()
    }
}

/// The error of a thread whose result is no longer needed.
fn abandoned() -> Error {
    Error::new(Kind::Stopped, "the loader was closed during a read, or went on without it")
}

/// What [`WorkQueue::watch`] gives.
#[derive(Debug)]
pub(crate) struct Overdue {
    /// Reads that were written off.
    pub(crate) late: Vec<WrittenOff>,
    /// Samples whose decoding was written off.
    pub(crate) late_decodes: Vec<Item>,
    /// Threads to start.
    pub(crate) missing: Vec<Worker>,
    /// The reads of lost I/O threads and their age, when there are more of them than `max_lost_threads`.
    pub(crate) stuck: Vec<(SampleId, Duration)>,
    /// The same of lost CPU threads.
    pub(crate) stuck_decodes: Vec<(SampleId, Duration)>,
}
