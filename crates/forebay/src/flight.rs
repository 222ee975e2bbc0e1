//! Which I/O thread reads what, since when and until when, and which threads are lost. Books only: the desk holds them.
//!
//! A sample in flight stays here while a thread reads it, so that it can be taken from a thread that does not come back.
//! That thread is lost: it keeps its seat, its buffer and its descriptors until its read returns, and then retires.

use std::collections::HashMap;
use std::time::Duration;

use forebay_core::{Error, SampleId};
use forebay_store::Cancel;

use crate::item::Item;

/// What a thread is to read.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) sample: SampleId,
    /// How long it may take.
    pub(crate) within: Duration,
    /// Another thread has been reading it for too long already.
    pub(crate) is_hedge: bool,
    /// Raised when another thread has brought it, or it was written off: this one need not come back with it. `None`
    /// where there are no second reads.
    pub(crate) cancel: Option<Cancel>,
}

/// A sample being read: by one thread, or by two when it was hedged.
#[derive(Debug)]
struct Flight {
    item: Item,
    threads: u32,
    is_hedged: bool,
    /// Ends whoever reads it still.
    cancel: Option<Cancel>,
}

/// What one thread has in hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    ticket: u64,
    pub(crate) sample: SampleId,
    pub(crate) attempt: u32,
    pub(crate) since: Duration,
    until: Duration,
    is_hedge: bool,
    /// Bytes charged for what it reads.
    charged: Option<u64>,
    /// Waiting for memory is not the storage's fault: since when, and how long in all.
    waiting: Option<Duration>,
    waited: Duration,
}

#[derive(Debug)]
enum Seat {
    /// Nobody sits here.
    Free,
    Idle,
    Reading(Reading),
    /// Written off, and not back yet.
    Lost(Reading),
}

/// How a read ended for its thread.
#[derive(Debug)]
pub(crate) struct Landed {
    ticket: u64,
    /// The sample; `None` when another thread has it, or had it first, or it was written off.
    pub(crate) item: Option<Item>,
    pub(crate) charged: Option<u64>,
    /// How long the storage took.
    pub(crate) latency: Duration,
    pub(crate) is_hedge: bool,
    /// The thread was written off: it has to retire.
    pub(crate) was_lost: bool,
}

/// A read that was written off.
#[derive(Debug)]
pub(crate) struct WrittenOff {
    /// The sample, unless another thread has answered for it.
    pub(crate) item: Option<Item>,
    pub(crate) charged: Option<u64>,
}

/// The I/O threads and what they have in hand.
#[derive(Debug)]
pub(crate) struct Flights {
    /// Whether there are second reads: only then is memory spent on ending the first.
    hedges: bool,
    seats: Vec<Seat>,
    flights: HashMap<u64, Flight>,
    last_ticket: u64,
    reading: usize,
    lost: usize,
    /// Threads that are not lost.
    working: usize,
}

impl Flights {
    pub(crate) fn new(threads: usize, hedges: bool) -> Self {
        let seats = (0..threads).map(|_| Seat::Idle).collect();
        Self { hedges, seats, flights: HashMap::new(), last_ticket: 0, reading: 0, lost: 0, working: threads }
    }

    /// Reads in progress, those of lost threads left out.
    pub(crate) fn reading(&self) -> usize {
        self.reading
    }

    /// Threads that were written off and are not back.
    pub(crate) fn lost(&self) -> usize {
        self.lost
    }

    /// Threads that are not lost.
    pub(crate) fn working(&self) -> usize {
        self.working
    }

    /// A seat for a new thread.
    pub(crate) fn sit(&mut self) -> usize {
        self.working += 1;
        let free = self.seats.iter().position(|seat| matches!(seat, Seat::Free));
        let seat = free.unwrap_or_else(|| {
            self.seats.push(Seat::Free);
            self.seats.len() - 1
        });
        self.seats[seat] = Seat::Idle;
        seat
    }

