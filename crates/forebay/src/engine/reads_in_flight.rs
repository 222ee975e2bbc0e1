//! The reads in flight: which I/O thread reads which sample, since when and until when, and which threads are lost. Accounting
//! only, as part of the work queue's state.
//!
//! The item of a sample stays here while a thread reads it, so that it can be taken from a thread that does not return. That
//! thread is lost: it keeps its number, its buffer and its descriptors until its read returns, and then ends.

use std::collections::HashMap;
use std::time::Duration;

use forebay_core::{Error, Field, SampleId};
use forebay_store::Cancel;

use crate::engine::item::Item;

/// What a thread is to read.
#[derive(Clone, Debug)]
pub(crate) struct ReadJob {
    pub(crate) sample: SampleId,
    /// How long it may take.
    pub(crate) within: Duration,
    /// It was read before, and that was not good: each field is read by itself, so that what is wrong is known of one.
    pub(crate) is_again: bool,
    /// The second read of a sample that another thread has been reading for too long.
    pub(crate) is_hedge: bool,
    /// Raised when the result of this read is no longer needed: another thread has read the sample, or it was written off.
    /// `None` where reads are never hedged.
    pub(crate) cancel: Option<Cancel>,
}

/// A sample being read: by one thread, or by two when it was hedged.
#[derive(Debug)]
struct SampleRead {
    item: Item,
    threads: u32,
    is_hedged: bool,
    /// Ends the other read of it.
    cancel: Option<Cancel>,
}

/// One thread's read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    read_id: u64,
    pub(crate) sample: SampleId,
    /// The field that it reads now.
    pub(crate) field: Field,
    pub(crate) attempt: u32,
    pub(crate) since: Duration,
    until: Duration,
    is_hedge: bool,
    /// Bytes charged for the fields that it has read; `None` before the first one is.
    held: Option<u64>,
    /// Bytes charged for the field that it reads.
    charged: Option<u64>,
    /// Time spent waiting for memory does not count against the deadline: since when, and how long in total.
    waiting: Option<Duration>,
    waited: Duration,
}

impl Reading {
    /// Bytes charged for all of its fields.
    fn total_charge(&self) -> Option<u64> {
        match (self.held, self.charged) {
            (None, None) => None,
            (held, charged) => Some(held.unwrap_or(0) + charged.unwrap_or(0)),
        }
    }
}

#[derive(Debug)]
enum ThreadState {
    /// No thread has this number.
    Absent,
    Idle,
    Reading(Reading),
    /// Written off, and not returned yet.
    Lost(Reading),
}

/// How a read ended for its thread.
#[derive(Debug)]
pub(crate) struct EndedRead {
    read_id: u64,
    /// The item; `None` if another thread still reads it, or was first, or if it was written off.
    pub(crate) item: Option<Item>,
    pub(crate) charged: Option<u64>,
    /// How long the storage took to answer.
    pub(crate) latency: Duration,
    pub(crate) is_hedge: bool,
    /// The thread was written off: it has to end.
    pub(crate) was_lost: bool,
}

/// A read that was written off.
#[derive(Debug)]
pub(crate) struct WrittenOff {
    /// The item, unless another thread still reads it.
    pub(crate) item: Option<Item>,
    /// The field that was being read.
    pub(crate) field: Field,
    pub(crate) charged: Option<u64>,
}

/// The I/O threads and their reads.
#[derive(Debug)]
pub(crate) struct ReadsInFlight {
    /// Whether reads may be hedged: only then is a means to cancel them allocated.
    hedges: bool,
    /// By number.
    threads: Vec<ThreadState>,
    /// By read id; a hedged sample has one id and two threads.
    samples: HashMap<u64, SampleRead>,
    last_read_id: u64,
    reading: usize,
    lost: usize,
    /// Threads that are not lost.
    working: usize,
}

impl ReadsInFlight {
    pub(crate) fn new(threads: usize, hedges: bool) -> Self {
        Self {
            hedges,
            threads: (0..threads).map(|_| ThreadState::Idle).collect(),
            samples: HashMap::new(),
            last_read_id: 0,
            reading: 0,
            lost: 0,
            working: threads,
        }
    }

    /// Reads in progress, those of lost threads left out.
    pub(crate) fn reading(&self) -> usize {
        self.reading
    }

    /// Threads that were written off and have not returned.
    pub(crate) fn lost(&self) -> usize {
        self.lost
    }

    /// Threads that are not lost.
    pub(crate) fn working(&self) -> usize {
        self.working
    }

