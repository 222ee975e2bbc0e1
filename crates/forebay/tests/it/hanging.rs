//! Reads and decodes that do not come back, and reads that are slow.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use forebay::{
    Books, Config, Error, Hedge, Image, Kind, Loader, OnError, Open, Opened, Outcome, Result, Retry, SampleId, Source,
    Stage, Store, Value,
};
use forebay_store::testing::{Fault, Memory, Scripted};
use forebay_store::{Allot, Object, ReadRequest, Stat};

use crate::fixture::{crop, epoch, hashes, path_of, pictures, source};

const DEADLINE: Duration = Duration::from_millis(150);

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

/// While a sample of the first batch hangs, no more than four others are prepared: with twenty samples none of the next epoch, whose
/// reads would take the faults of this one.
fn impatient(config: Config) -> Config {
    let retry = Retry { deadline: DEADLINE, ..Retry::default() };
    Config { batch_size: 4, prefetch_batches: 1, on_error: OnError::Replace, retry, ..config }
}

fn hanging(count: usize, hanging: &[usize], fault: &Fault) -> Arc<Scripted<Memory>> {
    let store = Arc::new(Scripted::new(pictures(count, false)));
    hanging.iter().for_each(|index| store.script(path_of(*index), vec![fault.clone()]));
    store
}

/// All samples, four a batch, in the caller's own order: no next epoch is begun, whose reads would take the faults of this one.
fn one_pass(loader: &Loader, samples: u64) -> usize {
    let run = loader.given_order().unwrap();
    (0..samples).step_by(4).for_each(|first| run.give((first..first + 4).map(SampleId).collect()).unwrap());
    run.close_order().unwrap();
    run.map(|batch| batch.unwrap().len()).sum()
}

#[test]
fn what_does_not_come_back_is_replaced_at_its_deadline_and_its_thread_retires() {
    // All that the budget allows is in the hands of threads that do not come back: the others go on all the same.
    for (fault, memory_budget) in [(Fault::Wait, 1 << 30), (Fault::WaitFilled, 800)] {
        let store = hanging(20, &[2, 3, 7], &fault);
        let config =
            impatient(Config { io_threads: 2, memory_budget, max_sample_bytes: Some(1 << 20), ..Config::default() });
        let loader = Loader::new(source(store.clone(), crop()), config).unwrap();
        let started = Instant::now();
        assert_eq!(epoch(&loader).len(), 20);
        assert!(started.elapsed() >= DEADLINE);
        let (_, books) = loader.books()[0];
        assert_eq!(books, Books { planned: 20, delivered: 17, replaced: 3, ..Books::default() });
        let failures = loader.failures();
        for (failure, index) in failures.iter().zip([2, 3, 7]) {
            assert_eq!((failure.path(), failure.outcome), (path_of(index), Outcome::Replaced));
            assert_eq!((failure.code.as_str(), failure.attempts), (Kind::Timeout.slug(), 1));
            assert!(failure.message.contains("did not answer within 0.1 s"), "{}", failure.message);
            assert!(failure.elapsed_seconds >= DEADLINE.as_secs_f64());
        }
        assert_eq!((failures.len(), loader.stats().written_off, loader.stats().lost), (3, 3, 3));
        store.release();
        wait_until("a lost thread retires", || loader.stats().lost == 0);
        assert_eq!(epoch(&loader).len(), 20, "and nothing was lost with them");
        assert_eq!(loader.failures().len(), 3);
    }
}

/// The error that ends an epoch, which lists the samples that threads are stuck in.
fn ends_with_stuck(loader: &Loader, words: &str, samples: &[usize]) -> Error {
    let error = loader.epoch().unwrap().find_map(Result::err).unwrap();
    assert_eq!((error.kind(), error.is_sample_local()), (Kind::Exhausted, false));
    let text = error.to_string();
    assert!(text.contains(words), "{text}");
    for sample in samples {
        assert!(text.contains(path_of(*sample).to_str().unwrap()), "{text}");
    }
    error
}

