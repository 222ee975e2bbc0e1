//! The loader: takes a source and settings, gives one run per epoch, and saves and loads its state.

pub(crate) mod deliver;
pub(crate) mod stream;

use std::ops::Range;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::{
    Books, Clock, Config, DatasetIdentity, Epoch, Error, Failure, Kind, OrderKind, Origin, Place, Plan, Rank, Result,
    SampleId, ScalarColumn, State, Step, SystemClock, WorldSize,
};
use forebay_decode::{Dense, layouts};
use forebay_store::Site;

use crate::batch::buffer_pool::{BufferPool, Lender};
use crate::batch::column::Schema;
use crate::batch::places::is_lent;
use crate::diagnose::dump;
use crate::engine::decoded_cache::DecodedCache;
use crate::engine::landmark_cache::LandmarkCache;
use crate::engine::recover::Quarantine;
use crate::engine::run_context::RunContext;
use crate::engine::work_queue::WorkQueue;
use crate::loader::deliver::{Progress, Run, forked};
use crate::loader::stream::{Feed, IdleStreams, Stream};
use crate::record::journal::Journal;
use crate::record::provenance::{Fate, Provenance};
use crate::record::report::Report;
use crate::record::stats::{Meters, Stats};
use crate::source::{Source, max_reads};

/// Gives the batches of a source, epoch by epoch. Starts no thread before its first run.
pub struct Loader {
    source: Source,
    config: Config,
    plan: Plan,
    identity: DatasetIdentity,
    clock: Arc<dyn Clock>,
    journal: Arc<Journal>,
    quarantine: Arc<Quarantine>,
    landmark_cache: Arc<LandmarkCache>,
    decoded_cache: Option<Arc<DecodedCache>>,
    meters: Arc<Meters>,
    pool: Arc<BufferPool>,
    idle_streams: Arc<IdleStreams>,
    site: Arc<Site>,
    position: Mutex<Position>,
    /// The process whose threads worked for this loader; 0 before the first did.
    process: AtomicU32,
}

/// Where the next run begins, and how far the last one has come.
#[derive(Default)]
struct Position {
    /// The last run, once there is one.
    current: Option<Arc<Mutex<Progress>>>,
    /// Where the next run begins: set by `load_state` and `set_epoch`, otherwise the epoch after the last run's.
    next: Option<Progress>,
    /// It was `load_state`.
    is_loaded: bool,
    /// Steps that the next run leaves out.
    skipped: Range<u64>,
    last_epoch: Option<Epoch>,
    /// What it was before the last run.
    before: Option<Box<Position>>,
}

impl Position {
    /// The last run was dropped before its first batch was requested, and the next position was not set since.
    fn is_unused(&self) -> bool {
        let is_unused = |run: &Mutex<Progress>| {
            let run = run.lock().unwrap_or_else(PoisonError::into_inner);
            !run.is_running && !run.is_asked
        };
        self.next.is_none() && self.current.as_deref().is_some_and(is_unused)
    }
}

/// A sample of a step, as [`Loader::explain`] gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// Position in the epoch's global order.
    pub position: u64,
    /// What the plan wants there.
    pub planned: SampleId,
    /// The sample: the substitute where one was delivered.
    pub sample: SampleId,
    /// Its path.
    pub path: PathBuf,
    /// What the dataset says of it, one value each: its label.
    pub scalars: Vec<ScalarColumn>,
    /// A repetition that keeps all ranks at equal steps.
    pub padded: bool,
}

impl Loader {
    /// Checks every setting and opens the ledger. No thread starts yet.
    pub fn new(source: Source, config: Config) -> Result<Self> {
        Self::with_clock(source, config, Arc::new(SystemClock::default()))
    }