    /// The number for a new thread.
    pub(crate) fn add_thread(&mut self) -> usize {
        self.working += 1;
        let free = self.threads.iter().position(|thread| matches!(thread, ThreadState::Absent));
        let thread = free.unwrap_or_else(|| {
            self.threads.push(ThreadState::Absent);
            self.threads.len() - 1
        });
        self.threads[thread] = ThreadState::Idle;
        thread
    }

    /// Removes a thread that could not be started.
    pub(crate) fn remove_thread(&mut self, thread: usize) {
        self.threads[thread] = ThreadState::Absent;
        self.working -= 1;
    }

    /// A thread starts to read an item.
    pub(crate) fn begin(&mut self, thread: usize, item: Item, now: Duration, within: Duration) -> ReadJob {
        self.last_read_id += 1;
        let (read_id, sample, attempt) = (self.last_read_id, item.sample, item.attempts + 1);
        let cancel = self.hedges.then(Cancel::default);
        self.samples.insert(read_id, SampleRead { item, threads: 1, is_hedged: false, cancel: cancel.clone() });
        let until = now.saturating_add(within);
        self.start(
            thread,
            Reading {
                read_id,
                sample,
                field: Field(0),
                attempt,
                since: now,
                until,
                is_hedge: false,
                held: None,
                charged: None,
                waiting: None,
                waited: Duration::ZERO,
            },
            cancel,
        )
    }

    fn start(&mut self, thread: usize, reading: Reading, cancel: Option<Cancel>) -> ReadJob {
        self.reading += 1;
        let within = reading.until.saturating_sub(reading.since);
        let Reading { sample, is_hedge, attempt, .. } = reading;
        let job = ReadJob { sample, within, is_again: attempt > 1, is_hedge, cancel };
        self.threads[thread] = ThreadState::Reading(reading);
        job
    }

    fn active(&self) -> impl Iterator<Item = (usize, &Reading)> {
        self.threads.iter().enumerate().filter_map(|(thread, state)| match state {
            ThreadState::Reading(reading) => Some((thread, reading)),
            _ => None,
        })
    }

    /// The reads that may be hedged.
    fn unhedged(&self) -> impl Iterator<Item = &Reading> {
        self.active().map(|(_, reading)| reading).filter(|reading| {
            reading.waiting.is_none() && self.samples.get(&reading.read_id).is_some_and(|read| !read.is_hedged)
        })
    }

    /// The oldest of them.
    fn oldest_unhedged(&self) -> Option<&Reading> {
        self.unhedged().min_by_key(|reading| reading.since)
    }

    /// When the next read is to be hedged.
    pub(crate) fn next_hedge(&self, hedge_delay: Duration) -> Option<Duration> {
        self.oldest_unhedged().map(|reading| reading.since + hedge_delay)
    }

    /// Reads that are hedges of others.
    pub(crate) fn hedging(&self) -> usize {
        self.threads.iter().filter(|thread| matches!(thread, ThreadState::Reading(reading) if reading.is_hedge)).count()
    }

    /// Reads that have taken longer than `hedge_delay` and are not hedged.
    pub(crate) fn due(&self, now: Duration, hedge_delay: Duration) -> usize {
        self.unhedged().filter(|reading| reading.since + hedge_delay <= now).count()
    }

    /// A thread starts a second read of the oldest sample, if that has taken longer than `hedge_delay`.
    pub(crate) fn hedge(&mut self, thread: usize, now: Duration, hedge_delay: Duration) -> Option<ReadJob> {
        let oldest_unhedged = self.oldest_unhedged().filter(|reading| reading.since + hedge_delay <= now)?;
        let (field, held, charged, waited) = (Field(0), None, None, Duration::ZERO);
        let second = Reading { since: now, is_hedge: true, field, held, charged, waited, ..*oldest_unhedged };
        let read = self.samples.get_mut(&second.read_id)?;
        (read.threads, read.is_hedged) = (2, true);
        let cancel = read.cancel.clone();
        Some(self.start(thread, second, cancel))
    }

    fn active_read_of(&mut self, thread: usize) -> Option<&mut Reading> {
        match &mut self.threads[thread] {
            ThreadState::Reading(reading) => Some(reading),
            _ => None,
        }
    }

    /// Records the memory charged for a thread's read. False if the read was written off meanwhile, or another thread was first.
    pub(crate) fn charge(&mut self, thread: usize, bytes: u64) -> bool {
        match &mut self.threads[thread] {
            ThreadState::Reading(reading) if self.samples.contains_key(&reading.read_id) => {
                reading.charged = Some(bytes);
                true
            }
            _ => false,
        }
    }

