//! The number of concurrent reads: more while that raises throughput, fewer when it only raises latency.
//!
//! It climbs in steps: after a step up it climbs further if throughput has risen, and steps back if not. When latency doubles,
//! it steps down, and further down as long as throughput does not fall. Between steps it rests, longer each time that a step up
//! did not pay.
//!
//! Storage that asks for less load (throttling) is obeyed at once: the limit is halved, and then grows by one for each round of
//! reads that succeed.

use std::time::Duration;

use forebay_core::{Error, Kind};

/// The least number of reads in a window: fewer are no measure of latency.
const MIN_WINDOW: u32 = 32;
/// This many stale handles within a window mean that the server is restarting, and should get less load.
const STORM: u32 = 4;
/// A step has paid when the throughput has changed by this fraction of it. Idle storage gives all of a step, saturated storage
/// nothing.
const MIN_GAIN: f64 = 0.3;
/// Faster reads come from memory: more of them at a time only take the processors from each other. A solid-state disk takes
/// longer.
const FROM_MEMORY: Duration = Duration::from_micros(50);
/// The most windows between two steps up.
const MAX_REST: u32 = 64;

/// What the limit does next.
#[derive(Clone, Copy, Debug)]
enum Move {
    /// Rests for this many windows before it steps up again.
    Rest(u32),
    /// Has stepped up or down from this limit, which had this throughput in reads per second.
    Step { from: usize, rate: f64 },
}

/// The limit of concurrent reads, adapted to the storage.
#[derive(Debug)]
pub struct ConcurrencyLimit {
    current: usize,
    floor: usize,
    ceiling: usize,
    moving: Move,
    /// How long the next rest will be.
    rest: u32,
    /// Latency at the start of the last rest.
    baseline_latency: Option<Duration>,
    reads: u32,
    total_latency: Duration,
    stale: u32,
    /// The storage has asked for less load: windows since then.
    throttled_windows: Option<u32>,
    /// Reads that began before the last halving: their complaints say nothing new.
    stale_complaints: usize,
    /// The limit was reached while the CPU threads waited for bytes: otherwise there is no reason to step.
    is_saturated: bool,
}

impl ConcurrencyLimit {
    /// Starts at `start`, and grows up to `ceiling`. If that is no more, latency does not change the limit.
    pub fn new(start: usize, ceiling: usize) -> Self {
        /// Fewer leave even a local disk idle. Not measured.
        const FLOOR: usize = 4;
        let is_fixed = ceiling <= start;
        Self {
            current: start,
            floor: if is_fixed { start } else { start.min(FLOOR) },
            ceiling: ceiling.max(start),
            moving: Move::Rest(0),
            rest: 1,
            baseline_latency: None,
            reads: 0,
            total_latency: Duration::ZERO,
            stale: 0,
            throttled_windows: None,
            stale_complaints: 0,
            is_saturated: false,
        }
    }

    /// The limit now.
    pub fn current(&self) -> usize {
        self.current
    }

    /// A read has started, and `reading` are in progress. `is_wanted` if a CPU thread waits for bytes.
    pub fn started(&mut self, reading: usize, is_wanted: bool) {
        self.is_saturated |= is_wanted && reading >= self.current;
    }

    /// A read has succeeded after `latency`.
    pub fn succeeded(&mut self, latency: Duration) {
        self.reads += 1;
        self.total_latency += latency;
        self.stale_complaints = self.stale_complaints.saturating_sub(1);
        let window = match self.throttled_windows {
            Some(_) => self.current as u32,
            None => MIN_WINDOW.max(2 * self.current as u32),
        };
        if self.reads >= window {
            self.judge();
        }
    }