    /// As [`Loader::new`], with a clock of the caller's.
    pub fn with_clock(source: Source, mut config: Config, clock: Arc<dyn Clock>) -> Result<Self> {
        config.check()?;
        if source.dataset.is_empty() {
            return Err(Error::config("the dataset has no samples"));
        }
        let fields = source.dataset.fields_by_part();
        let (recipes, parts) = (source.recipes(), fields.len());
        if recipes.len() != parts {
            let message = format!("expected a recipe for each of {parts} datasets, got {}", recipes.len());
            return Err(Error::internal(message));
        }
        for (expected, got) in recipes.iter().map(|recipe| recipe.field_count()).zip(fields) {
            if expected != got {
                let message = format!("the recipe takes samples of {expected} fields, the dataset has {got}");
                return Err(Error::config(message));
            }
        }
        let plan = config.plan(source.dataset.len(), source.dataset.blocks())?;
        let layouts = layouts(&*source.recipe);
        let slot_bytes: u64 = layouts.iter().map(|layout| layout.size_bytes() as u64).sum();
        let batch_bytes = slot_bytes.saturating_mul(config.batch_size.min(plan.len));
        if batch_bytes > config.memory_budget {
            let (size, budget) = (config.batch_size, config.memory_budget);
            return Err(Error::config(format!(
                "memory_budget: expected at least {batch_bytes} bytes, which one batch of {size} takes, got {budget}"
            )));
        }
        for threads in [&mut config.io_threads, &mut config.max_io_threads] {
            *threads = max_reads(*threads, source.store.capabilities());
        }
        let site = Site::of(&source.dataset.path(SampleId(0)));
        let provenance = Provenance::new(&plan, &source.dataset);
        let (ledger, deadline) = (config.ledger.as_deref(), config.retry.deadline);
        let (journal, bad) = Journal::open_with(ledger, deadline, Some(provenance), config.wording)?;
        let pool = Arc::new(BufferPool::new((config.prefetch_batches + 1) * layouts.len().max(1)));
        let decoded_cache = config.decoded_cache_bytes.map(|limit_bytes| -> Result<_> {
            for recipe in source.recipes() {
                let pipeline = recipe.pipeline().ok_or_else(|| {
                    Error::config("cache: expected pictures for \"decoded\", got samples of another kind")
                        .with_hint("`cache=\"memory\"` keeps the bytes that are read")
                })?;
                pipeline.check_fixed()?;
            }
            Ok(Arc::new(DecodedCache::new(limit_bytes)))
        });
        let decoded_cache = decoded_cache.transpose()?;
        let landmark_cache = Arc::new(LandmarkCache::from_environment(config.memory_budget));
        Ok(Self {
            plan,
            identity: source.dataset.identity(),
            source,
            config,
            clock,
            journal: Arc::new(journal),
            quarantine: Arc::new(Quarantine::of(&bad)),
            landmark_cache,
            decoded_cache,
            meters: Arc::default(),
            pool,
            idle_streams: Arc::default(),
            site: Arc::new(site),
            position: Mutex::default(),
            process: AtomicU32::new(0),
        })
    }

    /// What it loads.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Steps of a whole epoch, the same on every rank.
    pub fn steps(&self) -> u64 {
        self.plan.steps()
    }

    fn position(&self) -> MutexGuard<'_, Position> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A child that inherits a loader by fork inherits locks that its threads may have held: it must not touch them.
    fn claim(&self) -> Result<()> {
        let own = std::process::id();
        match self.process.compare_exchange(0, own, SeqCst, SeqCst) {
            Err(owner) if owner != own => Err(forked()),
            _ => Ok(()),
        }
    }