    /// Takes the memory charged for a thread's read so far: the read starts over with another size.
    pub(crate) fn uncharge(&mut self, thread: usize) -> Option<u64> {
        self.active_read_of(thread)?.charged.take()
    }

    /// Bytes charged for the fields that a thread has read of its sample; `None` before the first one is.
    pub(crate) fn held_bytes(&mut self, thread: usize) -> Option<u64> {
        self.active_read_of(thread)?.held
    }

    /// A thread has read a field and starts to read another one. Gives when it is due; `None` if the read was written off
    /// meanwhile.
    pub(crate) fn next_field(&mut self, thread: usize, field: Field) -> Option<Duration> {
        let reading = self.active_read_of(thread)?;
        (reading.field, reading.held, reading.charged) = (field, reading.total_charge(), None);
        Some(reading.until)
    }

    /// A thread waits for memory: its deadline is suspended.
    pub(crate) fn wait_for_memory(&mut self, thread: usize, now: Duration) {
        if let Some(reading) = self.active_read_of(thread) {
            reading.waiting = Some(now);
        }
    }

    /// A thread has its memory: its deadline is resumed.
    pub(crate) fn end_wait_for_memory(&mut self, thread: usize, now: Duration) {
        if let Some(reading) = self.active_read_of(thread)
            && let Some(since) = reading.waiting.take()
        {
            let waited = now.saturating_sub(since);
            reading.until = reading.until.saturating_add(waited);
            reading.waited += waited;
        }
    }

    /// A thread's read has ended.
    pub(crate) fn end(&mut self, thread: usize, has_succeeded: bool, now: Duration) -> EndedRead {
        let ended = |reading: &Reading, item, was_lost| EndedRead {
            read_id: reading.read_id,
            item,
            charged: reading.total_charge(),
            latency: now.saturating_sub(reading.since).saturating_sub(reading.waited),
            is_hedge: reading.is_hedge,
            was_lost,
        };
        match std::mem::replace(&mut self.threads[thread], ThreadState::Idle) {
            ThreadState::Reading(reading) => {
                self.reading -= 1;
                let item = if has_succeeded { self.finish(&reading) } else { self.drop_reader(&reading) };
                ended(&reading, item, false)
            }
            ThreadState::Lost(reading) => {
                self.threads[thread] = ThreadState::Absent;
                self.lost -= 1;
                ended(&reading, None, true)
            }
            ThreadState::Idle | ThreadState::Absent => unreachable!("a thread without a read cannot end one"),
        }
    }

    /// Records why one of the two reads of a hedged sample failed.
    pub(crate) fn record_error(&mut self, ended: &EndedRead, error: Error) {
        if let Some(read) = self.samples.get_mut(&ended.read_id) {
            read.item.trouble.get_or_insert(error);
        }
    }

    /// Removes a sample whose read is decided: one thread has read it, or the last one has failed. Another read of it is
    /// cancelled.
    fn finish(&mut self, reading: &Reading) -> Option<Item> {
        let read = self.samples.remove(&reading.read_id)?;
        read.cancel.iter().for_each(Cancel::raise);
        Some(Item { attempts: reading.attempt, ..read.item })
    }

    /// One thread no longer reads a sample. Gives its item, if that was the last.
    fn drop_reader(&mut self, reading: &Reading) -> Option<Item> {
        let read = self.samples.get_mut(&reading.read_id)?;
        read.threads -= 1;
        if read.threads == 0 { self.finish(reading) } else { None }
    }

