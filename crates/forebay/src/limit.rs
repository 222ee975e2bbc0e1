//! How many reads go on at a time: more while that makes the storage give more, fewer when it only makes it slower.
//!
//! Steps and looks: after a step up it goes on if the storage gives more, and back if not. When reads become twice as
//! slow as they were, it steps down, and goes on if the storage does not give less. In between it waits, longer each
//! time that a step up did not pay.
//!
//! Storage that says itself that it is asked too much is believed at once: half as many, and then one more for each time
//! that as many as there may be have gone well.

use std::time::Duration;

use forebay_core::{Error, Kind};

/// Fewer reads than this at a time are no measure of latency.
const MIN_WINDOW: u32 = 32;
/// So many handles gone stale within a window are a storm: the server is restarting, and does not need more load.
const STORM: u32 = 4;
/// A step has paid when the rate has changed by this part of it: all of it is what more reads bring to storage that is
/// idle, nothing is what they bring to storage that is busy.
const PAYS: f64 = 0.3;
/// Windows between two steps up, at most.
const MAX_REST: u32 = 64;

/// What the limit is doing.
#[derive(Clone, Copy, Debug)]
enum Move {
    /// Waits for so many windows before it steps up again.
    Rest(u32),
    /// Has stepped up or down from this limit, which gave this many reads a second.
    Step { from: usize, rate: f64 },
}

/// The reads that may go on at a time.
#[derive(Debug)]
pub(crate) struct Limit {
    current: usize,
    floor: usize,
    ceiling: usize,
    moving: Move,
    /// How long the next rest is.
    rest: u32,
    /// Latency when it last came to rest.
    usual: Option<Duration>,
    landed: u32,
    total_latency: Duration,
    stale: u32,
    /// The storage has asked for less load: windows since then.
    eased: Option<u32>,
    /// Reads that began before the last halving, and say nothing new.
    echoes: usize,
    /// The limit was reached while more was wanted: without that there is no reason to step.
    is_reached: bool,
}

impl Limit {
    /// Begins at `start`, and goes up to `ceiling`; where that is no more, latency does not change it.
    pub(crate) fn new(start: usize, ceiling: usize) -> Self {
        /// Fewer leave even a local disk idle. Not measured.
        const FLOOR: usize = 4;
        let is_fixed = ceiling <= start;
        Self {
            current: start,
            floor: if is_fixed { start } else { start.min(FLOOR) },
            ceiling: ceiling.max(start),
            moving: Move::Rest(0),
            rest: 1,
            usual: None,
            landed: 0,
            total_latency: Duration::ZERO,
            stale: 0,
            eased: None,
            echoes: 0,
            is_reached: false,
        }
    }

    /// Reads that may go on at a time, now.
    pub(crate) fn current(&self) -> usize {
        self.current
    }

    /// A read has begun, and so many go on now. `is_wanted` when somebody waits for what they bring.
    pub(crate) fn departed(&mut self, reading: usize, is_wanted: bool) {
        self.is_reached |= is_wanted && reading >= self.current;
    }

    /// A read has ended well after `latency`.
    pub(crate) fn landed(&mut self, latency: Duration) {
        self.landed += 1;
        self.total_latency += latency;
        self.echoes = self.echoes.saturating_sub(1);
        let window = match self.eased {
            Some(_) => self.current as u32,
            None => MIN_WINDOW.max(2 * self.current as u32),
        };
        if self.landed >= window {
            self.judge();
        }
    }

    /// At the end of a window in which the storage did not complain, after it did: one more, if more are wanted.
    fn ease_up(&mut self, windows: u32, is_reached: bool) {
        /// Complaints longer ago than that are forgotten, and latency decides again.
        const MAX_WINDOWS: u32 = 256;
        self.current = (self.current + usize::from(is_reached)).min(self.ceiling);
        let is_over = self.current == self.ceiling || windows >= MAX_WINDOWS;
        self.eased = if is_over { None } else { Some(windows + 1) };
        (self.usual, self.moving) = (None, Move::Rest(self.rest));
    }

