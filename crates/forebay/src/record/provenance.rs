//! What took the place of planned samples: what this process delivered, and what the ledger tells of earlier runs and
//! of other ranks. Nothing is kept of samples that were delivered as planned.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::{
    Epoch, EpochOrder, Error, Failure, Field, Kind, Locator, Outcome, Place, Plan, PlannedBatch, REGISTRY, SampleId,
};

use crate::source::Dataset;

/// What became of a planned sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was delivered, or will be.
    Planned,
    /// Another one was delivered in its place.
    Replaced(SampleId),
    /// It was left out.
    Skipped,
}

/// A fate and the kind of error that led to it, in one word: a ledger may hold millions of them.
#[derive(Clone, Copy, Debug)]
struct Entry(u64);

impl Entry {
    const SKIPPED: u64 = u64::MAX >> 8;
    const PLANNED: u64 = Self::SKIPPED - 1;

    fn new(fate: Fate, kind: Kind) -> Self {
        let word = match fate {
            Fate::Planned => Self::PLANNED,
            Fate::Replaced(sample) => sample.0,
            Fate::Skipped => Self::SKIPPED,
        };
        Self(word << 8 | kind as u64)
    }

    fn fate(self) -> Fate {
        match self.0 >> 8 {
            Self::PLANNED => Fate::Planned,
            Self::SKIPPED => Fate::Skipped,
            sample => Fate::Replaced(SampleId(sample)),
        }
    }

    fn kind(self) -> Kind {
        REGISTRY[(self.0 & 0xff) as usize].kind
    }
}

/// Entries by epoch and position.
#[derive(Debug, Default)]
struct Entries(BTreeMap<u64, BTreeMap<u64, Entry>>);

impl Entries {
    fn get(&self, epoch: Epoch, position: u64) -> Option<Entry> {
        self.0.get(&epoch.0)?.get(&position).copied()
    }

    fn insert(&mut self, epoch: Epoch, position: u64, entry: Entry) {
        self.0.entry(epoch.0).or_default().insert(position, entry);
    }
}

/// What took the place of planned samples of one plan.
pub(crate) struct Provenance {
    plan: Plan,
    dataset: Arc<dyn Dataset>,
    /// The order of the epoch looked at last: lines come epoch by epoch.
    order: Option<(Epoch, EpochOrder)>,
    /// Of what this process delivered itself. It is believed before the ledger, which may tell of an earlier time.
    own: Entries,
    ledger: Entries,
}

