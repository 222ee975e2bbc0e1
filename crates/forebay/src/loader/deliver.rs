//! Deliver: one pass over an epoch, in planned order. What is handed over here counts; what is prefetched does not.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_core::{
    Books, Clock, Epoch, Error, Failure, Kind, Locator, Origin, Outcome, PlannedBatch, Result, SampleId, Step,
};
use forebay_store::Site;

use crate::batch::assemble::{Batch, Receipt, compact, copy_apart};
use crate::batch::column;
use crate::diagnose::watch::Watch;
use crate::engine::item::{Assembly, Filled, GivenUp, InFlight, Item, Slot};
use crate::engine::work_queue::{NextBatch, WorkQueue};
use crate::loader::stream::{IdleStreams, Stream};
use crate::record::journal::Journal;

/// Where the consumer is. WorkQueue with the loader, whose `state()` reads it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) epoch: Epoch,
    /// Where the run entered the epoch.
    pub(crate) origin: Origin,
    /// How far it has come.
    pub(crate) at: Origin,
    pub(crate) books: Books,
    /// The run has neither ended nor been dropped.
    pub(crate) is_running: bool,
    /// A batch was asked for.
    pub(crate) is_asked: bool,
}

/// What [`Run::poll`] found.
#[derive(Debug)]
pub enum Next {
    /// The next batch in planned order.
    Batch(Batch),
    /// It is not complete yet, or all of it was skipped: ask again.
    Pending,
    /// The epoch is over, and its books balance.
    End,
}

/// One pass over an epoch.
///
/// If it is dropped before its end, its threads are stopped and joined. Prefetched batches are discarded without loss: the state
/// only counts what was delivered.
pub struct Run {
    pub(crate) stream: Option<Stream>,
    /// What the state says: the batches that were committed.
    pub(crate) progress: Arc<Mutex<Progress>>,
    /// Where it is with the last batch that [`Run::poll`] gave, committed or not.
    pub(crate) reached: Progress,
    pub(crate) journal: Arc<Journal>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) idle_streams: Arc<IdleStreams>,
    /// Where the samples lie.
    pub(crate) site: Arc<Site>,
    /// Steps still to deliver; `None` for a user's own order, which ends when it is closed.
    pub(crate) steps_left: Option<u64>,
    /// What the books must say in the end; not known for a user's own order.
    pub(crate) expected_planned: Option<u64>,
    /// When the consumer got its last batch, to measure how long it works on one.
    pub(crate) handed_over: Option<Duration>,
    /// When it asked for the next one, to measure how long it waits.
    pub(crate) asked: Option<Duration>,
}

