//! The accounts of an epoch. Every planned sample ends as exactly one of delivered, replaced or skipped.

use serde::{Deserialize, Serialize};

use crate::{Epoch, Error, Result};

/// What became of the samples planned so far in one epoch, on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Books {
    /// Samples that the plan put into the batches handed over so far.
    pub planned: u64,
    /// Handed over as planned.
    pub delivered: u64,
    /// Handed over as a substitute.
    pub replaced: u64,
    /// Left out.
    pub skipped: u64,
    /// Of the planned ones: repetitions that keep all ranks at equal steps.
    #[serde(default)]
    pub padded: u64,
}

impl Books {
    /// Samples that failed: replaced or skipped.
    pub fn failed(&self) -> u64 {
        self.replaced + self.skipped
    }

    /// Adds another account to this one.
    pub fn add(&mut self, other: Books) {
        self.planned += other.planned;
        self.delivered += other.delivered;
        self.replaced += other.replaced;
        self.skipped += other.skipped;
        self.padded += other.padded;
    }

    /// Promise 1: an epoch that does not balance is a bug, and says so.
    pub fn check(&self, epoch: Epoch, expected_planned: u64) -> Result<()> {
        let balanced = self.planned == self.delivered + self.replaced + self.skipped;
        if balanced && self.planned == expected_planned {
            return Ok(());
        }
        Err(Error::internal(format!(
            "the books of epoch {epoch} do not balance (expected {expected_planned} planned): {self}"
        )))
    }
}

impl std::fmt::Display for Books {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { planned, delivered, replaced, skipped, padded } = self;
        write!(f, "planned {planned} = delivered {delivered} + replaced {replaced} + skipped {skipped}")?;
        if *padded > 0 { write!(f, " ({padded} of them padding)") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balance_is_checked_and_said() {
        let books = Books { planned: 600, delivered: 588, replaced: 12, ..Books::default() };
        assert_eq!(books.to_string(), "planned 600 = delivered 588 + replaced 12 + skipped 0");
        assert!(books.check(Epoch(0), 600).is_ok());
        assert!(books.check(Epoch(0), 601).is_err());
        assert!(Books { delivered: 587, ..books }.check(Epoch(0), 600).is_err());
    }
}