    /// Starts the next epoch, or resumes from a loaded state.
    pub fn epoch(&self) -> Result<Run> {
        self.claim()?;
        self.forget_unused();
        let start = self.start();
        let skipped = self.position().skipped.clone();
        // Only here: a user's own order may well be longer than the dataset.
        if start.at.position > self.plan.len {
            let (expected, got) = (self.plan.len, start.at.position);
            return Err(Error::new(
                Kind::StateMismatch,
                format!("the state's position: expected at most {expected}, got {got}"),
            ));
        }
        let rest = self.plan.steps_from(start.at);
        let end = start.at.step.0 + rest;
        let left_out = start.at.step.0.max(skipped.start)..end.min(skipped.end);
        let planned_at = |step| self.plan.batch(start.epoch, start.at, Step(step), self.config.rank);
        let planned_out: usize = left_out.clone().filter_map(planned_at).map(|batch| batch.places.len()).sum();
        let expected_planned = start.books.planned + self.plan.planned_from(start.at) - planned_out as u64;
        let steps_left = rest - left_out.end.saturating_sub(left_out.start);
        let progress = Arc::new(Mutex::new(Progress { is_running: true, ..start }));
        self.idle_streams.join();
        let stream = match self.idle_streams.take() {
            Some((stream, epoch))
                if epoch == start.epoch
                    && start.at == Origin::default()
                    && skipped.is_empty()
                    && !stream.is_forked() =>
            {
                dump::add(&stream.queue, &self.site, &progress);
                stream
            }
            idle => {
                drop(idle); // joins its threads before others start
                let feed = Feed::planned(&self.plan, self.config.rank, start.epoch, start.at, skipped);
                self.start_stream(feed, &progress)?
            }
        };
        Ok(self.run(stream, progress, Some(steps_left), Some(expected_planned)))
    }

    /// A run over batches that the caller gives with [`Run::give`]; entered like an epoch.
    pub fn given_order(&self) -> Result<Run> {
        self.claim()?;
        self.forget_unused();
        let start = self.start();
        let progress = Arc::new(Mutex::new(Progress { is_running: true, ..start }));
        let stream = self.start_stream(Feed::given(start.epoch, start.at), &progress)?;
        Ok(self.run(stream, progress, None, None))
    }

    fn run(
        &self,
        stream: Stream,
        progress: Arc<Mutex<Progress>>,
        steps_left: Option<u64>,
        expected_planned: Option<u64>,
    ) -> Run {
        let start = *progress.lock().unwrap_or_else(PoisonError::into_inner);
        // Only now: a run that could not start must not lose the state that it was to resume from.
        let mut position = self.position();
        let before = Position { before: None, ..std::mem::take(&mut *position) };
        *position = Position {
            current: Some(Arc::clone(&progress)),
            last_epoch: Some(start.epoch),
            before: Some(Box::new(before)),
            ..Position::default()
        };
        drop(position);
        Run {
            stream: Some(stream),
            progress,
            reached: start,
            journal: Arc::clone(&self.journal),
            clock: Arc::clone(&self.clock),
            idle_streams: Arc::clone(&self.idle_streams),
            site: Arc::clone(&self.site),
            steps_left,
            expected_planned,
            handed_over: None,
            asked: None,
        }
    }

    /// Whether the last run was dropped before a batch was asked for: the next one begins where it began.
    pub fn is_unused(&self) -> bool {
        self.position().is_unused()
    }

    /// Libraries begin a run to see whether they can, and drop it: it does not count, and a loaded state is still there.
    fn forget_unused(&self) {
        let mut position = self.position();
        if position.is_unused()
            && let Some(before) = position.before.take()
        {
            *position = *before;
        }
    }

    /// Where the next run begins.
    fn start(&self) -> Progress {
        let position = self.position();
        let following = position.last_epoch.map_or(Epoch(0), |last| Epoch(last.0 + 1));
        position.next.unwrap_or(Progress { epoch: following, ..Progress::default() })
    }

