//! Which CPU thread decodes what, since when and until when, and which threads are lost. Books only: the desk holds them.
//!
//! As with reads (`flight.rs`), the item stays here while a thread decodes it, so that it can be taken from a thread that
//! does not come back. That thread keeps its seat and its memory until its decoder or transform returns, and then ends.

use std::time::Duration;

use forebay_core::{Epoch, SampleId};

use crate::item::Item;

/// What a thread is to decode, and where it belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) sample: SampleId,
    pub(crate) epoch: Epoch,
    pub(crate) position: u64,
    /// The position is one of a user's own order.
    pub(crate) is_given: bool,
    pub(crate) slot: u32,
}

impl Job {
    fn of(item: &Item) -> Self {
        let Item { sample, epoch, position, is_given, key, .. } = *item;
        Self { sample, epoch, position, is_given, slot: key.slot }
    }
}

/// A sample being decoded.
#[derive(Debug)]
pub(crate) struct Decoding {
    pub(crate) item: Item,
    pub(crate) since: Duration,
    until: Duration,
    /// Bytes charged for what was read.
    pub(crate) charged: u64,
    /// Bytes charged for what decoding takes.
    pub(crate) decode_bytes: u64,
}

/// A decode that was written off and is not back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost {
    pub(crate) sample: SampleId,
    pub(crate) since: Duration,
    /// All that is charged for it.
    pub(crate) charged: u64,
}

#[derive(Debug)]
enum Seat {
    /// Nobody sits here.
    Free,
    Idle,
    Busy(Decoding),
    Lost(Lost),
}

/// How a decode ended for its thread.
#[derive(Debug)]
pub(crate) enum Ended {
    InTime(Decoding),
    /// The thread was written off: it has to retire.
    TooLate(Lost),
}

/// The CPU threads and what they have in hand.
#[derive(Debug)]
pub(crate) struct Decoders {
    seats: Vec<Seat>,
    busy: usize,
    lost: usize,
    /// Threads that are not lost.
    working: usize,
    /// Threads that there should be.
    wanted: usize,
}

impl Decoders {
    pub(crate) fn new(threads: usize) -> Self {
        Self { seats: (0..threads).map(|_| Seat::Idle).collect(), busy: 0, lost: 0, working: threads, wanted: threads }
    }

    /// Samples being decoded, those of lost threads left out.
    pub(crate) fn busy(&self) -> usize {
        self.busy
    }

    /// Threads to be started in place of lost ones.
    pub(crate) fn missing(&self) -> usize {
        self.wanted.saturating_sub(self.working)
    }

    /// A seat for a new thread.
    pub(crate) fn sit(&mut self) -> usize {
        self.working += 1;
        match self.seats.iter().position(|seat| matches!(seat, Seat::Free)) {
            Some(free) => {
                self.seats[free] = Seat::Idle;
                free
            }
            None => {
                self.seats.push(Seat::Idle);
                self.seats.len() - 1
            }
        }
    }

    /// Gives a seat back that no thread could be had for. From now on there is one less; whether any is left.
    pub(crate) fn stand_up(&mut self, seat: usize) -> bool {
        self.seats[seat] = Seat::Free;
        (self.working, self.wanted) = (self.working - 1, self.wanted - 1);
        self.working > 0
    }

    /// A thread starts to decode.
    pub(crate) fn begin(
        &mut self,
        seat: usize,
        item: Item,
        now: Duration,
        within: Duration,
        charged: u64,
        decode_bytes: u64,
    ) -> Job {
        let job = Job::of(&item);
        let until = now.saturating_add(within);
        self.seats[seat] = Seat::Busy(Decoding { item, since: now, until, charged, decode_bytes });
        self.busy += 1;
        job
    }

