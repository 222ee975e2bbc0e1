//! The work queue under thousands of interleavings: `make test-schedules`.
//!
//! The real threads of a stream run on shuttle's locks, one at a time, in an order drawn from a seed. A wait never times
//! out by itself, so a thread that sleeps while there is work is a deadlock, which shuttle reports with the schedule that
//! led to it. Where time matters (retries, second reads, write-offs), one more thread moves a manual clock and wakes all
//! waits.
//!
//! A fork is not among the schedules: what a child inherits are locks of the system's threads, which shuttle has only one of.
//! Real forks are tested in `python/tests/lifecycle/test_lifecycle.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use forebay_core::{
    Books, Config, DatasetIdentity, Element, Error, Field, Hedge, Kind, Listing, Locator, ManualClock, OnError, Result,
    Retry, SampleId,
};
use forebay_decode::{BytesRecipe, DocumentRule, FieldsRecipe, Op, Pipeline, Recipe, TokenSpec, TokensRecipe};
use forebay_format::FolderIndex;
use forebay_store::testing::Memory;
use forebay_store::{Allot, Object, ReadRequest, Stat, Store};
use shuttle::scheduler::RandomScheduler;
use shuttle::{FailurePersistence, MaxSteps, Runner};

use super::WorkQueue;
use crate::sync::Mutex;
use crate::{Dataset, Loader, Next, ScanOptions, Source, scan_folder};

/// Of every scenario. Together they are at least 100,000.
const SCHEDULES: usize = 10_400;
const SAMPLES: usize = 5;
const TICK: Duration = Duration::from_millis(40);
const DEADLINE: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_secs(3600);

/// What a read does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Give,
    /// Comes back after this many turns of other threads.
    Late(u32),
    Fail,
    /// Never comes back, until the test lets it go.
    Hang,
}

/// Pictures in memory, whose reads do as told.
#[derive(Debug)]
struct Told {
    pictures: Memory,
    /// What the reads of a path do, one after the other; then they give it.
    acts: Mutex<BTreeMap<PathBuf, Vec<Act>>>,
    is_released: AtomicBool,
}

impl Told {
    fn new(acts: &[(usize, &[Act])]) -> Self {
        let mut pictures = Memory::default();
        for index in 0..SAMPLES {
            // The smallest picture there is: a grey pixel.
            pictures.insert(path_of(index), [b"P5 1 1 255\n".as_slice(), &[index as u8]].concat());
        }
        let reversed = |acts: &[Act]| acts.iter().rev().copied().collect();
        let acts = acts.iter().map(|(index, acts)| (path_of(*index), reversed(acts))).collect();
        Self { pictures, acts: Mutex::new(acts), is_released: AtomicBool::new(false) }
    }
}

fn path_of(index: usize) -> PathBuf {
    PathBuf::from(format!("/pictures/all/{index}.pgm"))
}

impl Store for Told {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        let act = self.acts.lock().unwrap().get_mut(request.path).and_then(Vec::pop).unwrap_or(Act::Give);
        match act {
            Act::Give => {}
            Act::Late(turns) => (0..turns).for_each(|_| shuttle::thread::yield_now()),
            Act::Fail => return Err(Error::new(Kind::Unavailable, "was not to be had")),
            Act::Hang => {
                while !self.is_released.load(SeqCst) {
                    shuttle::thread::yield_now();
                }
            }
        }
        self.pictures.fetch(request, allot)
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        self.pictures.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        self.pictures.list(directory)
    }
}

impl WorkQueue {
    /// Wakes all waits, as if their time was over.
    fn time_has_passed(&self) {
        drop(self.lock());
        for condition in [
            &self.fetch_work,
            &self.decode_work,
            &self.memory_freed,
            &self.batch_done,
            &self.calls_done,
            &self.watchdog_wake,
        ] {
            condition.notify_all();
        }
    }

    /// Bytes that are charged and that nothing accounts for. No thread may be at work.
    fn unaccounted(&self) -> i128 {
        let state = self.lock();
        let batches: u64 = state.batches.iter().map(|batch| batch.charged).sum();
        let ready: u64 = state.ready.iter().map(|waiting| waiting.1.charged).sum();
        i128::from(state.memory.used_bytes()) - i128::from(batches) - i128::from(ready)
    }
}

/// What is loaded.
#[derive(Clone, Copy)]
enum Samples {
    Pictures,
    /// Samples of two fields.
    Pairs,
    /// Samples that the threads which read them make.
    Bytes,
    /// The same, in their places in two columns.
    Tokens,
}