impl std::fmt::Debug for Provenance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provenance").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Provenance {
    pub(crate) fn new(plan: &Plan, dataset: &Arc<dyn Dataset>) -> Self {
        let (plan, dataset) = (plan.clone(), Arc::clone(dataset));
        Self { plan, dataset, order: None, own: Entries::default(), ledger: Entries::default() }
    }

    /// Takes over a line of the ledger. Those of other datasets and other orders are passed over: the plan wants this
    /// index at this position, and it is this path, or the line is not about this plan. A later line counts more.
    pub(crate) fn learn(&mut self, failure: &Failure) {
        let Some(entry) = entry_of(failure) else { return };
        if matches!(entry.fate(), Fate::Replaced(substitute) if substitute.0 >= self.plan.sample_count()) {
            return;
        }
        let (epoch, position, sample) = (Epoch(failure.epoch), failure.position, SampleId(failure.index));
        if sample.0 >= self.plan.sample_count() || self.planned(epoch, position) != sample {
            return;
        }
        let (name, fields) = (failure.name(), self.dataset.field_count_of(sample));
        if (0..fields).any(|field| name == self.dataset.name(sample, Field(field))) {
            // Delivered as planned after all, unless nothing is known that this would end.
            if entry.fate() != Fate::Planned || self.ledger.get(epoch, position).is_some() {
                self.ledger.insert(epoch, position, entry);
            }
        }
    }

    fn planned(&mut self, epoch: Epoch, position: u64) -> SampleId {
        let plan = &self.plan;
        let order = match self.order.take() {
            Some((known, order)) if known == epoch => order,
            _ => plan.epoch_order(epoch),
        };
        let sample = plan.sample_at(&order, position);
        self.order = Some((epoch, order));
        sample
    }

    /// Takes over what a batch of the plan came to. Gives a line for each sample that the ledger has as replaced or
    /// skipped and that was delivered as planned this time, without which the next process would believe the old line.
    pub(crate) fn delivered(&mut self, batch: &PlannedBatch, failures: &[Failure]) -> Vec<Failure> {
        let mut corrections = Vec::new();
        let is_unknown = |entries: &Entries| !entries.0.contains_key(&batch.epoch.0);
        if failures.is_empty() && is_unknown(&self.own) && is_unknown(&self.ledger) {
            return corrections; // almost always
        }
        for place in &batch.places {
            let (own, ledger) =
                (self.own.get(batch.epoch, place.position), self.ledger.get(batch.epoch, place.position));
            // Both are in planned order.
            let failure = failures.binary_search_by_key(&place.position, |failure| failure.position);
            match (failure.ok().and_then(|at| entry_of(&failures[at])), own.or(ledger)) {
                // A line of its own says that it recovered.
                (Some(entry), known) if entry.fate() != Fate::Planned || known.is_some() => {
                    self.own.insert(batch.epoch, place.position, entry);
                }
                (None, Some(known)) if known.fate() != Fate::Planned => {
                    self.own.insert(batch.epoch, place.position, Entry::new(Fate::Planned, known.kind()));
                    corrections.push(self.correction(batch, place, known.kind()));
                }
                _ => {}
            }
        }
        corrections
    }

    fn correction(&self, batch: &PlannedBatch, place: &Place, kind: Kind) -> Failure {
        let mut locator = Locator::default();
        self.dataset.locate(place.sample, Field(0), &mut locator);
        let path = locator.name();
        let error = Error::new(kind, "was replaced or skipped here before, and is delivered as planned now")
            .with_hint("nothing has to be done: it can be read again")
            .at_path(&path)
            .at_index(place.sample.0);
        Failure {
            epoch: batch.epoch.0,
            step: batch.step.0,
            position: place.position,
            ..Failure::of(&error, &path, Outcome::Recovered).located(&locator)
        }
    }

    /// What became of a sample of the plan, or will as far as is known.
    pub(crate) fn fate(&self, epoch: Epoch, place: &Place) -> Fate {
        let known = self.own.get(epoch, place.position).or_else(|| self.ledger.get(epoch, place.position));
        known.map_or(Fate::Planned, Entry::fate)
    }
}

