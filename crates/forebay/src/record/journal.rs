//! What a loader remembers of its failures and books, over all epochs, and writes to the ledger. The engine has one with a
//! provenance; the passes over a dataset in Python have one without, and enter what they hand over through an `Account`.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use forebay_core::{Books, Epoch, Failure, FailureLimit, PlannedBatch, Result, Wording, neutral, worded};
use forebay_store::LedgerFile;

use crate::record::ledger_writer::LedgerWriter;
use crate::record::provenance::Provenance;
use crate::record::report::{Report, Unit};

/// Failures kept in memory; older ones are in the ledger only. 100,000 of them are some 50 MB.
const MAX_REMEMBERED: usize = 100_000;
/// Epochs whose books are kept.
const MAX_EPOCHS: usize = 10_000;

/// The memory of a loader.
#[derive(Debug)]
pub struct Journal {
    /// Gone once it is closed.
    ledger: RwLock<Option<Arc<LedgerWriter>>>,
    pages: Mutex<Pages>,
    /// What was delivered, as far as it is not the plan; `None` where there is no plan. Not held while the ledger is read,
    /// which may hang.
    provenance: Option<Mutex<Provenance>>,
    /// The last line of each file that is permanently bad, where there is no engine that keeps its own quarantine.
    bad: Mutex<HashMap<PathBuf, Failure>>,
    /// The words of its hints.
    wording: Wording,
    /// The ledger is known up to here. Locked by the thread that reads further.
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
    /// Opens the ledger, if there is to be one, for samples that the engine does not make. A ledger that does not answer
    /// within `limit` is a wrong setting. The hints of what is entered are the front end's already.
    pub fn open(ledger: Option<&Path>, limit: Duration) -> Result<Self> {
        let (mut journal, bad) = Self::open_with(ledger, limit, None, neutral)?;
        journal.bad = Mutex::new(bad.into_iter().map(|failure| (failure.name(), failure)).collect());
        Ok(journal)
    }

    /// Opens the ledger for samples of a plan, with the last lines of the files that it says are permanently bad.
    pub(crate) fn open_with(
        ledger: Option<&Path>,
        limit: Duration,
        mut provenance: Option<Provenance>,
        wording: Wording,
    ) -> Result<(Self, Vec<Failure>)> {
        // Every epoch has a line of a file that is bad: only the last one counts.
        let mut bad = HashMap::new();
        let (ledger, read_bytes) = match ledger {
            Some(path) => {
                let read = move |path: &Path| {
                    let is_engine = provenance.is_some();
                    let read_bytes = LedgerFile::read_each(path, &mut |failure| {
                        provenance.iter_mut().for_each(|provenance| provenance.learn(&failure));
                        // What other code could not decode, the engine may.
                        if failure.is_permanent() && (!is_engine || failure.is_about_its_path()) {
                            bad.insert(failure.name(), failure);
                        }
                    })?;
                    Ok((provenance, bad, read_bytes))
                };
                let (writer, read) = LedgerWriter::open(path, limit, read)?;
                let read_bytes;
                (provenance, bad, read_bytes) = read;
                (Some(writer), read_bytes)
            }
            None => (None, 0),
        };
        let (provenance, read_bytes) = (provenance.map(Mutex::new), Mutex::new(read_bytes));
        let ledger = RwLock::new(ledger.map(Arc::new));
        let journal = Self { ledger, pages: Mutex::default(), provenance, bad: Mutex::default(), wording, read_bytes };
        Ok((journal, bad.into_values().collect()))
    }

