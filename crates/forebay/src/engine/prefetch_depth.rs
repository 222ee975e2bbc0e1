//! The prefetch depth. If a training step is much slower than making a batch, one batch is prefetched: a second would only wait,
//! and occupy memory. That is assumed until a batch is late.

use std::time::Duration;

/// Batches in a row that have to be in time before the depth shrinks to one.
const MIN_IN_TIME: u32 = 8;
/// That number is multiplied by this each time that a depth of one was not enough.
const BACKOFF_FACTOR: u32 = 4;
/// A batch is in time if the training step took this many times as long as making the batch.
const SLACK_FACTOR: u32 = 2;

/// The pace of the training loop, measured when it asks for batches.
#[derive(Debug)]
pub(super) struct PrefetchDepth {
    /// Batches in time since the last one that was late.
    in_time: u32,
    /// Batches in time that are needed for a depth of one.
    needed: u32,
    /// When the loop got its last batch.
    taken: Option<Duration>,
}

impl Default for PrefetchDepth {
    fn default() -> Self {
        Self { in_time: MIN_IN_TIME, needed: MIN_IN_TIME, taken: None }
    }
}

impl PrefetchDepth {
    /// Whether to prefetch one batch only. Not before the first batch is delivered: a depth of one waits for the memory of an
    /// earlier batch, which may never be released.
    pub(super) fn is_one_enough(&self) -> bool {
        self.taken.is_some() && self.in_time >= self.needed
    }

    /// The loop asks for a batch, which took `made_in` to make, or is not complete yet.
    pub(super) fn requested(&mut self, now: Duration, made_in: Option<Duration>) {
        // Every loop waits for its first batch.
        let Some(taken) = self.taken else { return };
        let with_last = now.saturating_sub(taken);
        match made_in {
            Some(made_in) if with_last >= made_in * SLACK_FACTOR => self.in_time = self.in_time.saturating_add(1),
            Some(_) => self.in_time = 0,
            None => {
                if self.is_one_enough() {
                    self.needed = self.needed.saturating_mul(BACKOFF_FACTOR);
                }
                self.in_time = 0;
            }
        }
    }

    /// The loop got its batch.
    pub(super) fn delivered(&mut self, now: Duration) {
        self.taken = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Asks for `count` batches, each after `with_last`, made in 10 ms; gives whether one is enough afterwards.
    fn take(depth: &mut PrefetchDepth, now: &mut Duration, count: u32, with_last: Duration) -> bool {
        for _ in 0..count {
            *now += with_last;
            depth.requested(*now, Some(ms(10)));
            depth.delivered(*now);
        }
        depth.is_one_enough()
    }

    #[test]
    fn a_slow_loop_needs_one_batch_and_a_fast_one_all() {
        let (mut depth, mut now) = (PrefetchDepth::default(), ms(0));
        depth.requested(now, None);
        assert!(!depth.is_one_enough());
        depth.delivered(now);
        assert!(take(&mut depth, &mut now, 1, ms(20)), "nothing speaks against it");
        assert!(!take(&mut depth, &mut now, 1, ms(19)));
        assert!(!take(&mut depth, &mut now, MIN_IN_TIME - 1, ms(20)));
        assert!(take(&mut depth, &mut now, 1, ms(20)));
        assert!(!take(&mut depth, &mut now, 1, ms(19)), "it is fast now");
        assert!(take(&mut depth, &mut now, MIN_IN_TIME, ms(500)));
    }

    #[test]
    fn a_batch_that_was_not_there_makes_it_more_careful() {
        let (mut depth, mut now) = (PrefetchDepth::default(), ms(0));
        assert!(take(&mut depth, &mut now, MIN_IN_TIME + 1, ms(20)));
        for _ in 0..3 {
            depth.requested(now, None); // each look at one and the same
        }
        depth.delivered(now);
        assert!(!take(&mut depth, &mut now, MIN_IN_TIME * BACKOFF_FACTOR - 1, ms(20)));
        assert!(take(&mut depth, &mut now, 1, ms(20)));
    }
}