/// What a line says about who was delivered; `None` where it says nothing.
fn entry_of(failure: &Failure) -> Option<Entry> {
    let fate = match failure.outcome {
        Outcome::Replaced => Fate::Replaced(SampleId(failure.substitute.filter(|&sample| sample < Entry::PLANNED)?)),
        Outcome::Skipped => Fate::Skipped,
        Outcome::Recovered => Fate::Planned,
        Outcome::Raised | Outcome::Stalled => return None,
    };
    Some(Entry::new(fate, Kind::from_slug(&failure.code).unwrap_or(Kind::Internal)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::{DatasetIdentity, OrderKind, Origin, Rank, Step, WorldSize};
    use std::path::Path;

    struct Numbers(&'static str);

    impl Dataset for Numbers {
        fn len(&self) -> u64 {
            100
        }
        fn locate(&self, sample: SampleId, _field: Field, locator: &mut Locator) {
            *locator = Locator::whole(Path::new(self.0).join(sample.to_string()));
        }
        fn identity(&self) -> DatasetIdentity {
            unreachable!("nothing here resumes")
        }
    }

    fn plan(seed: u64) -> Plan {
        Plan { len: 100, batch_size: 8, world_size: WorldSize(3), order: OrderKind::Global, drop_last: false, seed }
    }

    fn provenance(root: &'static str, seed: u64) -> Provenance {
        Provenance::new(&plan(seed), &(Arc::new(Numbers(root)) as Arc<dyn Dataset>))
    }

    fn batch(step: u64) -> PlannedBatch {
        plan(1).batch(Epoch(2), Origin::default(), Step(step), Rank(2)).unwrap()
    }

    fn line(place: &Place, outcome: Outcome, substitute: Option<u64>) -> Failure {
        let error = Error::new(Kind::Corrupt, "is bad").at_index(place.sample.0);
        let failure = Failure::of(&error, &Numbers("/a").path(place.sample), outcome);
        Failure { epoch: 2, position: place.position, substitute, ..failure }
    }

    #[test]
    fn the_last_line_of_this_dataset_and_order_counts() {
        // The last step is padded: its positions go beyond the dataset.
        for place in [batch(1).places[3], *batch(4).places.last().unwrap()] {
            let replaced = |by| line(&place, Outcome::Replaced, Some(by));
            let fate_after = |root, seed, lines: &[Failure]| {
                let mut provenance = provenance(root, seed);
                lines.iter().for_each(|line| provenance.learn(line));
                provenance.fate(Epoch(2), &place)
            };
            assert_eq!(fate_after("/a", 1, &[replaced(5), replaced(6)]), Fate::Replaced(SampleId(6)));
            assert_eq!(fate_after("/a", 1, &[replaced(5), line(&place, Outcome::Skipped, None)]), Fate::Skipped);
            assert_eq!(fate_after("/a", 1, &[replaced(5), line(&place, Outcome::Recovered, None)]), Fate::Planned);
            for silent in [Outcome::Raised, Outcome::Stalled] {
                assert_eq!(
                    fate_after("/a", 1, &[replaced(5), line(&place, silent, None)]),
                    Fate::Replaced(SampleId(5))
                );
            }
            assert_eq!(fate_after("/other", 1, &[replaced(5)]), Fate::Planned);
            assert_eq!(fate_after("/a", 7, &[replaced(5)]), Fate::Planned, "another seed, another order");
            assert_eq!(fate_after("/a", 1, &[replaced(100)]), Fate::Planned, "there is no such sample");
            assert_eq!(fate_after("/a", 1, &[Failure { index: u64::MAX, ..replaced(5) }]), Fate::Planned);
        }
    }

    #[test]
    fn what_this_process_delivered_is_believed_and_the_ledger_is_corrected_once() {
        let mut provenance = provenance("/a", 1);
        let batch = batch(0);
        let [first, second, third] = [batch.places[0], batch.places[1], batch.places[2]];
        provenance.learn(&line(&first, Outcome::Replaced, Some(5)));
        provenance.learn(&line(&second, Outcome::Skipped, None));
        // This time: the second one after a retry, which has its line, and the third one is bad.
        let failures = [line(&second, Outcome::Recovered, None), line(&third, Outcome::Replaced, Some(9))];
        let corrections = provenance.delivered(&batch, &failures);
        let written: Vec<_> = corrections.iter().map(|line| (line.position, line.index, line.outcome)).collect();
        assert_eq!(written, [(first.position, first.sample.0, Outcome::Recovered)]);
        assert_eq!(corrections[0].code, "corrupt");
        let fates = [first, second, third].map(|place| provenance.fate(Epoch(2), &place));
        assert_eq!(fates, [Fate::Planned, Fate::Planned, Fate::Replaced(SampleId(9))]);
        provenance.learn(&line(&first, Outcome::Replaced, Some(5))); // read again, or late
        assert_eq!(provenance.fate(Epoch(2), &first), Fate::Planned);
        assert!(provenance.delivered(&batch, &failures).is_empty());
        // Without a failure, the third one is corrected, too.
        assert_eq!(provenance.delivered(&batch, &[]).len(), 1);
        assert_eq!(provenance.fate(Epoch(2), &third), Fate::Planned);
    }
}
