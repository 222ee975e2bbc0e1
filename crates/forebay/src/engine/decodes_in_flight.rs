//! The decodes in flight: which CPU thread decodes which sample, since when and until when, and which threads are lost.
//! Accounting only, as part of the work queue's state.
//!
//! As with reads (`reads_in_flight.rs`), the item stays here while a thread decodes it, so that it can be taken from a thread
//! that does not return. That thread keeps its number and its memory until its decoder or transform returns, and then ends.

use std::time::Duration;

use forebay_core::{Epoch, SampleId};

use crate::engine::item::Item;

/// What a thread is to decode, and where it belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecodeJob {
    pub(crate) sample: SampleId,
    pub(crate) epoch: Epoch,
    pub(crate) position: u64,
    /// The position is one of a user's own order.
    pub(crate) is_given: bool,
    pub(crate) slot: u32,
}

impl DecodeJob {
    fn of(item: &Item) -> Self {
        let Item { sample, epoch, position, is_given, key, .. } = *item;
        Self { sample, epoch, position, is_given, slot: key.slot }
    }
}

/// A sample being decoded.
#[derive(Debug)]
pub(crate) struct ActiveDecode {
    pub(crate) item: Item,
    pub(crate) since: Duration,
    until: Duration,
    /// Bytes charged for what was read.
    pub(crate) charged: u64,
    /// Bytes charged for what decoding takes.
    pub(crate) decode_bytes: u64,
}

/// A decode that was written off and has not returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostDecode {
    pub(crate) sample: SampleId,
    pub(crate) since: Duration,
    /// All bytes charged for it.
    pub(crate) charged: u64,
}

#[derive(Debug)]
enum ThreadState {
    /// No thread has this number.
    Absent,
    Idle,
    Busy(ActiveDecode),
    Lost(LostDecode),
}

/// How a decode ended for its thread.
#[derive(Debug)]
pub(crate) enum EndedDecode {
    InTime(ActiveDecode),
    /// The thread was written off: it has to end.
    TooLate(LostDecode),
}

/// The CPU threads and their decodes.
#[derive(Debug)]
pub(crate) struct DecodesInFlight {
    threads: Vec<ThreadState>,
    busy: usize,
    lost: usize,
    /// Threads that are not lost.
    working: usize,
    /// Threads that there should be.
    wanted: usize,
}