impl Run {
    fn set_progress(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Marks a batch of [`Run::poll`] as delivered: from now on the state counts it, and all batches before it.
    ///
    /// Apart from `poll`, because what lies between them (collation, a copy to a device) may fail or be interrupted, and
    /// then the batch never reached the training loop; and because several may be on their way at a time.
    pub fn commit(&mut self, receipt: Receipt) {
        let Receipt(reached) = receipt;
        self.set_progress(reached);
        self.journal.set_books(reached.epoch, reached.books);
    }

    /// Whether another batch is planned, so that it can be asked for before the last one is the user's.
    pub fn is_more_planned(&self) -> bool {
        self.steps_left.is_some_and(|left| left > 0)
    }

    /// The next batch; waits for it up to `wait`, so that the caller can look at signals in between.
    ///
    /// After an error the run is over: every later call gives [`Next::End`].
    pub fn poll(&mut self, wait: Duration) -> Result<Next> {
        if !self.reached.is_asked {
            self.reached.is_asked = true;
            self.set_progress(self.reached);
        }
        let result = self.advance(wait);
        if result.is_err() {
            self.stream = None;
        }
        result
    }

    fn advance(&mut self, wait: Duration) -> Result<Next> {
        let Some(stream) = &self.stream else { return Ok(Next::End) };
        if stream.is_forked() {
            return Err(forked());
        }
        if self.steps_left == Some(0) {
            return self.finish();
        }
        let queue = Arc::clone(&stream.queue);
        let asked = *self.asked.get_or_insert_with(|| self.clock.now());
        if let Some(handed_over) = self.handed_over.take() {
            let working = asked.saturating_sub(handed_over).as_nanos() as u64;
            queue.context.meters.consumer_nanos.fetch_add(working, std::sync::atomic::Ordering::Relaxed);
        }
        match queue.take_batch(wait) {
            NextBatch::Batch(assembly) => {
                queue.context.meters.deliver.record(self.clock.now().saturating_sub(asked));
                self.asked = None;
                let batch = self.hand_over(&queue, *assembly)?;
                self.handed_over = Some(self.clock.now());
                // All of its samples were skipped: there is nothing to hand over. The giver of an order counts batches.
                let is_nothing = batch.is_empty() && self.steps_left.is_some();
                Ok(if is_nothing { Next::Pending } else { Next::Batch(batch) })
            }
            NextBatch::Pending => Ok(Next::Pending),
            NextBatch::Exhausted => self.finish(),
            NextBatch::Failed(error) => Err(error),
            NextBatch::Stopped => Err(Error::new(Kind::Stopped, "the loader was closed while it was iterated")),
        }
    }

    /// Checks the books, enters the next epoch, and leaves the stream where the next run finds it.
    fn finish(&mut self) -> Result<Next> {
        let Progress { epoch, books, .. } = self.reached;
        books.check(epoch, self.expected_planned.unwrap_or(books.planned))?;
        if books.planned > 0 {
            self.journal.set_books(epoch, books);
        }
        let next = Epoch(epoch.0 + 1);
        self.set_progress(Progress { epoch: next, is_asked: true, ..Progress::default() });
        if let Some(stream) = self.stream.take().filter(|_| self.steps_left.is_some()) {
            self.idle_streams.keep(stream, next);
        }
        Ok(Next::End)
    }

    /// Enters a batch into books, journal and state, and makes it the user's.
    fn hand_over(&mut self, queue: &WorkQueue, assembly: Assembly) -> Result<Batch> {
        let Assembly { plan, slots, places, late, .. } = assembly;
        let now = self.clock.unix_seconds();
        let settled = Settled::of(queue, &plan, slots, now);
        // The positions of a user's own order are not those of the plan.
        if settled.error.is_none() && self.steps_left.is_some() {
            self.journal.trace(&plan, &settled.failures, queue.context.config.rank.0, now);
        }
        self.journal.enter(settled.failures);
        if let Some(error) = settled.error {
            return Err(error);
        }
        let mut reached = self.reached;
        reached.books.add(settled.books);
        if let Some(limit) = &queue.context.config.max_failures {
            self.journal.check_limit(limit, &reached.books)?;
        }
        let mut columns = match places {
            Some(places) => {
                let mut places = if late.is_empty() {
                    Arc::into_inner(places)
                        .ok_or_else(|| Error::internal("a batch is complete, and something still writes to it"))?
                } else {
                    copy_apart(
                        &places,
                        &settled.kept,
                        &settled.values,
                        &*queue.context.source.recipe,
                        &queue.context.pool,
                    )?
                };
                if settled.books.skipped > 0 {
                    compact(&mut places, &settled.kept);
                }
                column::of_places(places, &queue.context.schema, &queue.context.layouts)
            }
            None => {
                let values = settled.values.into_iter().map(|(_, value)| value).collect();
                let (recipe, pool) = (&*queue.context.source.recipe, &queue.context.pool);
                column::of_values(values, &queue.context.schema, recipe, pool)?
            }
        };
        reached.at = Origin { step: Step(plan.step.0 + 1), position: plan.end_position };
        self.reached = reached;
        self.steps_left = self.steps_left.map(|left| left - 1);
        self.count_by_part(queue, &settled.samples);
        columns.extend(queue.context.source.dataset.scalars(&settled.samples).into_iter().map(Into::into));
        let failed = settled.books.failed();
        let receipt = Receipt(reached);
        Ok(Batch { epoch: plan.epoch, step: plan.step, columns, samples: settled.samples, failed, receipt })
    }

    /// Counts samples by the dataset that they come from, where there are several.
    fn count_by_part(&self, queue: &WorkQueue, samples: &[SampleId]) {
        let (source, parts) = (&queue.context.source, queue.context.source.recipes().len());
        if parts > 1 {
            let mut delivered = queue.context.meters.delivered.lock().unwrap_or_else(PoisonError::into_inner);
            delivered.resize(parts, 0);
            samples.iter().for_each(|sample| delivered[source.dataset.part_of(*sample) as usize] += 1);
        }
    }

    fn living(&self) -> Result<&Stream> {
        self.stream.as_ref().filter(|stream| !stream.is_forked()).ok_or_else(forked)
    }

    /// Ends the run at once: its threads stop after their current call, and the loader joins them when it is closed. For an
    /// interrupt, which must not wait for a slow read.
    pub fn abandon(mut self) {
        if let Some(stream) = self.stream.take() {
            self.idle_streams.dismiss(stream);
        }
    }

    /// The reads and decodes in progress, oldest first: what to look at when no batch comes.
    pub fn in_flight(&self) -> Vec<InFlight> {
        self.watch().map(|watch| watch.in_flight()).unwrap_or_default()
    }

    /// A handle for another thread, while this one waits in [`Run::poll`].
    pub fn watch(&self) -> Option<Watch> {
        let watch = |stream: &Stream| Watch { queue: Arc::clone(&stream.queue), site: Arc::clone(&self.site) };
        self.living().ok().map(watch)
    }

    /// What a loop waits for that has waited this long, as a sentence.
    pub fn stall_in_words(&self, waited: Duration) -> String {
        let in_flight = self.watch().map_or("nothing".to_owned(), |watch| watch.in_words());
        let Progress { epoch, at, .. } = self.reached;
        format!("no batch for {:.1} s (epoch {epoch}, step {}); in flight: {in_flight}", waited.as_secs_f64(), at.step)
    }

    /// Enters such a wait into the ledger, if there is one; nowhere else, because it is no failure yet.
    pub fn note_stall(&self, waited: Duration) {
        if let Some(watch) = self.watch() {
            self.journal.note(&[watch.stall(&self.reached, waited, self.clock.unix_seconds())]);
        }
    }

    /// Gives the next batch of a user's own order.
    pub fn give(&self, samples: Vec<SampleId>) -> Result<()> {
        let queue = &self.living()?.queue;
        let len = queue.context.source.dataset.len();
        if let Some(sample) = samples.iter().find(|sample| sample.0 >= len) {
            return Err(Error::config(format!("sampler: expected indices below {len}, got {sample}")));
        }
        if samples.is_empty() {
            return Err(Error::config("batch_sampler: expected at least one index in a batch, got none"));
        }
        queue.with_feed(|feed| feed.give(samples))
    }

    /// No more batches will be given.
    pub fn close_order(&self) -> Result<()> {
        self.living()?.queue.with_feed(|feed| feed.close());
        Ok(())
    }
}

pub(crate) fn forked() -> Error {
    Error::new(Kind::Stopped, "this loader was made in another process: its threads did not survive the fork")
        .with_hint("construct the DataLoader in the child, or start the child with spawn instead of fork")
}

impl Drop for Run {
    fn drop(&mut self) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).is_running = false;
    }
}