    fn ledger(&self) -> Option<Arc<LedgerWriter>> {
        self.ledger.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn provenance(&self) -> Option<MutexGuard<'_, Provenance>> {
        self.provenance.as_ref().map(|known| known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Remembers who was delivered with a batch of the plan.
    pub(crate) fn trace(&self, batch: &PlannedBatch, failures: &[Failure], rank: u32, unix_seconds: f64) {
        let Some(mut provenance) = self.provenance() else { return };
        let corrections = provenance.delivered(batch, failures);
        drop(provenance);
        let lines: Vec<_> = corrections.into_iter().map(|line| Failure { rank, unix_seconds, ..line }).collect();
        self.note(&lines);
    }

    /// Looks at what took the place of planned samples, with what other ranks have entered into the ledger so far; `None`
    /// without a plan.
    pub(crate) fn with_provenance<T>(&self, look: impl FnOnce(&Provenance) -> T) -> Result<Option<T>> {
        if let Some(ledger) = self.ledger().filter(|_| self.provenance.is_some()) {
            let mut read_bytes = self.read_bytes.lock().unwrap_or_else(PoisonError::into_inner);
            *read_bytes = ledger.file().read_on(*read_bytes, &mut |failure| {
                self.provenance().iter_mut().for_each(|provenance| provenance.learn(&failure));
            })?;
        }
        Ok(self.provenance().map(|provenance| look(&provenance)))
    }

    /// Writes lines to the ledger that are no failures of this loader.
    pub(crate) fn note(&self, lines: &[Failure]) {
        let said = |line: &Failure| Failure { hint: worded(&line.hint, self.wording), ..line.clone() };
        self.append(&lines.iter().map(said).collect::<Vec<_>>());
    }

    fn append(&self, lines: &[Failure]) {
        self.ledger().iter().for_each(|ledger| ledger.append(lines));
    }

    /// Why the ledger lacks lines, if it does.
    pub fn ledger_trouble(&self) -> Option<String> {
        self.ledger()?.trouble()
    }

    /// Waits a moment for lines of the ledger that were not written yet.
    pub(crate) fn flush(&self) {
        self.ledger().iter().for_each(|ledger| ledger.flush());
    }

    /// Waits a moment for lines that were not written yet, and closes the file, unless lines still wait for it: then the
    /// thread that writes them, and the report that says so, keep it. What is entered afterwards is remembered only.
    pub fn close(&self) {
        self.flush();
        let mut ledger = self.ledger.write().unwrap_or_else(PoisonError::into_inner);
        if ledger.as_ref().is_some_and(|ledger| ledger.trouble().is_none()) {
            *ledger = None;
        }
    }

    pub(crate) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the failures of a batch. A ledger that cannot be written does not stop the run: its lines wait.
    pub fn enter(&self, mut failures: Vec<Failure>) {
        if failures.is_empty() {
            return;
        }
        failures.iter_mut().for_each(|failure| failure.hint = worded(&failure.hint, self.wording));
        self.append(&failures);
        if self.provenance.is_none() {
            let is_known = |failure: &&Failure| failure.is_permanent() && failure.mtime_ns.is_some();
            let known = failures.iter().filter(is_known).map(|failure| (failure.name(), failure.clone()));
            self.bad().extend(known);
        }
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
    /// Whether books are over the limit; the error that stops the run then names the newest failure.
    pub(crate) fn check_limit(&self, limit: &FailureLimit, books: &Books) -> Result<()> {
        limit.check(books).map_err(|error| {
            let pages = self.pages();
            match pages.failures.iter().rev().find(|failure| failure.outcome.is_failure()) {
                Some(failure) => error.with_detail(format!("the last one: {}", failure.message)),
                None => error,
            }
        })
    }

    fn bad(&self) -> MutexGuard<'_, HashMap<PathBuf, Failure>> {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last line of each file that is permanently bad: what [`crate::Retries`] takes.
    pub fn known_bad(&self) -> Vec<Failure> {
        self.bad().values().cloned().collect()
    }

    /// What failed so far, oldest first; the ledger has what is older than 100,000.
    pub fn failures(&self) -> Vec<Failure> {
        self.pages().failures.iter().cloned().collect()
    }

    /// The books of each epoch so far.
    pub fn books(&self) -> Vec<(Epoch, Books)> {
        self.pages().epochs.iter().copied().collect()
    }

    /// What failed, why, what to do, and the balance of each epoch: made to be printed.
    pub fn report(&self) -> Report {
        let ledger_error = self.ledger_trouble();
        let pages = self.pages();
        Report {
            failures: pages.failures.iter().cloned().collect(),
            forgotten: pages.forgotten,
            epochs: pages.epochs.iter().copied().collect(),
            ledger_error,
            unit: if self.provenance.is_some() { Unit::File } else { Unit::Sample },
            repaired: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::{Error, Kind, Outcome, Stage};

    fn failure(index: u64) -> Failure {
        let error = Error::new(Kind::Corrupt, "is bad").at_index(index).at_stage(Stage::Decode);
        Failure::of(&error, Path::new("cat/1.jpg"), Outcome::Replaced)
    }

    #[test]
    fn the_newest_failures_are_kept_and_the_others_counted() {
        let journal = Journal::open(None, Duration::from_secs(1)).unwrap();
        for first in (0..MAX_REMEMBERED as u64 + 500).step_by(500) {
            journal.enter((first..first + 500).map(failure).collect());
        }
        let kept = journal.failures();
        assert_eq!((kept.len(), kept[0].index), (MAX_REMEMBERED, 500));
        assert!(journal.report().to_string().contains("500 older failures are not remembered"));
    }

    #[test]
    fn what_other_code_could_not_decode_the_engine_tries_itself() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = folder.path().join("ledger.jsonl");
        let stat = |failure| Failure { size_bytes: Some(1), mtime_ns: Some(1), ..failure };
        let engines = Failure { message: "\"cat/1.jpg\" is bad".to_owned(), ..stat(failure(0)) };
        let pythons = Failure { message: "sample 0 failed in the dataset: OSError".to_owned(), ..stat(failure(0)) };
        let journal = Journal::open(Some(&ledger), Duration::from_secs(10)).unwrap();
        journal.enter(vec![engines.clone()]);
        journal.enter(vec![pythons.clone()]);
        assert_eq!(journal.known_bad(), std::slice::from_ref(&pythons), "the last line counts");
        let again = Journal::open(Some(&ledger), Duration::from_secs(10)).unwrap();
        assert_eq!(again.known_bad(), [pythons]);
        assert!(engines.is_about_its_path());
    }

    #[test]
    fn a_ledger_that_is_closed_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = folder.path().join("ledger.jsonl");
        let journal = Journal::open(Some(&ledger), Duration::from_secs(10)).unwrap();
        journal.enter(vec![failure(1)]);
        journal.close();
        journal.enter(vec![failure(2)]);
        assert_eq!(LedgerFile::read(&ledger).unwrap().len(), 1);
        assert_eq!(journal.failures().len(), 2);
    }

    #[test]
    fn a_run_that_stops_names_its_last_failure() {
        let journal = Journal::open(None, Duration::from_secs(1)).unwrap();
        journal.enter(vec![Failure { outcome: Outcome::Recovered, ..failure(7) }, failure(8)]);
        let books = Books { planned: 2, delivered: 1, replaced: 1, ..Books::default() };
        let error = journal.check_limit(&FailureLimit::Count(0), &books).unwrap_err();
        assert_eq!(error.kind(), Kind::TooManyFailures);
        assert!(error.detail().unwrap().starts_with("the last one: is bad"), "{error:?}");
    }
}