#[test]
fn too_many_lost_threads_are_listed_and_end_the_run() {
    let store = hanging(20, &[2, 5, 6], &Fault::Wait);
    let config = impatient(Config { io_threads: 2, max_lost_threads: 2, ..Config::default() });
    let loader = Loader::new(source(store.clone(), crop()), config).unwrap();
    let error = ends_with_stuck(&loader, "3 threads are stuck in the kernel", &[2, 5, 6]);
    assert!(error.hint().contains("max_lost_threads"));
    store.release();
}

#[test]
fn a_loader_ends_without_its_lost_threads() {
    let store = hanging(8, &[2], &Fault::Wait);
    let loader = Loader::new(source(store.clone(), crop()), impatient(Config::default())).unwrap();
    assert_eq!(one_pass(&loader, 8), 8);
    assert_eq!(loader.stats().lost, 1);
    let started = Instant::now();
    drop(loader);
    assert!(started.elapsed() < Duration::from_secs(1), "it waits for a thread that is lost");
    store.release();
}

#[test]
fn behind_a_batch_that_is_held_up_more_are_prepared() {
    let store = hanging(40, &[0], &Fault::Wait);
    let config = Config { batch_size: 2, prefetch_batches: 3, io_threads: 2, ..Config::default() };
    let loader = Loader::new(source(store.clone(), crop()), config).unwrap();
    let run = loader.epoch().unwrap();
    wait_until("twelve batches are read", || store.total_reads() == 24);
    wait_until("only the one that is held up is under way", || run.in_flight().len() == 1);
    assert_eq!(store.total_reads(), 24, "no more than four times as many as usual");
    store.release();
    assert_eq!(run.map(|batch| batch.unwrap().len()).sum::<usize>(), 40);
}

#[test]
fn a_slow_read_gets_a_second_one_and_the_first_answer_counts() {
    let store = hanging(8, &[2], &Fault::Wait);
    let config = Config { batch_size: 4, hedge: Some(Hedge::After(Duration::from_millis(50))), ..Config::default() };
    let loader = Loader::new(source(store.clone(), crop()), config).unwrap();
    assert_eq!(one_pass(&loader, 8), 8);
    let stats = loader.stats();
    assert_eq!((stats.hedges, stats.hedges_won, stats.written_off), (1, 1, 0));
    assert_eq!(store.reads(&path_of(2)), 2);
    assert!(loader.failures().is_empty());
    store.release();
}

#[test]
fn a_read_that_was_overtaken_gives_its_place_back() {
    // Three times as many as there are places, and they are never released.
    let slow: Vec<usize> = (0..48).step_by(4).collect();
    let store = hanging(48, &slow, &Fault::WaitCancel);
    let config = Config {
        batch_size: 4,
        prefetch_batches: 1,
        io_threads: 4,
        max_io_threads: 4,
        hedge: Some(Hedge::After(Duration::from_millis(20))),
        ..Config::default()
    };
    let loader = Loader::new(source(store.clone(), crop()), config).unwrap();
    assert_eq!(epoch(&loader).len(), 48);
    let stats = loader.stats();
    assert!(stats.hedges_won >= 12 && stats.written_off == 0, "{stats:?}");
    assert!(loader.failures().is_empty());
    slow.iter().for_each(|index| assert!(store.reads(&path_of(*index)) >= 2));
}

#[test]
fn second_reads_go_on_where_all_first_ones_hang() {
    let store = hanging(20, &[0, 3], &Fault::Wait);
    let hedge = Some(Hedge::After(Duration::from_millis(1)));
    let config = Config { hedge, io_threads: 1, max_io_threads: 1, ..impatient(Config::default()) };
    let loader = Loader::new(source(store.clone(), crop()), config).unwrap();
    assert_eq!(epoch(&loader).len(), 20);
    assert!(loader.stats().hedges_won >= 2 && loader.failures().is_empty(), "{:?}", loader.stats());
    store.release();
}