    /// When the next read is to be written off.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.active().filter(|(_, reading)| reading.waiting.is_none()).map(|(_, reading)| reading.until).min()
    }

    /// Writes off every read whose deadline has passed: its thread is lost, its item is released.
    pub(crate) fn write_off(&mut self, now: Duration) -> Vec<WrittenOff> {
        let is_late = |reading: &Reading| reading.waiting.is_none() && reading.until <= now;
        let late: Vec<(usize, Reading)> =
            self.active().filter(|(_, reading)| is_late(reading)).map(|(thread, reading)| (thread, *reading)).collect();
        late.into_iter()
            .map(|(thread, reading)| {
                self.threads[thread] = ThreadState::Lost(reading);
                (self.reading, self.working, self.lost) = (self.reading - 1, self.working - 1, self.lost + 1);
                let (field, charged) = (reading.field, reading.total_charge());
                WrittenOff { item: self.drop_reader(&reading), field, charged }
            })
            .collect()
    }

    /// The reads of the threads that are not lost, by thread.
    pub(crate) fn active_reads(&self) -> Vec<(usize, Reading)> {
        self.active().map(|(thread, reading)| (thread, *reading)).collect()
    }

    /// The reads of lost threads, by thread.
    pub(crate) fn stuck(&self) -> Vec<(usize, Reading)> {
        let lost = self.threads.iter().enumerate().filter_map(|(thread, state)| match state {
            ThreadState::Lost(reading) => Some((thread, *reading)),
            _ => None,
        });
        lost.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::item::item;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_thread_that_does_not_come_back_loses_its_sample_and_retires() {
        let mut reads = ReadsInFlight::new(1, true);
        reads.begin(0, item(7), Duration::ZERO, SECOND);
        assert!(reads.charge(0, 50));
        assert_eq!((reads.uncharge(0), reads.uncharge(0)), (Some(50), None), "it began anew");
        assert!(reads.charge(0, 100));
        assert_eq!(reads.next_deadline(), Some(SECOND));
        assert!(reads.write_off(SECOND / 2).is_empty());
        let written_off = reads.write_off(SECOND);
        assert_eq!(written_off[0].item.as_ref().map(|item| (item.sample, item.attempts)), Some((SampleId(7), 1)));
        assert_eq!((reads.reading(), reads.working(), reads.lost()), (0, 0, 1));
        assert_eq!(reads.add_thread(), 1, "its thread is taken until it is back");
        assert!(!reads.charge(0, 100), "it may not take memory any more");
        let ended = reads.end(0, true, 5 * SECOND);
        assert!(ended.was_lost && ended.item.is_none());
        assert_eq!((ended.charged, reads.lost()), (Some(100), 0));
        assert_eq!(reads.add_thread(), 0, "and then it is free");
    }

    #[test]
    fn waiting_for_memory_does_not_count() {
        let mut reads = ReadsInFlight::new(1, true);
        reads.begin(0, item(7), Duration::ZERO, SECOND);
        reads.wait_for_memory(0, SECOND / 2);
        assert!(reads.write_off(9 * SECOND).is_empty() && reads.next_deadline().is_none());
        reads.end_wait_for_memory(0, 10 * SECOND);
        assert_eq!(reads.next_deadline(), Some(10 * SECOND + SECOND / 2));
        let ended = reads.end(0, true, 10 * SECOND);
        assert_eq!((ended.latency, ended.item.is_some()), (SECOND / 2, true));
    }

    #[test]
    fn of_two_that_read_the_same_the_first_counts() {
        let mut reads = ReadsInFlight::new(3, true);
        reads.begin(0, item(7), Duration::ZERO, 9 * SECOND);
        assert!(reads.hedge(1, SECOND / 2, SECOND).is_none(), "it is not slow yet");
        assert_eq!(reads.next_hedge(SECOND), Some(SECOND));
        let job = reads.hedge(1, SECOND, SECOND).unwrap();
        assert_eq!((job.sample, job.within, job.is_hedge), (SampleId(7), 8 * SECOND, true));
        assert!(reads.hedge(2, 2 * SECOND, SECOND).is_none(), "two are enough");
        let cancel = job.cancel.unwrap();
        assert!(!cancel.is_raised());
        let second = reads.end(1, true, 2 * SECOND);
        assert!(second.item.is_some() && second.is_hedge);
        assert!(cancel.is_raised(), "the first one is told");
        assert!(!reads.charge(0, 100), "and takes no memory any more");
        let first = reads.end(0, true, 3 * SECOND);
        assert!(first.item.is_none() && !first.was_lost);
        assert_eq!((reads.reading(), reads.working()), (0, 3));
    }

    #[test]
    fn one_of_two_that_fails_leaves_it_to_the_other() {
        let mut reads = ReadsInFlight::new(2, true);
        reads.begin(0, item(7), Duration::ZERO, 9 * SECOND);
        reads.hedge(1, SECOND, SECOND).unwrap();
        assert!(reads.end(0, false, 2 * SECOND).item.is_none());
        assert!(reads.end(1, false, 3 * SECOND).item.is_some());
        reads.begin(0, item(8), Duration::ZERO, 4 * SECOND);
        reads.hedge(1, 3 * SECOND, SECOND).unwrap();
        let written_off = reads.write_off(4 * SECOND);
        assert_eq!(written_off.iter().filter(|one| one.item.is_some()).count(), 1, "its sample is free once");
        assert_eq!(reads.lost(), 2);
    }
}