    fn start_stream(&self, feed: Feed, progress: &Arc<Mutex<Progress>>) -> Result<Stream> {
        let (source, stop_reads) = match self.source.store.stoppable() {
            Some((store, stop)) => (Source { store, ..self.source.clone() }, Some(stop)),
            None => (self.source.clone(), None),
        };
        let context = RunContext {
            schema: Schema::of(&*source.recipe)?,
            layouts: layouts(&*source.recipe),
            source,
            config: self.config.clone(),
            plan: self.plan.clone(),
            clock: Arc::clone(&self.clock),
            meters: Arc::clone(&self.meters),
            quarantine: Arc::clone(&self.quarantine),
            landmark_cache: Arc::clone(&self.landmark_cache),
            decoded_cache: self.decoded_cache.clone(),
            pool: Arc::clone(&self.pool),
            stop_reads,
        };
        let queue = Arc::new(WorkQueue::new(context, feed));
        // Before its threads start: the first read may already hang.
        dump::add(&queue, &self.site, progress);
        Stream::start(queue)
    }

    /// Bytes that one column of a whole batch takes, where all samples have one shape: the largest one.
    pub fn batch_bytes(&self) -> Option<usize> {
        let largest = layouts(&*self.source.recipe).iter().map(Dense::size_bytes).max()?;
        Some(largest * self.config.batch_size.min(self.plan.len) as usize)
    }

    /// How many pieces of memory, each as large as [`Loader::batch_bytes`], would be of use beside those lent already.
    pub fn blocks_wanted(&self) -> usize {
        // One for each batch that is prepared, one that is opened while the last is handed over, and one to spare.
        let all = layouts(&*self.source.recipe);
        let columns = all.iter().filter(|layout| is_lent(layout, &all)).count().max(1);
        ((self.config.prefetch_batches + 2) * columns).saturating_sub(self.pool.lent_count())
    }

    /// Lends memory that a batch will be written to: pinned memory, say. Without, or when all of it is in use, batches are
    /// written to the loader's own. [`crate::Buffer::into_lender`] gives it back.
    ///
    /// # Safety
    /// `start` has to be valid for reads and writes of `size_bytes`, initialised, aligned for any number, and used by
    /// no other code as long as `lender` lives, or until a batch gives it back.
    pub unsafe fn lend(&self, start: NonNull<u8>, size_bytes: usize, lender: Lender) {
        // SAFETY: the same promises.
        unsafe { self.pool.lend(start, size_bytes, lender) }
    }

    /// Makes the next run that of `epoch`, from its start; a loaded state of the same epoch stays in force.
    pub fn set_epoch(&self, epoch: Epoch) {
        let mut position = self.position();
        if position.next.is_none_or(|next| next.epoch != epoch) {
            let next = Some(Progress { epoch, ..Progress::default() });
            (position.next, position.is_loaded, position.skipped) = (next, false, 0..0);
        }
    }

    fn progress(&self) -> Progress {
        let position = self.position();
        let current = position.current.as_ref().map(|run| *run.lock().unwrap_or_else(PoisonError::into_inner));
        match (position.next, current) {
            // `set_epoch` in the middle of a run says where the next one begins, not where this one is.
            (Some(_), Some(current)) if current.is_running && !position.is_loaded => current,
            (next, current) => next.or(current).unwrap_or_default(),
        }
    }

    /// The resume point: what was handed to the user counts, not what was prefetched.
    pub fn state(&self) -> State {
        let progress = self.progress();
        State::new(&self.plan, self.identity.clone(), progress.epoch, progress.at, progress.books)
    }

    /// Goes on where a state was taken, with the next run. Refuses the state of another dataset or order.
    pub fn load_state(&self, state: &State) -> Result<()> {
        self.load_state_skipping(state, 0..0)
    }

    /// As [`Loader::load_state`], and leaves a range of steps of that epoch out: for example those that made the loss explode.
    pub fn load_state_skipping(&self, state: &State, skipped: Range<u64>) -> Result<()> {
        let at = state.check(&self.plan, &self.identity)?;
        let loaded = Progress { epoch: state.epoch, origin: at, at, books: state.books, ..Progress::default() };
        let mut position = self.position();
        (position.next, position.is_loaded, position.skipped) = (Some(loaded), true, skipped);
        Ok(())
    }