/// What a scenario is.
#[derive(Clone, Copy)]
struct Scenario {
    acts: &'static [(usize, &'static [Act])],
    config: fn(Config) -> Config,
    samples: Samples,
    /// Batches after which the loop is left.
    batches: usize,
    moves_time: bool,
    /// What the books have to say in the end; not looked at where the loop is left before it.
    books: Option<fn(Books) -> bool>,
}

/// Every sample is two of the pictures.
struct Pairs(Arc<FolderIndex>);

impl Dataset for Pairs {
    fn len(&self) -> u64 {
        SAMPLES as u64
    }
    fn field_count(&self) -> u32 {
        2
    }
    fn locate(&self, sample: SampleId, field: Field, locator: &mut Locator) {
        self.0.locate(SampleId((sample.0 + u64::from(field.0)) % SAMPLES as u64), Field(0), locator);
    }
    fn identity(&self) -> DatasetIdentity {
        self.0.identity()
    }
}

fn play(scenario: Scenario, index: Arc<FolderIndex>) {
    let store = Arc::new(Told::new(scenario.acts));
    let clock = Arc::new(ManualClock::default());
    let base = Config {
        batch_size: 2,
        io_threads: 2,
        max_io_threads: 3,
        cpu_threads: 2,
        prefetch_batches: 2,
        on_error: OnError::Replace,
        retry: Retry { deadline: DEADLINE, ..Retry::default() },
        ..Config::default()
    };
    let pipeline = || Pipeline::new(vec![Op::ToTensor]).unwrap();
    let source = match scenario.samples {
        Samples::Pictures => Source::new(index, store.clone(), pipeline()),
        Samples::Bytes => Source::new(index, store.clone(), BytesRecipe),
        // The pictures have twelve bytes.
        Samples::Tokens => {
            let spec = TokenSpec {
                source: Element::U16,
                element: Element::I64,
                length: 5,
                has_targets: true,
                documents: DocumentRule::None,
                has_loss_mask: false,
                pad: 0,
                vocab_size: None,
            };
            Source::new(index, store.clone(), TokensRecipe::new(spec).unwrap())
        }
        Samples::Pairs => {
            let field = |name: &str| (name.to_owned(), Arc::new(pipeline()) as Arc<dyn Recipe>);
            let recipe = FieldsRecipe::new(vec![field("one"), field("two")]).unwrap();
            Source::new(Arc::new(Pairs(index)), store.clone(), recipe)
        }
    };
    let loader = Loader::with_clock(source, (scenario.config)(base), clock.clone()).unwrap();
    let mut run = loader.epoch().unwrap();
    let queue = Arc::clone(&run.stream.as_ref().unwrap().queue);
    let is_over = Arc::new(AtomicBool::new(false));
    let time = scenario.moves_time.then(|| {
        let (queue, is_over) = (Arc::clone(&queue), Arc::clone(&is_over));
        shuttle::thread::spawn(move || {
            while !is_over.load(SeqCst) {
                clock.advance(TICK);
                queue.time_has_passed();
                shuttle::thread::yield_now();
            }
        })
    });
    let mut batches = 0;
    while batches < scenario.batches {
        match run.poll(LONG).unwrap() {
            Next::Batch(_) => batches += 1,
            Next::Pending => {}
            Next::End => break,
        }
    }
    if let Some(is_right) = scenario.books {
        assert!(matches!(run.poll(LONG).unwrap(), Next::End));
        let (_, books) = loader.books()[0];
        assert!(is_right(books), "{books:?}");
    }
    store.is_released.store(true, SeqCst);
    drop(run);
    drop(loader);
    is_over.store(true, SeqCst);
    if let Some(time) = time {
        time.join().unwrap();
    }
    assert_eq!(queue.unaccounted(), 0, "bytes are charged that nobody holds");
}

/// Plays a scenario in this many orders, all of them drawn from one seed.
fn check(scenario: Scenario) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 18;
    config.max_steps = MaxSteps::FailAfter(200_000);
    config.failure_persistence = FailurePersistence::Print;
    let runner = Runner::new(RandomScheduler::new_from_seed(0x5eed, SCHEDULES), config);
    // Scanned once, and by threads of the system.
    let store: Arc<dyn Store> = Arc::new(Told::new(&[]).pictures);
    let index = Arc::new(scan_folder(&store, Path::new("/pictures"), &ScanOptions::images(), None).unwrap());
    runner.run(move || play(scenario, Arc::clone(&index)));
}

const ALL: Option<fn(Books) -> bool> = Some(|books| (books.planned, books.delivered) == (5, 5));
/// Time runs as fast as it likes, so others may have been too late as well.
const SOME_REPLACED: Option<fn(Books) -> bool> =
    Some(|books| books.planned == 5 && books.delivered + books.replaced == 5 && books.replaced > 0);
