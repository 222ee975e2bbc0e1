//! What a loader remembers of its failures and books, over all epochs, and writes to the ledger.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::{Batch, Books, Config, Epoch, Failure, Plan, Result};
use forebay_store::LedgerFile;

use crate::ledger_writer::LedgerWriter;
use crate::provenance::Provenance;
use crate::recover::Quarantine;
use crate::source::Dataset;

/// Failures kept in memory; older ones are in the ledger only. 100,000 of them are some 50 MB.
const MAX_REMEMBERED: usize = 100_000;
/// Epochs whose books are kept.
const MAX_EPOCHS: usize = 10_000;

/// The memory of a loader.
#[derive(Debug)]
pub(crate) struct Journal {
    ledger: Option<LedgerWriter>,
    pages: Mutex<Pages>,
    /// What was delivered, as far as it is not the plan. Not held while the ledger is read, which may hang.
    provenance: Mutex<Provenance>,
    /// The ledger is known up to here. Held by whoever reads on.
    read_bytes: Mutex<u64>,
}

/// What is in the journal.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pub(crate) failures: VecDeque<Failure>,
    /// Failures no longer remembered.
    pub(crate) forgotten: u64,
    pub(crate) epochs: VecDeque<(Epoch, Books)>,
}

impl Journal {
    /// Opens the ledger, if there is to be one, with the quarantine that it holds.
    pub(crate) fn open(config: &Config, plan: &Plan, dataset: &Arc<dyn Dataset>) -> Result<(Self, Quarantine)> {
        let mut provenance = Provenance::new(plan, dataset);
        // Every epoch has a line of a file that is bad: only the last one counts.
        let mut bad = HashMap::new();
        let (ledger, read_bytes) = match &config.ledger {
            Some(path) => {
                let read = move |path: &Path| {
                    let read_bytes = LedgerFile::read_each(path, &mut |failure| {
                        provenance.learn(&failure);
                        if failure.is_permanent() {
                            bad.insert(failure.path(), failure);
                        }
                    })?;
                    Ok((provenance, bad, read_bytes))
                };
                let (writer, read) = LedgerWriter::open(path, config.retry.deadline, read)?;
                let read_bytes;
                (provenance, bad, read_bytes) = read;
                (Some(writer), read_bytes)
            }
            None => (None, 0),
        };
        let quarantine = Quarantine::of(&bad.into_values().collect::<Vec<_>>());
        let (provenance, read_bytes) = (Mutex::new(provenance), Mutex::new(read_bytes));
        Ok((Self { ledger, pages: Mutex::default(), provenance, read_bytes }, quarantine))
    }

    fn provenance(&self) -> MutexGuard<'_, Provenance> {
        self.provenance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers who was delivered with a batch of the plan.
    pub(crate) fn trace(&self, batch: &Batch, failures: &[Failure], rank: u32, unix_seconds: f64) {
        let corrections = self.provenance().delivered(batch, failures);
        let lines: Vec<_> = corrections.into_iter().map(|line| Failure { rank, unix_seconds, ..line }).collect();
        self.note(&lines);
    }

    /// Looks at what took the place of planned samples, with what other ranks have entered into the ledger so far.
    pub(crate) fn with_provenance<T>(&self, look: impl FnOnce(&Provenance) -> T) -> Result<T> {
        if let Some(ledger) = &self.ledger {
            let mut read_bytes = self.read_bytes.lock().unwrap_or_else(PoisonError::into_inner);
            *read_bytes = ledger.file().read_on(*read_bytes, &mut |failure| self.provenance().learn(&failure))?;
        }
        Ok(look(&self.provenance()))
    }

    /// Writes lines to the ledger that are no failures of this loader.
    pub(crate) fn note(&self, lines: &[Failure]) {
        self.ledger.iter().for_each(|ledger| ledger.append(lines));
    }

    /// Why the ledger lacks lines, if it does.
    pub(crate) fn ledger_trouble(&self) -> Option<String> {
        self.ledger.as_ref().and_then(LedgerWriter::trouble)
    }

    /// Waits a moment for lines of the ledger that were not written yet.
    pub(crate) fn flush(&self) {
        self.ledger.iter().for_each(LedgerWriter::flush);
    }

    pub(crate) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the failures of a batch. A ledger that cannot be written does not stop the run: its lines wait.
    pub(crate) fn enter(&self, failures: Vec<Failure>) {
        if failures.is_empty() {
            return;
        }
        self.note(&failures);
        let mut pages = self.pages();
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