impl DecodesInFlight {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            threads: (0..threads).map(|_| ThreadState::Idle).collect(),
            busy: 0,
            lost: 0,
            working: threads,
            wanted: threads,
        }
    }

    /// Samples being decoded, those of lost threads left out.
    pub(crate) fn busy(&self) -> usize {
        self.busy
    }

    /// Threads to be started in place of lost ones.
    pub(crate) fn missing(&self) -> usize {
        self.wanted.saturating_sub(self.working)
    }

    /// The number for a new thread.
    pub(crate) fn add_thread(&mut self) -> usize {
        self.working += 1;
        match self.threads.iter().position(|thread| matches!(thread, ThreadState::Absent)) {
            Some(free) => {
                self.threads[free] = ThreadState::Idle;
                free
            }
            None => {
                self.threads.push(ThreadState::Idle);
                self.threads.len() - 1
            }
        }
    }

    /// Removes a thread that could not be started; it is not started again. Gives whether any thread is left.
    pub(crate) fn remove_thread(&mut self, thread: usize) -> bool {
        self.threads[thread] = ThreadState::Absent;
        (self.working, self.wanted) = (self.working - 1, self.wanted - 1);
        self.working > 0
    }

    /// A thread starts to decode.
    pub(crate) fn begin(
        &mut self,
        thread: usize,
        item: Item,
        now: Duration,
        within: Duration,
        charged: u64,
        decode_bytes: u64,
    ) -> DecodeJob {
        let job = DecodeJob::of(&item);
        let until = now.saturating_add(within);
        self.threads[thread] = ThreadState::Busy(ActiveDecode { item, since: now, until, charged, decode_bytes });
        self.busy += 1;
        job
    }

    /// A thread's decode has ended.
    pub(crate) fn end(&mut self, thread: usize) -> EndedDecode {
        match std::mem::replace(&mut self.threads[thread], ThreadState::Idle) {
            ThreadState::Busy(decoding) => {
                self.busy -= 1;
                EndedDecode::InTime(decoding)
            }
            ThreadState::Lost(lost) => {
                self.threads[thread] = ThreadState::Absent;
                self.lost -= 1;
                EndedDecode::TooLate(lost)
            }
            ThreadState::Idle | ThreadState::Absent => unreachable!("a thread that decodes nothing cannot end it"),
        }
    }

    /// The decodes of the threads that are not lost, by thread.
    pub(crate) fn active(&self) -> impl Iterator<Item = (usize, &ActiveDecode)> {
        self.threads.iter().enumerate().filter_map(|(thread, state)| match state {
            ThreadState::Busy(decoding) => Some((thread, decoding)),
            _ => None,
        })
    }

    /// The decodes of lost threads, by thread.
    pub(crate) fn stuck(&self) -> impl Iterator<Item = (usize, &LostDecode)> {
        self.threads.iter().enumerate().filter_map(|(thread, state)| match state {
            ThreadState::Lost(lost) => Some((thread, lost)),
            _ => None,
        })
    }

    /// When the next decode is to be written off.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.active().map(|(_, decoding)| decoding.until).min()
    }

    /// Writes off every decode whose deadline has passed: its thread is lost, its item is released. `held` gives the bytes that
    /// the thread keeps beyond those charged for the sample; the caller charges them too.
    pub(crate) fn write_off(&mut self, now: Duration, mut held: impl FnMut(&Item) -> u64) -> Vec<Item> {
        let mut late = Vec::new();
        for thread in &mut self.threads {
            if !matches!(thread, ThreadState::Busy(decoding) if decoding.until <= now) {
                continue;
            }
            let ThreadState::Busy(decoding) = std::mem::replace(thread, ThreadState::Absent) else { continue };
            let ActiveDecode { item, since, charged, decode_bytes, .. } = decoding;
            let charged = charged + decode_bytes + held(&item);
            *thread = ThreadState::Lost(LostDecode { sample: item.sample, since, charged });
            (self.busy, self.working, self.lost) = (self.busy - 1, self.working - 1, self.lost + 1);
            late.push(item);
        }
        late
    }

    /// Threads that were written off and have not returned.
    pub(crate) fn lost(&self) -> usize {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::item::item;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_thread_that_does_not_come_back_loses_its_sample_and_retires() {
        let mut decodes = DecodesInFlight::new(2);
        let job = decodes.begin(0, item(7), Duration::ZERO, SECOND, 10, 100);
        assert_eq!((job.sample, job.slot), (SampleId(7), 7));
        decodes.begin(1, item(8), SECOND / 2, SECOND, 10, 100);
        assert_eq!(decodes.next_deadline(), Some(SECOND));
        assert!(decodes.write_off(SECOND / 2, |_| unreachable!("none is late")).is_empty());
        let late = decodes.write_off(SECOND, |_| 1000);
        assert_eq!(late.iter().map(|item| item.sample).collect::<Vec<_>>(), [SampleId(7)]);
        assert_eq!((decodes.busy(), decodes.missing(), decodes.lost()), (1, 1, 1));
        assert_eq!(decodes.add_thread(), 2, "its thread is taken until it is back");
        assert_eq!(decodes.missing(), 0);
        let EndedDecode::TooLate(lost) = decodes.end(0) else { panic!("it was written off") };
        assert_eq!((lost.sample, lost.charged, decodes.lost()), (SampleId(7), 1110, 0));
        assert!(decodes.remove_thread(2), "one is left");
        assert_eq!(decodes.missing(), 0, "there is no thread to be had");
        assert_eq!(decodes.add_thread(), 0, "its thread is free again");
        let EndedDecode::InTime(decoding) = decodes.end(1) else { panic!("it was in time") };
        assert_eq!((decoding.item.sample, decoding.charged, decoding.decode_bytes), (SampleId(8), 10, 100));
        assert_eq!(decodes.busy(), 0);
    }
}