const NONE_LOST: Option<fn(Books) -> bool> = Some(|books| books.planned == 5 && books.delivered + books.replaced == 5);

fn as_it_is(config: Config) -> Config {
    config
}

/// Enough for one picture at a time: decoding one is charged with 64 KiB.
fn short_of_memory(config: Config) -> Config {
    Config { memory_budget: 70_000, ..config }
}

#[test]
fn nobody_sleeps_while_there_is_work() {
    check(Scenario {
        acts: &[],
        config: as_it_is,
        samples: Samples::Pictures,
        batches: 3,
        moves_time: false,
        books: ALL,
    });
}

#[test]
fn nobody_sleeps_while_there_is_work_and_hardly_any_memory() {
    check(Scenario {
        acts: &[],
        config: short_of_memory,
        samples: Samples::Pictures,
        batches: 3,
        moves_time: false,
        books: ALL,
    });
}

/// Both readers may hold the first field of a sample, and then there is no room for a second one.
fn short_of_memory_for_fields(config: Config) -> Config {
    Config { memory_budget: 30, max_sample_bytes: Some(1 << 20), ..config }
}

#[test]
fn nobody_sleeps_while_fields_of_samples_wait_for_memory() {
    let config = short_of_memory_for_fields;
    check(Scenario { acts: &[], config, samples: Samples::Pairs, batches: 3, moves_time: false, books: ALL });
    let acts: &[(usize, &[Act])] = &[(2, &[Act::Late(5)]), (3, &[Act::Fail])];
    check(Scenario { acts, config, samples: Samples::Pairs, batches: 3, moves_time: false, books: SOME_REPLACED });
}

#[test]
fn a_loop_that_is_left_ends_all_threads() {
    let acts: &[(usize, &[Act])] = &[(1, &[Act::Late(3)])];
    check(Scenario {
        acts,
        config: short_of_memory,
        samples: Samples::Pictures,
        batches: 1,
        moves_time: false,
        books: None,
    });
}

#[test]
fn reads_that_fail_are_tried_again() {
    let acts: &[(usize, &[Act])] = &[(0, &[Act::Fail]), (3, &[Act::Late(5), Act::Fail])];
    check(Scenario {
        acts,
        config: as_it_is,
        samples: Samples::Pictures,
        batches: 3,
        moves_time: true,
        books: NONE_LOST,
    });
}

#[test]
fn a_read_that_hangs_is_written_off_and_gives_everything_back() {
    let acts: &[(usize, &[Act])] = &[(2, &[Act::Hang])];
    check(Scenario {
        acts,
        config: as_it_is,
        samples: Samples::Pictures,
        batches: 3,
        moves_time: true,
        books: SOME_REPLACED,
    });
}

#[test]
fn second_reads_overtake_slow_ones() {
    let config = |config| Config { hedge: Some(Hedge::After(TICK)), ..short_of_memory(config) };
    let acts: &[(usize, &[Act])] = &[(1, &[Act::Hang]), (4, &[Act::Late(20)])];
    check(Scenario { acts, config, samples: Samples::Pictures, batches: 3, moves_time: true, books: NONE_LOST });
}

#[test]
fn samples_made_by_their_readers_need_no_other_thread() {
    // Enough for one sample and its copy at a time.
    let config = |config| Config { memory_budget: 30, max_sample_bytes: Some(1 << 20), ..config };
    let acts: &[(usize, &[Act])] = &[(1, &[Act::Late(3)])];
    check(Scenario { acts, config, samples: Samples::Bytes, batches: 3, moves_time: false, books: ALL });
    let config = |config| Config { hedge: Some(Hedge::After(TICK)), ..config };
    let acts: &[(usize, &[Act])] = &[(1, &[Act::Hang]), (4, &[Act::Late(20)])];
    check(Scenario { acts, config, samples: Samples::Bytes, batches: 3, moves_time: true, books: NONE_LOST });
}

#[test]
fn samples_placed_by_their_readers_have_their_places_alone() {
    let acts: &[(usize, &[Act])] = &[(1, &[Act::Late(3)]), (3, &[Act::Fail])];
    check(Scenario {
        acts,
        config: as_it_is,
        samples: Samples::Tokens,
        batches: 3,
        moves_time: true,
        books: NONE_LOST,
    });
    let config = |config| Config { hedge: Some(Hedge::After(TICK)), ..config };
    let acts: &[(usize, &[Act])] = &[(1, &[Act::Hang]), (4, &[Act::Late(20)])];
    check(Scenario { acts, config, samples: Samples::Tokens, batches: 3, moves_time: true, books: NONE_LOST });
    check(Scenario { acts: &[], config, samples: Samples::Tokens, batches: 1, moves_time: false, books: None });
}