    /// Gives a seat back that no thread could be had for.
    pub(crate) fn stand_up(&mut self, seat: usize) {
        self.seats[seat] = Seat::Free;
        self.working -= 1;
    }

    /// A thread starts to read an item.
    pub(crate) fn depart(&mut self, seat: usize, item: Item, now: Duration, within: Duration) -> Job {
        self.last_ticket += 1;
        let (ticket, sample, attempt) = (self.last_ticket, item.sample, item.attempts + 1);
        let cancel = self.hedges.then(Cancel::default);
        self.flights.insert(ticket, Flight { item, threads: 1, is_hedged: false, cancel: cancel.clone() });
        let until = now.saturating_add(within);
        self.begin(
            seat,
            Reading {
                ticket,
                sample,
                attempt,
                since: now,
                until,
                is_hedge: false,
                charged: None,
                waiting: None,
                waited: Duration::ZERO,
            },
            cancel,
        )
    }

    fn begin(&mut self, seat: usize, reading: Reading, cancel: Option<Cancel>) -> Job {
        self.reading += 1;
        let within = reading.until.saturating_sub(reading.since);
        let job = Job { sample: reading.sample, within, is_hedge: reading.is_hedge, cancel };
        self.seats[seat] = Seat::Reading(reading);
        job
    }

    fn in_hand(&self) -> impl Iterator<Item = (usize, &Reading)> {
        self.seats.iter().enumerate().filter_map(|(seat, state)| match state {
            Seat::Reading(reading) => Some((seat, reading)),
            _ => None,
        })
    }

    /// The reads that may get a second one beside them.
    fn alone(&self) -> impl Iterator<Item = &Reading> {
        self.in_hand().map(|(_, reading)| reading).filter(|reading| {
            reading.waiting.is_none() && self.flights.get(&reading.ticket).is_some_and(|flight| !flight.is_hedged)
        })
    }

    /// The one of them that has been going on for longest.
    fn slowest(&self) -> Option<&Reading> {
        self.alone().min_by_key(|reading| reading.since)
    }

    /// When the next read will have taken `patience`.
    pub(crate) fn next_hedge(&self, patience: Duration) -> Option<Duration> {
        self.slowest().map(|reading| reading.since + patience)
    }

    /// Reads that are the second of two.
    pub(crate) fn hedging(&self) -> usize {
        self.seats.iter().filter(|seat| matches!(seat, Seat::Reading(reading) if reading.is_hedge)).count()
    }

    /// Reads that have taken longer than `patience`, and have no second one beside them.
    pub(crate) fn due(&self, now: Duration, patience: Duration) -> usize {
        self.alone().filter(|reading| reading.since + patience <= now).count()
    }

    /// A thread starts to read what another one has been reading for longer than `patience`.
    pub(crate) fn hedge(&mut self, seat: usize, now: Duration, patience: Duration) -> Option<Job> {
        let slowest = self.slowest().filter(|reading| reading.since + patience <= now)?;
        let twin = Reading { since: now, is_hedge: true, charged: None, waited: Duration::ZERO, ..*slowest };
        let flight = self.flights.get_mut(&twin.ticket)?;
        (flight.threads, flight.is_hedged) = (2, true);
        let cancel = flight.cancel.clone();
        Some(self.begin(seat, twin, cancel))
    }

    fn reading_of(&mut self, seat: usize) -> Option<&mut Reading> {
        match &mut self.seats[seat] {
            Seat::Reading(reading) => Some(reading),
            _ => None,
        }
    }

    /// Memory was charged for a thread's read; false when it was written off meanwhile, or another one has brought it.
    pub(crate) fn charge(&mut self, seat: usize, bytes: u64) -> bool {
        match &mut self.seats[seat] {
            Seat::Reading(reading) if self.flights.contains_key(&reading.ticket) => {
                reading.charged = Some(bytes);
                true
            }
            _ => false,
        }
    }

    /// What was charged for a thread's read so far, to be given back: it begins anew with another size.
    pub(crate) fn uncharge(&mut self, seat: usize) -> Option<u64> {
        self.reading_of(seat)?.charged.take()
    }