    /// At the end of a window without complaints, after there were some: one more, if the limit was reached.
    fn recover_from_throttling(&mut self, windows: u32, is_saturated: bool) {
        /// After this many windows complaints are forgotten, and latency decides again.
        const MAX_WINDOWS: u32 = 256;
        self.current = (self.current + usize::from(is_saturated)).min(self.ceiling);
        let is_over = self.current == self.ceiling || windows >= MAX_WINDOWS;
        self.throttled_windows = if is_over { None } else { Some(windows + 1) };
        (self.baseline_latency, self.moving) = (None, Move::Rest(self.rest));
    }

    /// At the end of a window. By Little's law the throughput is the number of concurrent reads divided by latency.
    fn judge(&mut self) {
        let latency = self.total_latency / self.reads;
        let is_saturated = self.is_saturated;
        self.reset_window();
        if let Some(windows) = self.throttled_windows {
            return self.recover_from_throttling(windows, is_saturated);
        }
        if self.current < self.floor {
            self.current += 1; // exhausted resources may be back
            return;
        }
        if !is_saturated {
            return;
        }
        let rate = self.current as f64 / latency.as_secs_f64().max(1e-9);
        let is_slow = self.baseline_latency.is_some_and(|baseline_latency| latency > 2 * baseline_latency);
        match self.moving {
            Move::Step { from, rate: before } => {
                let step = self.current as f64 / from as f64 - 1.0;
                let pays = rate / before - 1.0 >= MIN_GAIN * step;
                if !pays {
                    let expected = latency.mul_f64(from as f64 / self.current as f64);
                    self.current = from;
                    self.rest_at(expected);
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
        self.step(if latency < FROM_MEMORY { self.current } else { next }, rate, latency);
    }

    fn step_down(&mut self, rate: f64, latency: Duration) {
        let next = (self.current * 3 / 4).max(self.floor);
        self.step(next, rate, latency);
    }

    fn step(&mut self, next: usize, rate: f64, latency: Duration) {
        if next == self.current {
            return self.rest_at(latency);
        }
        if let Move::Step { .. } = self.moving {
            self.rest = 1; // the last step paid
        }
        self.moving = Move::Step { from: self.current, rate };
        self.current = next;
    }

    fn rest_at(&mut self, latency: Duration) {
        self.moving = Move::Rest(self.rest);
        self.rest = (2 * self.rest).min(MAX_REST);
        self.baseline_latency = Some(latency);
    }

    fn reset_window(&mut self) {
        (self.reads, self.total_latency, self.stale, self.is_saturated) = (0, Duration::ZERO, 0, false);
    }

    /// A read has failed, and `reading` are still in progress.
    pub fn failed(&mut self, error: &Error, reading: usize) {
        let less = if error.kind() == Kind::Exhausted && error.is_transient() {
            // The reads in progress are what the descriptors of this process allow.
            self.current.min(reading.max(1))
        } else if error.is_throttled() {
            if self.stale_complaints > 0 {
                self.stale_complaints -= 1;
                return;
            }
            (self.throttled_windows, self.stale_complaints) = (Some(0), reading);
            (self.current / 2).max(1)
        } else if error.is_stale() {
            self.stale += 1;
            if self.stale < STORM.max(self.reads / 4) {
                return;
            }
            (self.current / 2).max(1)
        } else {
            return;
        };
        (self.current, self.moving) = (less, Move::Rest(self.rest));
        self.reset_window();
    }

    /// No more threads than these could be started.
    pub fn set_ceiling(&mut self, threads: usize) {
        self.ceiling = threads.max(1);
        (self.current, self.floor) = (self.current.min(self.ceiling), self.floor.min(self.ceiling));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Storage that answers `capacity` reads at a time, each within `latency`, and queues the others.
    fn load(limit: &mut ConcurrencyLimit, capacity: f64, latency: Duration, reads: usize, demand: usize) {
        for _ in 0..reads {
            let reading = limit.current().min(demand);
            limit.started(reading, true);
            limit.succeeded(latency.mul_f64((reading as f64 / capacity).max(1.0)));
        }
    }

    const LATENCY: Duration = Duration::from_millis(50);

    #[test]
    fn grows_to_what_the_storage_can_do_at_a_time_and_not_far_beyond() {
        let mut limit = ConcurrencyLimit::new(4, 64);
        load(&mut limit, 20.0, LATENCY, 5_000, 1_000);
        assert!((20..=30).contains(&limit.current()), "{}", limit.current());
        load(&mut limit, 1_000.0, LATENCY, 50_000, 1_000);
        assert_eq!(limit.current(), 64, "and never beyond its ceiling");
    }

    #[test]
    fn does_not_grow_while_reads_come_from_memory() {
        let mut limit = ConcurrencyLimit::new(4, 64);
        load(&mut limit, 1_000.0, FROM_MEMORY / 2, 50_000, 1_000);
        assert_eq!(limit.current(), 4);
        load(&mut limit, 1_000.0, FROM_MEMORY, 50_000, 1_000);
        assert_eq!(limit.current(), 64, "and does where they come from a disk");
    }

    #[test]
    fn shrinks_when_the_storage_becomes_slower_and_comes_back() {
        let mut limit = ConcurrencyLimit::new(4, 64);
        load(&mut limit, 40.0, LATENCY, 5_000, 1_000);
        let before = limit.current();
        load(&mut limit, 5.0, LATENCY, 1_000, 1_000);
        assert!(limit.current() <= 12 && limit.current() >= 4, "{}", limit.current());
        load(&mut limit, 40.0, LATENCY, 20_000, 1_000);
        assert!(limit.current() >= before * 3 / 4, "{} instead of {before}", limit.current());
    }

    #[test]
    fn does_not_grow_without_demand_or_beyond_a_fixed_number() {
        let mut limit = ConcurrencyLimit::new(4, 64);
        load(&mut limit, 100.0, LATENCY, 5_000, 3);
        assert_eq!(limit.current(), 4);
        for _ in 0..5_000 {
            limit.started(4, false);
            limit.succeeded(LATENCY);
        }
        assert_eq!(limit.current(), 4, "decoding is what takes the time");
        let mut fixed = ConcurrencyLimit::new(8, 8);
        load(&mut fixed, 100.0, LATENCY, 5_000, 1_000);
        load(&mut fixed, 2.0, LATENCY, 5_000, 1_000);
        assert_eq!(fixed.current(), 8);
    }

    #[test]
    fn complaints_halve_it_once_a_round_and_then_it_grows_one_by_one() {
        let busy = || Error::new(Kind::Unavailable, "SlowDown").throttled(None);
        let mut limit = ConcurrencyLimit::new(64, 256);
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
        assert_eq!((limit.current(), limit.throttled_windows), (256, None));
        let mut idle = ConcurrencyLimit::new(64, 256);
        idle.failed(&busy(), 0);
        load(&mut idle, 1_000.0, LATENCY, 10_000, 3);
        assert_eq!(idle.current(), 32, "not where nobody wants more");
    }

    #[test]
    fn running_out_and_storms_of_stale_handles_shrink_it_at_once() {
        let io = |errno| Error::io("read", std::io::Error::from_raw_os_error(errno));
        let mut limit = ConcurrencyLimit::new(16, 64);
        limit.failed(&io(libc::EMFILE), 5);
        assert_eq!(limit.current(), 5);
        limit.failed(&io(libc::EMFILE), 0);
        assert_eq!(limit.current(), 1, "below the floor, because more cannot be had");
        load(&mut limit, 100.0, LATENCY, 200, 1_000);
        assert!(limit.current() > 4, "and back: {}", limit.current());
        let mut limit = ConcurrencyLimit::new(16, 64);
        (0..3).for_each(|_| limit.failed(&io(libc::ESTALE), 15));
        limit.failed(&io(libc::EIO), 15);
        assert_eq!(limit.current(), 16, "three are no storm, and EIO says nothing about load");
        limit.failed(&io(libc::ESTALE), 15);
        assert_eq!(limit.current(), 8);
    }
}