    /// A thread is done, well or not.
    pub(crate) fn end(&mut self, seat: usize) -> Ended {
        match std::mem::replace(&mut self.seats[seat], Seat::Idle) {
            Seat::Busy(decoding) => {
                self.busy -= 1;
                Ended::InTime(decoding)
            }
            Seat::Lost(lost) => {
                self.seats[seat] = Seat::Free;
                self.lost -= 1;
                Ended::TooLate(lost)
            }
            Seat::Idle | Seat::Free => unreachable!("a thread that decodes nothing cannot end it"),
        }
    }

    /// What every thread has in hand that is not lost, by seat.
    pub(crate) fn in_hand(&self) -> impl Iterator<Item = (usize, &Decoding)> {
        self.seats.iter().enumerate().filter_map(|(seat, state)| match state {
            Seat::Busy(decoding) => Some((seat, decoding)),
            _ => None,
        })
    }

    /// What the lost threads are stuck in, by seat.
    pub(crate) fn stuck(&self) -> impl Iterator<Item = (usize, &Lost)> {
        self.seats.iter().enumerate().filter_map(|(seat, state)| match state {
            Seat::Lost(lost) => Some((seat, lost)),
            _ => None,
        })
    }

    /// When the next decode is to be written off.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.in_hand().map(|(_, decoding)| decoding.until).min()
    }

    /// Writes off every decode whose deadline has passed: its thread is lost, its sample is free. `held` says what the
    /// thread keeps from others beyond what was charged for the sample; that is charged as well, by the caller.
    pub(crate) fn write_off(&mut self, now: Duration, mut held: impl FnMut(&Item) -> u64) -> Vec<Item> {
        let mut late = Vec::new();
        for seat in &mut self.seats {
            if !matches!(seat, Seat::Busy(decoding) if decoding.until <= now) {
                continue;
            }
            let Seat::Busy(decoding) = std::mem::replace(seat, Seat::Free) else { continue };
            let Decoding { item, since, charged, decode_bytes, .. } = decoding;
            let charged = charged + decode_bytes + held(&item);
            *seat = Seat::Lost(Lost { sample: item.sample, since, charged });
            (self.busy, self.working, self.lost) = (self.busy - 1, self.working - 1, self.lost + 1);
            late.push(item);
        }
        late
    }

    /// Threads that were written off and are not back.
    pub(crate) fn lost(&self) -> usize {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::item;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_thread_that_does_not_come_back_loses_its_sample_and_retires() {
        let mut decoders = Decoders::new(2);
        let job = decoders.begin(0, item(7), Duration::ZERO, SECOND, 10, 100);
        assert_eq!((job.sample, job.slot), (SampleId(7), 7));
        decoders.begin(1, item(8), SECOND / 2, SECOND, 10, 100);
        assert_eq!(decoders.next_deadline(), Some(SECOND));
        assert!(decoders.write_off(SECOND / 2, |_| unreachable!("none is late")).is_empty());
        let late = decoders.write_off(SECOND, |_| 1000);
        assert_eq!(late.iter().map(|item| item.sample).collect::<Vec<_>>(), [SampleId(7)]);
        assert_eq!((decoders.busy(), decoders.missing(), decoders.lost()), (1, 1, 1));
        assert_eq!(decoders.sit(), 2, "its seat is taken until it is back");
        assert_eq!(decoders.missing(), 0);
        let Ended::TooLate(lost) = decoders.end(0) else { panic!("it was written off") };
        assert_eq!((lost.sample, lost.charged, decoders.lost()), (SampleId(7), 1110, 0));
        assert!(decoders.stand_up(2), "one is left");
        assert_eq!(decoders.missing(), 0, "there is no thread to be had");
        assert_eq!(decoders.sit(), 0, "its seat is free again");
        let Ended::InTime(decoding) = decoders.end(1) else { panic!("it was in time") };
        assert_eq!((decoding.item.sample, decoding.charged, decoding.decode_bytes), (SampleId(8), 10, 100));
        assert_eq!(decoders.busy(), 0);
    }
}