#[test]
fn the_usual_latency_is_learned_before_reads_are_doubled() {
    let store = hanging(300, &[250], &Fault::Wait);
    let config = Config { batch_size: 10, hedge: Some(Hedge::Quantile(0.99)), ..Config::default() };
    let loader = Loader::new(source(store.clone(), crop()), config).unwrap();
    assert_eq!(epoch(&loader).len(), 300);
    assert!(loader.stats().hedges_won >= 1 && loader.failures().is_empty());
    store.release();
}

/// Storage far away: every read takes a while, however many there are.
#[derive(Debug)]
struct Distant {
    inner: Memory,
    latency: Duration,
    reading: AtomicUsize,
    most: AtomicUsize,
}

impl Store for Distant {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        self.most.fetch_max(self.reading.fetch_add(1, SeqCst) + 1, SeqCst);
        std::thread::sleep(self.latency); // the distance itself, not a wait for something
        self.reading.fetch_sub(1, SeqCst);
        self.inner.fetch(request, allot)
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        self.inner.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<forebay_core::Listing> {
        self.inner.list(directory)
    }
}

#[test]
fn concurrent_reads_grow_where_that_gives_more_and_stay_where_they_were_put() {
    let most = |max_io_threads| {
        let latency = Duration::from_millis(5);
        let distant = Distant { inner: pictures(2000, false), latency, reading: 0.into(), most: 0.into() };
        let store = Arc::new(distant);
        let config = Config { batch_size: 50, io_threads: 4, max_io_threads, ..Config::default() };
        let loader = Loader::new(source(Arc::clone(&store) as Arc<dyn Store>, crop()), config).unwrap();
        assert_eq!(epoch(&loader).len(), 2000);
        assert!(loader.stats().concurrent_reads <= max_io_threads as u64);
        store.most.load(SeqCst)
    };
    assert!((12..=24).contains(&most(24)));
    assert_eq!(most(4), 4);
}

/// A way to open samples that does not come back from some of them the first time, or refuses them.
struct Sticky {
    bad: Mutex<HashSet<PathBuf>>,
    hangs: bool,
    is_released: Mutex<bool>,
    released: Condvar,
}

impl Sticky {
    fn new(bad: &[usize], hangs: bool) -> Arc<Self> {
        let bad = bad.iter().map(|index| path_of(*index)).collect();
        Arc::new(Self { bad: Mutex::new(bad), hangs, is_released: Mutex::new(false), released: Condvar::new() })
    }

    fn release(&self) {
        *self.is_released.lock().unwrap() = true;
        self.released.notify_all();
    }
}

impl Open for Sticky {
    fn open(&self, path: &Path) -> Result<Value> {
        let is_bad = self.bad.lock().unwrap().remove(path);
        if is_bad && !self.hangs {
            return Err(Error::new(Kind::UserCode, "is refused"));
        }
        if is_bad {
            drop(self.released.wait_while(self.is_released.lock().unwrap(), |is_released| !*is_released).unwrap());
        }
        let seed = path.to_str().unwrap().bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
        let pixels = (0..9 * 7 * 3).map(|at: u8| at.wrapping_mul(seed)).collect();
        Ok(Value::Image(Image { width: 9, height: 7, channels: 3, pixels }))
    }
}

fn opened_by(open: &Arc<Sticky>, count: usize) -> Source {
    let store = Arc::new(pictures(count, false));
    let recipe = Opened::new(Arc::clone(open) as Arc<dyn Open>, Arc::new(crop()));
    Source { recipe: Arc::new(recipe), ..source(store, crop()) }
}