    /// Which samples make up a step, without reading any: of this rank and the epoch at hand, unless said otherwise.
    ///
    /// Of a step that was delivered these are the ones that were: with substitutes, without what was skipped. Of earlier
    /// runs and other ranks that is known from the ledger, if they share it. Of other steps it is the plan.
    ///
    /// In an epoch that was resumed, the steps before the resume point are those of an epoch without one.
    pub fn explain(
        &self,
        step: Step,
        epoch: Option<Epoch>,
        world_size: Option<WorldSize>,
        rank: Option<Rank>,
    ) -> Result<Vec<Explained>> {
        let progress = self.progress();
        let plan = Plan { world_size: world_size.unwrap_or(self.plan.world_size), ..self.plan.clone() };
        let rank = rank.unwrap_or(if world_size.is_none() { self.config.rank } else { Rank(0) });
        if plan.world_size.0 == 0 || rank.0 >= plan.world_size.0 {
            return Err(Error::config(format!("rank: expected one below world_size {}, got {rank}", plan.world_size)));
        }
        let epoch = epoch.unwrap_or(progress.epoch);
        // Another number of ranks before the resume point leaves this one with other steps after it.
        let is_resumed = epoch == progress.epoch && plan == self.plan && step >= progress.origin.step;
        let origin = if is_resumed { progress.origin } else { Origin::default() };
        let batch = plan.batch(epoch, origin, step, rank).ok_or_else(|| {
            let steps = origin.step.0 + plan.steps_from(origin);
            Error::config(format!("step: expected one below {steps} (the steps of the epoch), got {step}"))
        })?;
        let explain = |place: Place, provenance: &Provenance| {
            let sample = match provenance.fate(epoch, &place) {
                Fate::Planned => place.sample,
                Fate::Replaced(substitute) => substitute,
                Fate::Skipped => return None,
            };
            let (path, scalars) = (self.source.dataset.path(sample), self.source.dataset.scalars(&[sample]));
            let Place { position, sample: planned, padded } = place;
            Some(Explained { position, planned, sample, path, scalars, padded })
        };
        let look = |known: &Provenance| batch.places.into_iter().filter_map(|place| explain(place, known)).collect();
        Ok(self.journal.with_provenance(look)?.unwrap_or_default())
    }

    /// What failed so far, oldest first; the ledger has what is older than 100,000.
    pub fn failures(&self) -> Vec<Failure> {
        self.journal.failures()
    }

    /// The books of each epoch so far.
    pub fn books(&self) -> Vec<(Epoch, Books)> {
        self.journal.books()
    }

    /// Why the ledger lacks lines, if it does, and what to do about it.
    pub fn ledger_error(&self) -> Option<String> {
        self.journal.ledger_trouble()
    }

    /// Where time went so far.
    pub fn stats(&self) -> Stats {
        self.meters.read(self.landmark_cache.stats(), self.decoded_cache.as_ref().map(|cache| cache.stats()))
    }

    /// The order of its epochs.
    pub fn order(&self) -> &OrderKind {
        &self.plan.order
    }

    /// How many samples of each dataset were handed over so far; none where there is one dataset.
    pub fn delivered_by_part(&self) -> Vec<u64> {
        self.meters.delivered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What failed, why, what to do, and the balance of each epoch: made to be printed.
    pub fn report(&self) -> Report {
        let repaired = self.source.store.repairs().map(|repairs| repairs.files).unwrap_or_default();
        Report { repaired, ..self.journal.report() }
    }

    /// Stops the threads that wait for the next epoch, and those of abandoned runs, and joins all that come back within a
    /// second; ends reader processes; writes what waits for the ledger. A run in progress keeps its threads until it is
    /// dropped.
    pub fn close(&self) {
        if self.claim().is_err() {
            return; // a forked child has no threads to stop
        }
        drop(self.idle_streams.take());
        self.idle_streams.join();
        self.source.store.rest();
        self.journal.flush();
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.close();
    }
}