    /// At the end of a window. By Little's law the rate is reads at a time divided by latency.
    fn judge(&mut self) {
        let latency = self.total_latency / self.landed;
        let is_reached = self.is_reached;
        self.start_over();
        if let Some(windows) = self.eased {
            return self.ease_up(windows, is_reached);
        }
        if self.current < self.floor {
            self.current += 1; // what ran out may be back
            return;
        }
        if !is_reached {
            return;
        }
        let rate = self.current as f64 / latency.as_secs_f64().max(1e-9);
        let is_slow = self.usual.is_some_and(|usual| latency > 2 * usual);
        match self.moving {
            Move::Step { from, rate: before } => {
                let step = self.current as f64 / from as f64 - 1.0;
                let pays = rate / before - 1.0 >= PAYS * step;
                if !pays {
                    let expected = latency.mul_f64(from as f64 / self.current as f64);
                    self.current = from;
                    self.come_to_rest(expected);
                } else if step > 0.0 {
                    self.step_up(rate, latency);
                } else {
                    self.step_down(rate, latency);
                }
            }
            Move::Rest(_) if is_slow => self.step_down(rate, latency),
            Move::Rest(0) => self.step_up(rate, latency),
            Move::Rest(windows) => self.moving = Move::Rest(windows - 1),
        }
    }

    fn step_up(&mut self, rate: f64, latency: Duration) {
        let next = (self.current + (self.current / 4).max(1)).min(self.ceiling);
        self.step(next, rate, latency);
    }

    fn step_down(&mut self, rate: f64, latency: Duration) {
        let next = (self.current * 3 / 4).max(self.floor);
        self.step(next, rate, latency);
    }

    fn step(&mut self, next: usize, rate: f64, latency: Duration) {
        if next == self.current {
            return self.come_to_rest(latency);
        }
        if let Move::Step { .. } = self.moving {
            self.rest = 1; // the last one paid
        }
        self.moving = Move::Step { from: self.current, rate };
        self.current = next;
    }

    fn come_to_rest(&mut self, latency: Duration) {
        self.moving = Move::Rest(self.rest);
        self.rest = (2 * self.rest).min(MAX_REST);
        self.usual = Some(latency);
    }

    fn start_over(&mut self) {
        (self.landed, self.total_latency, self.stale, self.is_reached) = (0, Duration::ZERO, 0, false);
    }

    /// A read has failed, and so many still go on.
    pub(crate) fn failed(&mut self, error: &Error, reading: usize) {
        let less = if error.kind() == Kind::Exhausted && error.is_transient() {
            // What is being read now is what this process can bear.
            self.current.min(reading.max(1))
        } else if error.is_throttled() {
            if self.echoes > 0 {
                self.echoes -= 1;
                return;
            }
            (self.eased, self.echoes) = (Some(0), reading);
            (self.current / 2).max(1)
        } else if error.is_stale() {
            self.stale += 1;
            if self.stale < STORM.max(self.landed / 4) {
                return;
            }
            (self.current / 2).max(1)
        } else {
            return;
        };
        (self.current, self.moving) = (less, Move::Rest(self.rest));
        self.start_over();
    }