#[test]
fn what_is_not_decoded_in_time_is_replaced_and_the_late_thread_writes_to_nobodys_batch() {
    let bad = [2, 3, 7];
    let refused = Loader::new(
        opened_by(&Sticky::new(&bad, false), 20),
        Config { batch_size: 4, on_error: OnError::Replace, ..Config::default() },
    );
    let expected = epoch(&refused.unwrap());
    let batch_bytes = 4 * 3 * 4 * 4 * 4;
    for (memory_budget, cpu_threads) in [(1 << 30, 2), (batch_bytes, 1)] {
        let open = Sticky::new(&bad, true);
        let config = impatient(Config { memory_budget, cpu_threads, ..Config::default() });
        let loader = Loader::new(opened_by(&open, 20), config).unwrap();
        let batches: Vec<_> = loader.epoch().unwrap().map(Result::unwrap).collect();
        let (_, books) = loader.books()[0];
        assert_eq!(books, Books { planned: 20, delivered: 17, replaced: 3, ..Books::default() });
        let failures = loader.failures();
        for (failure, index) in failures.iter().zip(bad) {
            assert_eq!((failure.path(), failure.outcome), (path_of(index), Outcome::Replaced));
            assert_eq!((failure.code.as_str(), failure.stage), (Kind::Timeout.slug(), Some(Stage::Decode)));
            assert_eq!(failure.attempts, 1);
            // Samples 1, 11 and 13: were a substitute among them, what is expected would depend on the order.
            assert!(![1, 11, 13].contains(&failure.substitute.unwrap()));
            assert!(failure.message.contains("was not decoded and transformed within 0.1 s"), "{}", failure.message);
        }
        let stats = loader.stats();
        assert_eq!((failures.len(), stats.decodes_written_off, stats.decodes_lost), (3, 3, 3));
        // Now they write what they were told to, while the batches are the user's.
        open.release();
        wait_until("a lost thread retires", || loader.stats().decodes_lost == 0);
        assert_eq!(batches.into_iter().flat_map(hashes).collect::<Vec<_>>(), expected);
        assert_eq!(epoch(&loader).len(), 20, "and nothing was lost with them");
        assert_eq!(loader.failures().len(), 3);
    }
}

#[test]
fn a_late_decode_is_left_out_or_ends_the_run_as_the_policy_says() {
    let open = Sticky::new(&[5], true);
    let skip = Config { on_error: OnError::Skip, ..impatient(Config::default()) };
    let loader = Loader::new(opened_by(&open, 20), skip).unwrap();
    assert_eq!(epoch(&loader).len(), 19);
    open.release();
    let open = Sticky::new(&[5], true);
    let raise = Config { on_error: OnError::Raise, ..impatient(Config::default()) };
    let error = Loader::new(opened_by(&open, 8), raise).unwrap().epoch().unwrap().find_map(Result::err).unwrap();
    assert_eq!((error.kind(), error.stage(), error.path()), (Kind::Timeout, Some(Stage::Decode), Some(&*path_of(5))));
    open.release();
}

#[test]
fn too_many_lost_cpu_threads_are_listed_and_end_the_run() {
    let open = Sticky::new(&[2, 5, 6], true);
    let config = impatient(Config { cpu_threads: 2, max_lost_threads: 2, ..Config::default() });
    let loader = Loader::new(opened_by(&open, 20), config).unwrap();
    ends_with_stuck(&loader, "3 CPU threads are stuck in decoding or transforms", &[2, 5, 6]);
    open.release();
}

#[test]
fn a_loader_ends_whatever_a_decoder_does() {
    // Before its deadline, and two at a time: each of these runs has a thread that is stuck.
    let open = Sticky::new(&[0, 2], true);
    let loader = Loader::new(opened_by(&open, 8), Config { batch_size: 4, ..Config::default() }).unwrap();
    let stuck = |sample| {
        let run = loader.given_order().unwrap();
        run.give(vec![SampleId(sample)]).unwrap();
        wait_until("it is decoded", || run.in_flight().iter().any(|item| item.stage == Stage::Decode));
        run.abandon();
    };
    stuck(0);
    stuck(1);
    let started = Instant::now();
    drop(loader);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    open.release();
}
