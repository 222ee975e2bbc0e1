//! What a run is waiting for, as seen by another thread: on a long wait, or on a signal.
//! Reads the work queue and files of the kernel, never the storage itself.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Failure, Kind, Outcome, Stage};
use forebay_store::{MountState, MountTable, Site};

use crate::engine::item::InFlight;
use crate::engine::work_queue::WorkQueue;
use crate::loader::deliver::Progress;

/// How many items a sentence names, the oldest first.
const SHOWN: usize = 3;

/// A handle to a [`crate::Run`] for other threads: shows what is in flight, and can interrupt it.
#[derive(Clone)]
pub struct Watch {
    pub(crate) queue: Arc<WorkQueue>,
    pub(crate) site: Arc<Site>,
}

impl Watch {
    /// As [`crate::Run::in_flight`].
    pub fn in_flight(&self) -> Vec<InFlight> {
        let table = MountTable::read();
        let mount = |item: &InFlight| self.site.mount(table.as_ref()?, &item.path);
        let located = |item: InFlight| InFlight { mount: mount(&item), ..item };
        self.queue.in_flight().into_iter().map(located).collect()
    }

    /// What is in flight, longest first, with its mounts and what waits for them, as a phrase.
    pub fn in_words(&self) -> String {
        let items = self.in_flight();
        let mut words: Vec<_> = lines(&items[..items.len().min(SHOWN)]);
        if items.len() > SHOWN {
            words.push(format!("and {} more", items.len() - SHOWN));
        }
        let mut phrase = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
        if let Some(readers) = self.readers_in_words() {
            let _infallible = write!(phrase, "; {readers}");
        }
        phrase
    }

    /// All that is in flight, a line each, and the reader processes.
    pub(crate) fn in_lines(&self) -> Vec<String> {
        let items = lines(&self.in_flight());
        let nothing = items.is_empty().then(|| "nothing is in flight".to_owned());
        items.into_iter().chain(nothing).chain(self.readers_in_words()).collect()
    }

    fn readers_in_words(&self) -> Option<String> {
        let readers = self.queue.context.source.store.readers()?;
        Some(format!("reader processes: {} alive, {} lost", readers.alive, readers.lost))
    }

    /// Ends the wait of a run that is in [`crate::Run::poll`] now, with an error of kind [`Kind::Stopped`].
    pub fn interrupt(&self) {
        self.queue.stop();
    }

    /// The line of the ledger for a loop that has waited this long.
    pub(crate) fn stall(&self, progress: &Progress, waited: Duration, unix_seconds: f64) -> Failure {
        let items = self.in_flight();
        let (step, seconds) = (progress.at.step, waited.as_secs_f64());
        let error = match items.first() {
            Some(item) => {
                let what = format!("is the oldest in flight while the loop has waited {seconds:.1} s for step {step}");
                let error = Error::new(Kind::Timeout, what).at_path(&item.path).at_index(item.sample.0);
                let error = error.at_stage(item.stage).after(item.attempt, item.elapsed);
                if item.stage == Stage::Fetch {
                    error
                } else {
                    error.with_hint("decoding or a transform takes long: see stats() for where time goes")
                }
            }
            None => Error::new(
                Kind::Timeout,
                format!("the loop has waited {seconds:.1} s for step {step}: nothing is in flight"),
            ),
        };
        let path = items.first().map(|item| item.path.clone()).unwrap_or_default();
        Failure {
            epoch: progress.epoch.0,
            step: step.0,
            position: progress.at.position,
            rank: self.queue.context.config.rank.0,
            detail: Some(format!("in flight: {}", self.in_words())),
            unix_seconds,
            ..Failure::of(&error, &path, Outcome::Stalled)
        }
    }
}

/// One text for each item: what it is, and how the mount fares that it lies on.
fn lines(items: &[InFlight]) -> Vec<String> {
    let table = MountTable::read();
    let mut states: Vec<MountState> = Vec::new();
    let mut line = |item: &InFlight| {
        let (Some(mount), Some(table)) = (&item.mount, &table) else { return item.to_string() };
        let at = states.iter().position(|state| state.mount == *mount).unwrap_or_else(|| {
            states.push(MountState::of(table, mount.clone()));
            states.len() - 1
        });
        format!("{item} on {}", states[at])
    };
    items.iter().map(&mut line).collect()
}
