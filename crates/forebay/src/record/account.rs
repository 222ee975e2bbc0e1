//! The books of one pass over an epoch whose batches another scheduler makes: the passes over datasets in Python. The
//! engine's own passes keep theirs in `deliver`, with the same books, the same limit and the same journal.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{Books, Clock, Epoch, Failure, FailureLimit, Rank, Result, SystemClock};

use crate::record::journal::Journal;

/// What one pass over an epoch has handed over so far, on one rank. Threads may share it.
#[derive(Debug)]
pub struct Account {
    journal: Arc<Journal>,
    epoch: Epoch,
    rank: Rank,
    limit: Option<FailureLimit>,
    books: Mutex<Books>,
    clock: SystemClock,
}

impl Account {
    /// Opens the books of a pass: with those of a state that it goes on from, or empty ones.
    pub fn open(journal: Arc<Journal>, epoch: Epoch, rank: Rank, limit: Option<FailureLimit>, books: Books) -> Self {
        Self { journal, epoch, rank, limit, books: Mutex::new(books), clock: SystemClock::default() }
    }

    /// Enters failures of a batch that is not handed over: one of them ends the iteration.
    pub fn enter(&self, failures: Vec<Failure>) {
        let (epoch, rank, unix_seconds) = (self.epoch.0, self.rank.0, self.clock.unix_seconds());
        let complete = |failure| Failure { epoch, rank, unix_seconds, ..failure };
        self.journal.enter(failures.into_iter().map(complete).collect());
    }

    /// Enters a batch that is handed over, with its failures, and gives the books after it. An error where more samples of
    /// the epoch failed than the limit allows: then the books stay as they were.
    pub fn hand_over(&self, batch: Books, failures: Vec<Failure>) -> Result<Books> {
        self.enter(failures);
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reached = *books;
        reached.add(batch);
        if let Some(limit) = &self.limit {
            self.journal.check_limit(limit, &reached)?;
        }
        *books = reached;
        self.journal.set_books(self.epoch, reached);
        Ok(reached)
    }

    /// Checks the books at the end of the epoch. `None` where the number of samples is not known, as of a stream.
    pub fn check(&self, expected_planned: Option<u64>) -> Result<()> {
        let books = *self.books.lock().unwrap_or_else(PoisonError::into_inner);
        books.check(self.epoch, expected_planned.unwrap_or(books.planned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::{Error, Kind, Outcome};
    use std::path::Path;
    use std::time::Duration;

    fn account(journal: &Arc<Journal>, epoch: u64, limit: FailureLimit, books: Books) -> Account {
        Account::open(Arc::clone(journal), Epoch(epoch), Rank(1), Some(limit), books)
    }

    fn failure() -> Failure {
        Failure::of(&Error::new(Kind::UserCode, "broke"), Path::new("dataset[3]"), Outcome::Replaced)
    }

    #[test]
    fn each_epoch_has_books_and_a_limit_of_its_own() {
        let journal = Arc::new(Journal::open(None, Duration::from_secs(1)).unwrap());
        let batch = Books { planned: 4, delivered: 3, replaced: 1, ..Books::default() };
        for epoch in 0..3 {
            let account = account(&journal, epoch, FailureLimit::Count(1), Books::default());
            assert_eq!(account.hand_over(batch, vec![failure()]).unwrap(), batch);
            account.check(Some(4)).unwrap();
        }
        let resumed = account(&journal, 3, FailureLimit::Count(1), batch);
        let error = resumed.hand_over(batch, vec![failure()]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "2 of the first 8 samples of this epoch failed (max_failures allows 1)",
            "a state brings its books along"
        );
        let known: Vec<_> = journal.failures().iter().map(|failure| (failure.epoch, failure.rank)).collect();
        assert_eq!(known, [(0, 1), (1, 1), (2, 1), (3, 1)]);
        assert_eq!(journal.books().len(), 3);
    }

    #[test]
    fn a_sample_that_is_lost_is_an_internal_error() {
        let journal = Arc::new(Journal::open(None, Duration::from_secs(1)).unwrap());
        let account = account(&journal, 0, FailureLimit::Fraction(1.0), Books::default());
        account.hand_over(Books { planned: 4, delivered: 3, ..Books::default() }, Vec::new()).unwrap();
        let error = account.check(None).unwrap_err();
        assert_eq!(error.kind(), Kind::Internal);
        assert!(error.to_string().contains("the books of epoch 0 do not balance"), "{error}");
    }
}