impl Iterator for Run {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        loop {
            match self.poll(Duration::from_secs(3600)) {
                Ok(Next::Batch(batch)) => {
                    self.commit(batch.receipt);
                    return Some(Ok(batch));
                }
                Ok(Next::Pending) => {}
                Ok(Next::End) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// A batch's slots, turned into accounts.
struct Settled {
    books: Books,
    failures: Vec<Failure>,
    /// The first one in planned order, if any ends the iteration.
    error: Option<Error>,
    samples: Vec<SampleId>,
    /// With their slots.
    values: Vec<(usize, forebay_decode::Value)>,
    kept: Vec<bool>,
}

impl Settled {
    fn of(queue: &WorkQueue, plan: &PlannedBatch, slots: Vec<Slot>, unix_seconds: f64) -> Self {
        let mut settled = Self {
            books: Books {
                planned: plan.places.len() as u64,
                padded: plan.places.iter().filter(|place| place.padded).count() as u64,
                ..Books::default()
            },
            failures: Vec::new(),
            error: None,
            samples: Vec::with_capacity(slots.len()),
            values: Vec::new(),
            kept: Vec::with_capacity(slots.len()),
        };
        for (number, (slot, place)) in slots.into_iter().zip(&plan.places).enumerate() {
            let Slot { filled, item } = slot;
            let enter = |error: &Error, sample, outcome, given_up: Option<&GivenUp>| {
                let (dataset, mut locator) = (&queue.context.source.dataset, Locator::default());
                dataset.locate(sample, error.field(), &mut locator);
                let stat = given_up.and_then(|given| given.stat);
                Failure {
                    epoch: plan.epoch.0,
                    step: plan.step.0,
                    position: place.position,
                    rank: queue.context.config.rank.0,
                    size_bytes: stat.map(|stat| stat.size_bytes),
                    mtime_ns: stat.map(|stat| stat.mtime_ns),
                    unix_seconds,
                    ..Failure::of(error, &locator.path, outcome).located(&locator)
                }
            };
            let (trouble, given_up, attempts) = match item {
                Some(Item { trouble, given_up, attempts, .. }) => (trouble, given_up, attempts),
                None => (None, None, 0),
            };
            settled.kept.push(matches!(filled, Filled::Done(..)));
            match (filled, given_up) {
                (Filled::Done(sample, value), given_up) => {
                    if let Some(given_up) = &given_up {
                        settled.books.replaced += 1;
                        let failure = enter(&given_up.error, place.sample, Outcome::Replaced, Some(given_up));
                        settled.failures.push(Failure { substitute: Some(sample.0), ..failure });
                    } else {
                        settled.books.delivered += 1;
                        if let Some(trouble) = trouble {
                            let failure = enter(&trouble, sample, Outcome::Recovered, None);
                            settled.failures.push(Failure { attempts, ..failure });
                        }
                    }
                    settled.samples.push(sample);
                    settled.values.extend(value.map(|value| (number, value)));
                }
                (Filled::Skipped, Some(given_up)) => {
                    settled.books.skipped += 1;
                    settled.failures.push(enter(&given_up.error, place.sample, Outcome::Skipped, Some(&given_up)));
                }
                (Filled::Failed(error), _) => {
                    settled.failures.push(enter(&error, place.sample, Outcome::Raised, None));
                    settled.error = Some(error);
                    // How far those behind it have come is chance.
                    break;
                }
                (Filled::Skipped, None) | (Filled::Pending, _) => {
                    let error = Error::internal(format!("slot {} was handed over unfilled", place.position));
                    settled.error.get_or_insert(error);
                }
            }
        }
        settled
    }
}
