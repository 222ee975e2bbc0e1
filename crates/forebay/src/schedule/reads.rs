//! The desk's side of reading: which sample an I/O thread reads next, what it may take, how it ends, and what becomes of
//! threads that do not come back.

use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_core::{Error, Hedge, Kind, Result, SampleId};
use forebay_store::Object;

use super::{ByKey, Charge, Desk, Shared};
use crate::flight::{Job, Landed, WrittenOff};
use crate::item::{Fetched, Item};
use crate::stream::Worker;
use crate::sync::MutexGuard;

impl Landed {
    /// What a lost thread gives back when it returns: nobody waits for it any more, but it held its bytes until now.
    fn lost_charge(&self) -> Charge {
        Charge { bytes: self.charged.unwrap_or(0), holding: 0 }
    }
}

impl Shared {
    /// The next sample to read; waits for one. `None` when the stream stops.
    pub(crate) fn next_fetch(&self, seat: usize) -> Option<Job> {
        let asked = self.clock.now();
        let mut desk = self.desk();
        loop {
            if desk.stopped {
                return None;
            }
            let now = self.clock.now();
            let job = match self.pick_fetch(&mut desk, now) {
                Some(mut item) => {
                    let elapsed = now.saturating_sub(*item.started.get_or_insert(now));
                    let within = self.config.retry.deadline.saturating_sub(elapsed);
                    Some(desk.flights.depart(seat, item, now, within))
                }
                None => self.pick_hedge(&mut desk, seat, now),
            };
            if let Some(job) = job {
                let (reading, is_wanted) = (desk.flights.reading(), desk.ready.is_empty());
                desk.limit.departed(reading, is_wanted);
                let wants_another = is_wanted && reading < desk.limit.current();
                drop(desk);
                if wants_another {
                    // The storage is what the others wait for: as many reads at a time as it is allowed.
                    self.fetch_work.ring_one();
                }
                self.meters.fetch.record_waiting(now.saturating_sub(asked));
                return Some(job);
            }
            let pause = desk.pausing.peek().map(|Reverse((until, _))| *until);
            let hedge = self.patience(&mut desk, now).and_then(|patience| desk.flights.next_hedge(patience));
            let held_up = desk.held_up_at().filter(|at| *at > now);
            desk = match pause.into_iter().chain(hedge).chain(held_up).min() {
                Some(until) => {
                    let wait = until.saturating_sub(now).max(Duration::from_millis(1));
                    self.fetch_work.wait_for(desk, wait)
                }
                None => self.fetch_work.wait(desk),
            };
        }
    }

    /// How long a read takes before it gets a second one beside it; `None` when there is nothing to go by.
    fn patience(&self, desk: &mut Desk, now: Duration) -> Option<Duration> {
        // The second read is one of the origin, which does not hang.
        let hanging = self.source.store.hangs_for(self.config.retry.deadline);
        hanging.into_iter().chain(self.hedge_patience(desk, now)).min()
    }

    /// The same by the user's setting.
    fn hedge_patience(&self, desk: &mut Desk, now: Duration) -> Option<Duration> {
        /// A quantile of fewer reads says nothing, and one of many is not worked out every time.
        const MIN_READS: u64 = 100;
        const WORTH: Duration = Duration::from_millis(100);
        let fraction = match self.config.hedge? {
            Hedge::After(wait) => return Some(wait),
            Hedge::Quantile(fraction) => fraction,
        };
        if let Some((patience, _)) = desk.patience.filter(|(_, since)| now.saturating_sub(*since) < WORTH) {
            return Some(patience);
        }
        let patience = self.meters.fetch.quantile(fraction, MIN_READS)?;
        desk.patience = Some((patience, now));
        Some(patience)
    }

    /// A second read beside a slow one, by a thread that has nothing else to do. There may be as many of them as of first
    /// ones: where all of those hang, it is the second ones that go on.
    fn pick_hedge(&self, desk: &mut Desk, seat: usize, now: Duration) -> Option<Job> {
        let patience = self.patience(desk, now)?;
        if desk.flights.hedging() >= desk.limit.current() {
            return None;
        }
        let job = desk.flights.hedge(seat, now, patience)?;
        self.meters.hedges.fetch_add(1, Relaxed);
        Some(job)
    }