    /// No more threads are to be had than these.
    pub(crate) fn cap(&mut self, threads: usize) {
        self.ceiling = threads.max(1);
        (self.current, self.floor) = (self.current.min(self.ceiling), self.floor.min(self.ceiling));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Storage that answers `capacity` reads at a time, each within `latency`, and queues the others.
    fn load(limit: &mut Limit, capacity: f64, latency: Duration, reads: usize, demand: usize) {
        for _ in 0..reads {
            let reading = limit.current().min(demand);
            limit.departed(reading, true);
            limit.landed(latency.mul_f64((reading as f64 / capacity).max(1.0)));
        }
    }

    const LATENCY: Duration = Duration::from_millis(50);

    #[test]
    fn grows_to_what_the_storage_can_do_at_a_time_and_not_far_beyond() {
        let mut limit = Limit::new(4, 64);
        load(&mut limit, 20.0, LATENCY, 5_000, 1_000);
        assert!((20..=30).contains(&limit.current()), "{}", limit.current());
        load(&mut limit, 1_000.0, LATENCY, 50_000, 1_000);
        assert_eq!(limit.current(), 64, "and never beyond its ceiling");
    }

    #[test]
    fn shrinks_when_the_storage_becomes_slower_and_comes_back() {
        let mut limit = Limit::new(4, 64);
        load(&mut limit, 40.0, LATENCY, 5_000, 1_000);
        let before = limit.current();
        load(&mut limit, 5.0, LATENCY, 1_000, 1_000);
        assert!(limit.current() <= 12 && limit.current() >= 4, "{}", limit.current());
        load(&mut limit, 40.0, LATENCY, 20_000, 1_000);
        assert!(limit.current() >= before * 3 / 4, "{} instead of {before}", limit.current());
    }

    #[test]
    fn does_not_grow_without_demand_or_beyond_a_fixed_number() {
        let mut limit = Limit::new(4, 64);
        load(&mut limit, 100.0, LATENCY, 5_000, 3);
        assert_eq!(limit.current(), 4);
        for _ in 0..5_000 {
            limit.departed(4, false);
            limit.landed(LATENCY);
        }
        assert_eq!(limit.current(), 4, "decoding is what takes the time");
        let mut fixed = Limit::new(8, 8);
        load(&mut fixed, 100.0, LATENCY, 5_000, 1_000);
        load(&mut fixed, 2.0, LATENCY, 5_000, 1_000);
        assert_eq!(fixed.current(), 8);
    }

    #[test]
    fn complaints_halve_it_once_a_round_and_then_it_grows_one_by_one() {
        let busy = || Error::new(Kind::Unavailable, "SlowDown").throttled(None);
        let mut limit = Limit::new(64, 256);
        (0..64).for_each(|done| limit.failed(&busy(), 63 - done));
        assert_eq!(limit.current(), 32, "all of one round say the same");
        (0..200).for_each(|_| limit.failed(&busy(), 0));
        assert_eq!(limit.current(), 1, "and when nothing else is said, one at a time");
        let mut reads = 0;
        while limit.current() < 32 {
            let before = limit.current();
            load(&mut limit, 1_000.0, LATENCY, before, 1_000);
            assert_eq!(limit.current(), before + 1, "one more for each round");
            reads += before;
        }
        assert_eq!(reads, (1..32).sum::<usize>());
        load(&mut limit, 1_000.0, LATENCY, 1_000_000, 1_000);
        assert_eq!((limit.current(), limit.eased), (256, None));
        let mut idle = Limit::new(64, 256);
        idle.failed(&busy(), 0);
        load(&mut idle, 1_000.0, LATENCY, 10_000, 3);
        assert_eq!(idle.current(), 32, "not where nobody wants more");
    }

    #[test]
    fn running_out_and_storms_of_stale_handles_shrink_it_at_once() {
        let io = |errno| Error::io("read", std::io::Error::from_raw_os_error(errno));
        let mut limit = Limit::new(16, 64);
        limit.failed(&io(libc::EMFILE), 5);
        assert_eq!(limit.current(), 5);
        limit.failed(&io(libc::EMFILE), 0);
        assert_eq!(limit.current(), 1, "below the floor, because more cannot be had");
        load(&mut limit, 100.0, LATENCY, 200, 1_000);
        assert!(limit.current() > 4, "and back: {}", limit.current());
        let mut limit = Limit::new(16, 64);
        (0..3).for_each(|_| limit.failed(&io(libc::ESTALE), 15));
        limit.failed(&io(libc::EIO), 15);
        assert_eq!(limit.current(), 16, "three are no storm, and EIO says nothing about load");
        limit.failed(&io(libc::ESTALE), 15);
        assert_eq!(limit.current(), 8);
    }
}