    /// A thread waits for memory; its deadline stands still.
    pub(crate) fn wait_for_memory(&mut self, seat: usize, now: Duration) {
        if let Some(reading) = self.reading_of(seat) {
            reading.waiting = Some(now);
        }
    }

    /// A thread waits for memory no longer.
    pub(crate) fn go_on(&mut self, seat: usize, now: Duration) {
        if let Some(reading) = self.reading_of(seat)
            && let Some(since) = reading.waiting.take()
        {
            let waited = now.saturating_sub(since);
            reading.until = reading.until.saturating_add(waited);
            reading.waited += waited;
        }
    }

    /// A thread's read has ended, well or not.
    pub(crate) fn land(&mut self, seat: usize, is_well: bool, now: Duration) -> Landed {
        let landed = |reading: &Reading, item, was_lost| Landed {
            ticket: reading.ticket,
            item,
            charged: reading.charged,
            latency: now.saturating_sub(reading.since).saturating_sub(reading.waited),
            is_hedge: reading.is_hedge,
            was_lost,
        };
        match std::mem::replace(&mut self.seats[seat], Seat::Idle) {
            Seat::Reading(reading) => {
                self.reading -= 1;
                let item = if is_well { self.take(&reading) } else { self.let_go(&reading) };
                landed(&reading, item, false)
            }
            Seat::Lost(reading) => {
                self.seats[seat] = Seat::Free;
                self.lost -= 1;
                landed(&reading, None, true)
            }
            Seat::Idle | Seat::Free => unreachable!("a thread without a read cannot end one"),
        }
    }

    /// Remembers why one of two threads failed that read the same.
    pub(crate) fn remember(&mut self, landed: &Landed, error: Error) {
        if let Some(flight) = self.flights.get_mut(&landed.ticket) {
            flight.item.trouble.get_or_insert(error);
        }
    }

    /// The item of a flight that one of its threads has brought home, or the last of them has given up. What another one
    /// still does for it is in vain.
    fn take(&mut self, reading: &Reading) -> Option<Item> {
        let flight = self.flights.remove(&reading.ticket)?;
        flight.cancel.iter().for_each(Cancel::raise);
        Some(Item { attempts: reading.attempt, ..flight.item })
    }

    /// The item of a flight, if this was its last thread.
    fn let_go(&mut self, reading: &Reading) -> Option<Item> {
        let flight = self.flights.get_mut(&reading.ticket)?;
        flight.threads -= 1;
        if flight.threads == 0 { self.take(reading) } else { None }
    }