    /// Refuses a sample that takes more memory than one may, before it is taken.
    pub(crate) fn check_sample_bytes(&self, size_bytes: u64, decode_bytes: u64) -> Result<()> {
        let (needed, most) = (size_bytes.saturating_add(decode_bytes), self.config.max_sample_bytes());
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

    /// Charges memory for compressed bytes, waiting until there is some, and gives a buffer for them.
    pub(crate) fn allot(&self, seat: usize, size_bytes: u64) -> Result<Vec<u8>> {
        self.check_sample_bytes(size_bytes, 0)?;
        let mut desk = self.desk();
        if let Some(before) = desk.flights.uncharge(seat) {
            self.uncharge(&mut desk, Charge { bytes: before, holding: 1 });
        }
        let is_full =
            |desk: &Desk| desk.used + size_bytes > self.config.memory_budget && desk.holding > 0 && !desk.stopped;
        if is_full(&desk) {
            desk.flights.wait_for_memory(seat, self.clock.now());
            while is_full(&desk) {
                desk = self.memory.wait(desk);
            }
            desk.flights.go_on(seat, self.clock.now());
        }
        if desk.stopped || !desk.flights.charge(seat, size_bytes) {
            return Err(Error::new(Kind::Stopped, "the loader was closed during a read, or went on without it"));
        }
        desk.used += size_bytes;
        desk.holding += 1;
        Ok(desk.spare.pop().unwrap_or_default())
    }

    /// A sample's bytes are here. False when the thread was written off meanwhile, and has to retire.
    pub(crate) fn fetched(&self, seat: usize, object: Option<Object>, decode_bytes: u64) -> bool {
        let now = self.clock.now();
        let mut desk = self.desk();
        let landed = desk.flights.land(seat, true, now);
        match landed.item {
            Some(item) => {
                self.meters.fetch.record(landed.latency);
                let size_bytes = object.as_ref().map_or(0, |object| object.bytes.len() as u64);
                self.meters.bytes_read.fetch_add(size_bytes, Relaxed);
                self.meters.hedges_won.fetch_add(landed.is_hedge.into(), Relaxed);
                desk.limit.landed(landed.latency);
                self.meters.reads_at_a_time.store(desk.limit.current() as u64, Relaxed);
                if desk.limit.current() > desk.flights.working() {
                    self.watching.ring_one();
                }
                let at = item.key.batch.checked_sub(desk.first_batch);
                let batch = at.and_then(|at| desk.batches.get(at as usize));
                // A slot that a late thread may still write to is nobody else's.
                let buffer = batch.filter(|batch| !batch.late.contains(&item.key.slot)).and_then(|b| b.buffer.clone());
                let charged = landed.charged.unwrap_or(0);
                desk.ready.push(ByKey(item.key, Fetched { item, object, charged, decode_bytes, buffer }));
            }
            None if landed.was_lost => self.uncharge(&mut desk, landed.lost_charge()),
            None => self.release(
                &mut desk,
                landed.charged,
                object.map(|object| object.bytes.into_buffer()).unwrap_or_default(),
            ),
        }
        self.after_landing(desk, landed.was_lost)
    }

    /// A read failed; what it was allotted is given back. The item with its error, unless another thread answers for it,
    /// and whether this one goes on.
    pub(crate) fn fetch_failed(&self, seat: usize, error: Error) -> (Option<(Item, Error)>, bool) {
        let now = self.clock.now();
        let mut desk = self.desk();
        let mut landed = desk.flights.land(seat, false, now);
        if landed.was_lost {
            self.uncharge(&mut desk, landed.lost_charge());
        } else {
            let reading = desk.flights.reading();
            desk.limit.failed(&error, reading);
            self.meters.reads_at_a_time.store(desk.limit.current() as u64, Relaxed);
            self.release(&mut desk, landed.charged, Vec::new());
        }
        let trouble = match landed.item.take() {
            Some(item) => Some((item, error)),
            None => {
                desk.flights.remember(&landed, error);
                None
            }
        };
        (trouble, self.after_landing(desk, landed.was_lost))
    }

    fn after_landing(&self, desk: MutexGuard<'_, Desk>, was_lost: bool) -> bool {
        let stopped = desk.stopped;
        drop(desk);
        self.decode_work.ring_one();
        self.memory.ring_all();
        if was_lost {
            // It reads no more; the others look for the next sample by themselves.
            self.meters.lost.fetch_sub(1, Relaxed);
            self.fetch_work.ring_one();
        }
        if stopped {
            self.calls_done.ring_all();
        }
        !was_lost
    }

    /// Whether fewer reads at a time could still help against running out.
    pub(crate) fn can_shrink(&self) -> bool {
        self.desk().flights.reading() > 1
    }

    /// Waits until a read or a decode is late, or a thread is missing. `None` when the stream stops.
    pub(crate) fn watch(&self) -> Option<Seen> {
        let mut desk = self.desk();
        loop {
            if desk.stopped {
                return None;
            }
            let now = self.clock.now();
            let late = if self.keeps_deadlines { Vec::new() } else { desk.flights.write_off(now) };
            // What a lost thread holds stays charged, because it does hold it; but nobody waits for it.
            let holding = late.iter().filter(|late| late.charged.is_some()).count();
            self.uncharge(&mut desk, Charge { bytes: 0, holding });
            let late_decodes = self.write_off_decodes(&mut desk, now);
            let missing = self.missing_threads(&mut desk, now);
            let missing_cpus = desk.decoders.missing();
            if !late.is_empty() || !late_decodes.is_empty() || missing + missing_cpus > 0 {
                let ios = (0..missing).map(|_| Worker::Io(desk.flights.sit())).collect::<Vec<_>>();
                let cpus = (0..missing_cpus).map(|_| Worker::Cpu(desk.decoders.sit()));
                let workers = ios.into_iter().chain(cpus).collect();
                let most = self.config.max_lost_threads;
                let stuck = if desk.flights.lost() > most { desk.flights.stuck() } else { Vec::new() };
                let stuck = stuck.iter().map(|(_, lost)| (lost.sample, now.saturating_sub(lost.since))).collect();
                let stuck_decodes = if desk.decoders.lost() > most {
                    desk.decoders.stuck().map(|(_, lost)| (lost.sample, now.saturating_sub(lost.since))).collect()
                } else {
                    Vec::new()
                };
                drop(desk);
                self.memory.ring_all();
                // Its place is free, and those that wait for one do not look for themselves.
                self.fetch_work.ring_all();
                self.meters.written_off.fetch_add(late.len() as u64, Relaxed);
                self.meters.lost.fetch_add(late.len() as u64, Relaxed);
                return Some(Seen { late, late_decodes, workers, stuck, stuck_decodes });
            }
            // A read that begins meanwhile is late a deadline from now, or sooner when it is not the first attempt.
            let tick = (self.config.retry.deadline / 8).clamp(Duration::from_millis(10), Duration::from_secs(1));
            let deadlines = desk.flights.next_deadline().into_iter().chain(desk.decoders.next_deadline());
            let next = deadlines.min().map_or(tick, |until| until.saturating_sub(now).min(tick));
            let wait = next.max(Duration::from_millis(1));
            desk = self.watching.wait_for(desk, wait);
        }
    }

    /// As many as reads are allowed at a time, and where all of those are busy, some for second reads that are due.
    fn missing_threads(&self, desk: &mut Desk, now: Duration) -> usize {
        let (most, working) = (desk.limit.current(), desk.flights.working());
        let is_busy = desk.flights.reading() >= working;
        let patience = if is_busy { self.patience(desk, now) } else { None };
        let due = patience.map_or(0, |patience| desk.flights.due(now, patience));
        (most + due.min(most)).saturating_sub(working)
    }

    /// No thread could be had for an I/O thread's seat: the others go on, if there are any.
    pub(crate) fn no_reader(&self, seat: usize, error: Error) {
        let mut desk = self.desk();
        desk.flights.stand_up(seat);
        let working = desk.flights.working();
        desk.limit.cap(working);
        if working == 0 {
            desk.broken.get_or_insert(error);
            self.batch_done.ring_all();
        }
    }

    /// The threads that are lost, or still in a read or a decode `grace` after the stream has stopped.
    pub(crate) fn stuck(&self, grace: Duration) -> Vec<Worker> {
        let desk = self.desk();
        let left = desk.stopped_at.map_or(grace, |at| grace.saturating_sub(at.elapsed()));
        let is_busy = |desk: &mut Desk| desk.flights.reading() + desk.decoders.busy() > 0;
        let desk = self.calls_done.wait_while(desk, left, is_busy);
        let (readings, lost) = (desk.flights.readings(), desk.flights.stuck());
        let ios = readings.iter().chain(&lost).map(|(seat, _)| Worker::Io(*seat));
        let decodes = desk.decoders.in_hand().map(|(cpu, _)| cpu).chain(desk.decoders.stuck().map(|(cpu, _)| cpu));
        ios.chain(decodes.map(Worker::Cpu)).collect()
    }
}

/// What [`Shared::watch`] found.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Reads that were written off.
    pub(crate) late: Vec<WrittenOff>,
    /// Samples whose decoding was written off.
    pub(crate) late_decodes: Vec<Item>,
    /// Seats that want a thread.
    pub(crate) workers: Vec<Worker>,
    /// What lost I/O threads are stuck in, and for how long, when there are too many of them.
    pub(crate) stuck: Vec<(SampleId, Duration)>,
    /// The same of lost CPU threads.
    pub(crate) stuck_decodes: Vec<(SampleId, Duration)>,
}
