//! How far batches are made ahead of the loop. One that takes much longer with a batch than the batch took to make needs
//! one in advance: a second would only wait, and have its memory. That is taken for granted until a batch comes late.

use std::time::Duration;

/// So many batches in a row have to be there in time, with time to spare, before fewer are made ahead.
const SURE: u32 = 8;
/// So many times as many, each time that it was too few.
const DOUBT: u32 = 4;
/// The loop's time with a batch over the time that the next one took.
const TO_SPARE: u32 = 2;

/// What is known of the loop.
#[derive(Debug)]
pub(super) struct Lead {
    /// Batches that were there when they were asked for, since the last that was not.
    in_time: u32,
    enough: u32,
    /// When the loop got its last batch.
    taken: Option<Duration>,
}

impl Default for Lead {
    fn default() -> Self {
        Self { in_time: SURE, enough: SURE, taken: None }
    }
}

impl Lead {
    /// Whether one batch ahead of the loop is enough. Not for its first one: what others hold of the memory may never come
    /// back, and nothing but a batch that is late tells.
    pub(super) fn is_ample(&self) -> bool {
        self.taken.is_some() && self.in_time >= self.enough
    }

    /// The loop asks for a batch, which was made in so much time, or is not there yet.
    pub(super) fn asked(&mut self, now: Duration, made_in: Option<Duration>) {
        // Every loop waits for its first batch.
        let Some(taken) = self.taken else { return };
        let with_last = now.saturating_sub(taken);
        match made_in {
            Some(made_in) if with_last >= made_in * TO_SPARE => self.in_time = self.in_time.saturating_add(1),
            Some(_) => self.in_time = 0,
            None => {
                if self.is_ample() {
                    self.enough = self.enough.saturating_mul(DOUBT);
                }
                self.in_time = 0;
            }
        }
    }

    /// The loop has its batch.
    pub(super) fn gave(&mut self, now: Duration) {
        self.taken = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Asks for `count` batches, each after `with_last`, made in 10 ms; gives whether one ahead is enough then.
    fn take(lead: &mut Lead, now: &mut Duration, count: u32, with_last: Duration) -> bool {
        for _ in 0..count {
            *now += with_last;
            lead.asked(*now, Some(ms(10)));
            lead.gave(*now);
        }
        lead.is_ample()
    }

    #[test]
    fn a_slow_loop_needs_one_batch_and_a_fast_one_all() {
        let (mut lead, mut now) = (Lead::default(), ms(0));
        lead.asked(now, None);
        assert!(!lead.is_ample());
        lead.gave(now);
        assert!(take(&mut lead, &mut now, 1, ms(20)), "nothing speaks against it");
        assert!(!take(&mut lead, &mut now, 1, ms(19)));
        assert!(!take(&mut lead, &mut now, SURE - 1, ms(20)));
        assert!(take(&mut lead, &mut now, 1, ms(20)));
        assert!(!take(&mut lead, &mut now, 1, ms(19)), "it is fast now");
        assert!(take(&mut lead, &mut now, SURE, ms(500)));
    }

    #[test]
    fn a_batch_that_was_not_there_makes_it_more_careful() {
        let (mut lead, mut now) = (Lead::default(), ms(0));
        assert!(take(&mut lead, &mut now, SURE + 1, ms(20)));
        for _ in 0..3 {
            lead.asked(now, None); // each look at one and the same
        }
        lead.gave(now);
        assert!(!take(&mut lead, &mut now, SURE * DOUBT - 1, ms(20)));
        assert!(take(&mut lead, &mut now, 1, ms(20)));
    }
}