    /// When the next read is to be written off.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.in_hand().filter(|(_, reading)| reading.waiting.is_none()).map(|(_, reading)| reading.until).min()
    }

    /// Writes off every read whose deadline has passed: its thread is lost, its sample is free.
    pub(crate) fn write_off(&mut self, now: Duration) -> Vec<WrittenOff> {
        let is_late = |reading: &Reading| reading.waiting.is_none() && reading.until <= now;
        let late: Vec<(usize, Reading)> =
            self.in_hand().filter(|(_, reading)| is_late(reading)).map(|(seat, reading)| (seat, *reading)).collect();
        late.into_iter()
            .map(|(seat, reading)| {
                self.seats[seat] = Seat::Lost(reading);
                (self.reading, self.working, self.lost) = (self.reading - 1, self.working - 1, self.lost + 1);
                WrittenOff { item: self.let_go(&reading), charged: reading.charged }
            })
            .collect()
    }

    /// What every thread has in hand that is not lost, by seat.
    pub(crate) fn readings(&self) -> Vec<(usize, Reading)> {
        self.in_hand().map(|(seat, reading)| (seat, *reading)).collect()
    }

    /// What the lost threads are stuck in.
    pub(crate) fn stuck(&self) -> Vec<(usize, Reading)> {
        let lost = self.seats.iter().enumerate().filter_map(|(seat, state)| match state {
            Seat::Lost(reading) => Some((seat, *reading)),
            _ => None,
        });
        lost.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::item;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_thread_that_does_not_come_back_loses_its_sample_and_retires() {
        let mut flights = Flights::new(1, true);
        flights.depart(0, item(7), Duration::ZERO, SECOND);
        assert!(flights.charge(0, 50));
        assert_eq!((flights.uncharge(0), flights.uncharge(0)), (Some(50), None), "it began anew");
        assert!(flights.charge(0, 100));
        assert_eq!(flights.next_deadline(), Some(SECOND));
        assert!(flights.write_off(SECOND / 2).is_empty());
        let written_off = flights.write_off(SECOND);
        assert_eq!(written_off[0].item.as_ref().map(|item| (item.sample, item.attempts)), Some((SampleId(7), 1)));
        assert_eq!((flights.reading(), flights.working(), flights.lost()), (0, 0, 1));
        assert_eq!(flights.sit(), 1, "its seat is taken until it is back");
        assert!(!flights.charge(0, 100), "it may not take memory any more");
        let landed = flights.land(0, true, 5 * SECOND);
        assert!(landed.was_lost && landed.item.is_none());
        assert_eq!((landed.charged, flights.lost()), (Some(100), 0));
        assert_eq!(flights.sit(), 0, "and then it is free");
    }

    #[test]
    fn waiting_for_memory_does_not_count() {
        let mut flights = Flights::new(1, true);
        flights.depart(0, item(7), Duration::ZERO, SECOND);
        flights.wait_for_memory(0, SECOND / 2);
        assert!(flights.write_off(9 * SECOND).is_empty() && flights.next_deadline().is_none());
        flights.go_on(0, 10 * SECOND);
        assert_eq!(flights.next_deadline(), Some(10 * SECOND + SECOND / 2));
        let landed = flights.land(0, true, 10 * SECOND);
        assert_eq!((landed.latency, landed.item.is_some()), (SECOND / 2, true));
    }

    #[test]
    fn of_two_that_read_the_same_the_first_counts() {
        let mut flights = Flights::new(3, true);
        flights.depart(0, item(7), Duration::ZERO, 9 * SECOND);
        assert!(flights.hedge(1, SECOND / 2, SECOND).is_none(), "it is not slow yet");
        assert_eq!(flights.next_hedge(SECOND), Some(SECOND));
        let job = flights.hedge(1, SECOND, SECOND).unwrap();
        assert_eq!((job.sample, job.within, job.is_hedge), (SampleId(7), 8 * SECOND, true));
        assert!(flights.hedge(2, 2 * SECOND, SECOND).is_none(), "two are enough");
        let cancel = job.cancel.unwrap();
        assert!(!cancel.is_raised());
        let second = flights.land(1, true, 2 * SECOND);
        assert!(second.item.is_some() && second.is_hedge);
        assert!(cancel.is_raised(), "the first one is told");
        assert!(!flights.charge(0, 100), "and takes no memory any more");
        let first = flights.land(0, true, 3 * SECOND);
        assert!(first.item.is_none() && !first.was_lost);
        assert_eq!((flights.reading(), flights.working()), (0, 3));
    }

    #[test]
    fn one_of_two_that_fails_leaves_it_to_the_other() {
        let mut flights = Flights::new(2, true);
        flights.depart(0, item(7), Duration::ZERO, 9 * SECOND);
        flights.hedge(1, SECOND, SECOND).unwrap();
        assert!(flights.land(0, false, 2 * SECOND).item.is_none());
        assert!(flights.land(1, false, 3 * SECOND).item.is_some());
        flights.depart(0, item(8), Duration::ZERO, 4 * SECOND);
        flights.hedge(1, 3 * SECOND, SECOND).unwrap();
        let written_off = flights.write_off(4 * SECOND);
        assert_eq!(written_off.iter().filter(|one| one.item.is_some()).count(), 1, "its sample is free once");
        assert_eq!(flights.lost(), 2);
    }
}
