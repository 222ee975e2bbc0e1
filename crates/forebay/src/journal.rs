//! What a loader remembers of its failures and books, over all epochs, and writes to the ledger.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_core::{Books, Config, Epoch, Error, Failure, Result};
use forebay_store::LedgerFile;

use crate::recover::Quarantine;

/// Failures kept in memory; older ones are in the ledger only. 100,000 of them are some 50 MB.
const MAX_REMEMBERED: usize = 100_000;
/// Epochs whose books are kept.
const MAX_EPOCHS: usize = 10_000;

/// The memory of a loader.
#[derive(Debug)]
pub(crate) struct Journal {
    ledger: Option<LedgerFile>,
    pages: Mutex<Pages>,
}

/// What is in the journal.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pub(crate) failures: VecDeque<Failure>,
    /// Failures no longer remembered.
    pub(crate) forgotten: u64,
    pub(crate) epochs: VecDeque<(Epoch, Books)>,
    /// Why the ledger could not be written, once.
    pub(crate) ledger_error: Option<Error>,
}

impl Journal {
    /// Opens the ledger, if there is to be one, with the quarantine that it holds.
    pub(crate) fn open(config: &Config) -> Result<(Self, Quarantine)> {
        let (ledger, quarantine) = match &config.ledger {
            Some(path) => {
                let known = LedgerFile::read(path)?;
                (Some(LedgerFile::open(path)?), Quarantine::of(&known))
            }
            None => (None, Quarantine::default()),
        };
        Ok((Self { ledger, pages: Mutex::default() }, quarantine))
    }

    pub(crate) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the failures of a batch. A ledger that cannot be written does not stop the run: what it would have
    /// held is remembered, and the trouble is reported once.
    pub(crate) fn enter(&self, failures: Vec<Failure>) {
        if failures.is_empty() {
            return;
        }
        let written = self.ledger.as_ref().map_or(Ok(()), |ledger| ledger.append(&failures));
        let mut pages = self.pages();
        if let Err(error) = written {
            pages.ledger_error.get_or_insert(error);
        }
        pages.failures.extend(failures);
        while pages.failures.len() > MAX_REMEMBERED {
            pages.failures.pop_front();
            pages.forgotten += 1;
        }
    }

    /// The books of an epoch, as they stand now.
    pub(crate) fn set_books(&self, epoch: Epoch, books: Books) {
        let mut pages = self.pages();
        // From the back, where it almost always is.
        match pages.epochs.iter_mut().rev().find(|(known, _)| *known == epoch) {
            Some((_, entry)) => *entry = books,
            None => pages.epochs.push_back((epoch, books)),
        }
        if pages.epochs.len() > MAX_EPOCHS {
            pages.epochs.pop_front();
        }
    }
}
