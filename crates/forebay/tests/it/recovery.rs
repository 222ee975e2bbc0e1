//! Every failure is classified, retried, replaced or reported, and the books balance.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay::{
    Batch, Column, Config, Error, Failure, FailureLimit, Kind, Loader, Next, OnError, Op, Outcome, Pipeline, Result,
    Retry, Store,
};
use forebay_core::{Listing, ManualClock};
use forebay_store::testing::{Fault, Scripted};
use forebay_store::{Allot, Object, ReadRequest, Stat};

use crate::fixture::{crop, epoch, loader, path_of, pictures, source};

fn config(on_error: OnError) -> Config {
    let retry = Retry { retries: 4, first_pause: Duration::from_micros(10), ..Retry::default() };
    Config { batch_size: 8, shuffle: true, cpu_threads: 2, on_error, retry, ..Config::default() }
}

fn scripted(
    count: usize,
    faults: &[(usize, Vec<Fault>)],
    config: Config,
) -> (Loader, Arc<Scripted<forebay_store::testing::Memory>>) {
    // One batch at a time: a script is for one epoch, and prefetching the next one would take its faults.
    let config = Config { prefetch_batches: 1, ..config };
    let store = Arc::new(Scripted::new(pictures(count, false)));
    for (index, script) in faults {
        store.script(path_of(*index), script.clone());
    }
    (Loader::new(source(store.clone(), crop()), config).unwrap(), store)
}

fn failures_of(loader: &Loader) -> Vec<(String, Outcome, u32)> {
    let row = |failure: Failure| (failure.code, failure.outcome, failure.attempts);
    loader.failures().into_iter().map(row).collect()
}

#[test]
fn transient_errors_that_pass_are_delivered_not_replaced() {
    let twice = vec![Fault::Errno(libc::EIO), Fault::Errno(libc::ESTALE)];
    let (loader, _) = scripted(20, &[(3, twice), (4, vec![Fault::Short])], config(OnError::Replace));
    let expected = epoch(&crate::fixture::loader(20, false, config(OnError::Replace)));
    assert_eq!(epoch(&loader), expected);
    let mut failures = failures_of(&loader);
    failures.sort_by_key(|failure| failure.2);
    let unavailable = "unavailable".to_owned();
    assert_eq!(failures, [(unavailable.clone(), Outcome::Recovered, 2), (unavailable, Outcome::Recovered, 3)]);
    assert_eq!(loader.books()[0].1.delivered, 20);
}

#[test]
fn a_lying_read_is_not_called_corrupt() {
    let faults = [(3, vec![Fault::Empty]), (5, vec![Fault::Garbage(b"not a picture".to_vec())])];
    let (loader, _) = scripted(20, &faults, config(OnError::Raise));
    assert_eq!(epoch(&loader).len(), 20);
    assert!(loader.failures().iter().all(|failure| failure.outcome == Outcome::Recovered));
    assert_eq!(loader.failures().len(), 2);
}

#[test]
fn a_file_that_is_written_to_is_read_once_more_then_reported() {
    let faults = [(3, vec![Fault::Changed]), (5, vec![Fault::Changed; 50])];
    let (loader, _) = scripted(20, &faults, config(OnError::Replace));
    assert_eq!(epoch(&loader).len(), 20);
    let mut failures = failures_of(&loader);
    failures.sort_by_key(|failure| failure.1 == Outcome::Recovered);
    let of = |outcome| ("changed".to_owned(), outcome, 2);
    assert_eq!(failures, [of(Outcome::Replaced), of(Outcome::Recovered)]);
    epoch(&loader);
    // It was read again, and again twice: nothing remembers it as bad.
    assert_eq!(failures_of(&loader)[2..], [of(Outcome::Replaced)]);
}

#[test]
fn permanent_errors_are_not_retried_and_transient_ones_end() {
    let always = |errno| vec![Fault::Errno(errno); 50];
    let faults = [(3, always(libc::ENOENT)), (4, always(libc::EACCES)), (5, always(libc::EIO))];
    let (loader, _) = scripted(20, &faults, config(OnError::Replace));
    assert_eq!(epoch(&loader).len(), 20);
    let mut failures = failures_of(&loader);
    failures.sort_by(|a, b| a.0.cmp(&b.0));
    let replaced = |code: &str, attempts| (code.to_owned(), Outcome::Replaced, attempts);
    assert_eq!(failures, [replaced("denied", 1), replaced("not_found", 1), replaced("unavailable", 5)]);
}

#[test]
fn books_balance_under_replace_and_skip() {
    for (on_error, delivered, replaced, skipped) in [(OnError::Replace, 55, 5, 0), (OnError::Skip, 55, 0, 5)] {
        let loader = loader(60, true, config(on_error));
        let mut samples = 0;
        for batch in loader.epoch().unwrap() {
            let batch = batch.unwrap();
            samples += batch.len();
            assert!(on_error == OnError::Skip || batch.len() == 8 || batch.step.0 == 7);
        }
        let (_, books) = loader.books()[0];
        assert_eq!((books.planned, books.delivered, books.replaced, books.skipped), (60, delivered, replaced, skipped));
        assert_eq!(samples as u64, delivered + replaced);
    }
}

#[test]
fn raise_names_the_first_bad_sample_in_planned_order() {
    for cpu_threads in [1, 4] {
        let loader = loader(60, true, Config { cpu_threads, ..config(OnError::Raise) });
        let is_bad = |row: &forebay::Explained| {
            let number: usize = row.path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
            number % 14 == 3
        };
        let first = (0..loader.steps())
            .flat_map(|step| loader.explain(forebay::Step(step), None, None, None).unwrap())
            .find(is_bad)
            .unwrap();
        let outcome: Result<Vec<Batch>> = loader.epoch().unwrap().collect();
        let error = outcome.unwrap_err();
        assert_eq!((error.kind(), error.path()), (Kind::Corrupt, Some(first.path.as_path())));
        assert_eq!(loader.failures()[0].outcome, Outcome::Raised);
    }
}

#[test]
fn max_failures_stops_the_run_at_the_same_sample_every_time() {
    for limit in [FailureLimit::Count(3), FailureLimit::Fraction(0.05)] {
        let mut steps = Vec::new();
        for cpu_threads in [1, 3] {
            let config = Config { max_failures: Some(limit), cpu_threads, ..config(OnError::Replace) };
            let loader = loader(200, true, config);
            let batches: Vec<_> = loader.epoch().unwrap().collect();
            let error = batches.last().unwrap().as_ref().unwrap_err();
            assert_eq!(error.kind(), Kind::TooManyFailures, "{error}");
            steps.push((batches.len(), error.to_string()));
        }
        assert_eq!(steps[0], steps[1]);
    }
}

#[test]
fn a_folder_of_only_bad_files_stops_instead_of_looping() {
    let mut store = forebay_store::testing::Memory::default();
    (0..10).for_each(|index| store.insert(path_of(index), *b"BM nothing"));
    let loader = Loader::new(source(Arc::new(Scripted::new(store)), crop()), config(OnError::Replace)).unwrap();
    let error = loader.epoch().unwrap().next().unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::TooManyFailures);
    assert!(error.to_string().contains("64 substitutes were tried"), "{error}");
}

#[test]
fn storage_that_answers_nothing_stops_the_run_soon() {
    let dead: Vec<_> = (0..40).map(|index| (index, vec![Fault::Errno(libc::ETIMEDOUT); 1000])).collect();
    let (loader, _) = scripted(40, &dead, config(OnError::Replace));
    let error = loader.epoch().unwrap().next().unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::TooManyFailures);
    assert!(error.to_string().contains("3 substitutes were tried"), "{error}");
}

/// Storage that is down and says so, after half a minute each time.
#[derive(Debug)]
struct Down(Arc<ManualClock>);

impl Store for Down {
    fn fetch(&self, request: &ReadRequest<'_>, _: &mut Allot<'_>) -> Result<Object> {
        self.0.advance(Duration::from_secs(30));
        Err(Error::io("read", std::io::Error::from_raw_os_error(libc::EIO)).at_path(request.path))
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        Err(Error::new(Kind::Unavailable, "is never examined").at_path(path))
    }

    fn list(&self, path: &Path) -> Result<Listing> {
        Err(Error::new(Kind::Unavailable, "is never listed").at_path(path))
    }
}

#[test]
fn storage_that_says_slowly_that_it_is_down_stops_the_run_as_soon() {
    let clock = Arc::new(ManualClock::default());
    let retry = Retry { retries: 0, ..Retry::default() };
    let one_thread = Config { io_threads: 1, retry, ..config(OnError::Replace) };
    let mut source = source(Arc::new(Scripted::new(pictures(40, false))), crop());
    source.store = Arc::new(Down(Arc::clone(&clock)));
    let loader = Loader::with_clock(source, one_thread, clock).unwrap();
    let error = loader.epoch().unwrap().next().unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::TooManyFailures);
    // Eight samples of 30 s are four deadlines of 60 s.
    assert!(error.to_string().contains("7 substitutes were tried"), "{error}");
}

#[test]
fn an_error_that_ends_the_run_does_not_wait_for_what_hangs_behind_it() {
    let in_order = Config { shuffle: false, ..config(OnError::Raise) };
    // The third and the sixth sample: even numbers are the first class.
    let faults = [(4, vec![Fault::Errno(libc::ENOENT)]), (10, vec![Fault::Wait])];
    let (loader, store) = scripted(20, &faults, in_order);
    let mut run = loader.epoch().unwrap();
    let error = run.poll(Duration::from_secs(20)).unwrap_err();
    store.release();
    assert_eq!((error.kind(), error.index()), (Kind::NotFound, Some(2)));
    assert_eq!(failures_of(&loader), [("not_found".to_owned(), Outcome::Raised, 1)]);
}

#[test]
fn an_error_that_ends_the_run_waits_for_what_comes_before_it() {
    let in_order = Config { shuffle: false, ..config(OnError::Raise) };
    let faults = [(0, vec![Fault::Wait]), (4, vec![Fault::Errno(libc::ENOENT)])];
    let (loader, store) = scripted(20, &faults, in_order);
    let mut run = loader.epoch().unwrap();
    assert!(matches!(run.poll(Duration::from_millis(100)), Ok(Next::Pending)));
    store.release();
    let error = run.poll(Duration::from_secs(20)).unwrap_err();
    assert_eq!((error.kind(), error.index()), (Kind::NotFound, Some(2)));
}

#[test]
fn a_panic_is_a_value_that_names_its_thread() {
    let (loader, _) = scripted(20, &[(3, vec![Fault::Panic])], config(OnError::Replace));
    let error = loader.epoch().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), Kind::Internal);
    assert!(error.to_string().contains("forebay-io-") && error.to_string().contains("scripted panic"), "{error}");
}

#[test]
fn quarantine_spares_known_bad_files_and_reaches_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger.jsonl");
    let store = Arc::new(Scripted::new(pictures(40, true)));
    let config = Config { ledger: Some(ledger.clone()), ..config(OnError::Replace) };
    let first = Loader::new(source(store.clone(), crop()), config.clone()).unwrap();
    let (one, bad) = (epoch(&first), path_of(3));
    assert_eq!(store.reads(&bad), 2, "a read and the fresh one that confirmed it");
    epoch(&first);
    assert_eq!(store.reads(&bad), 2, "known to be bad");
    // The next run knows from the ledger, and makes the same of it.
    let second = Loader::new(source(store.clone(), crop()), config).unwrap();
    assert_eq!(epoch(&second), one);
    assert_eq!(store.reads(&bad), 2);
    assert_eq!(second.books()[0].1.replaced, 3);
    let lines = std::fs::read_to_string(ledger).unwrap();
    assert_eq!(lines.lines().count(), 9, "three bad files in three epochs");
    for line in lines.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        for name in
            ["path", "index", "code", "stage", "attempts", "message", "hint", "epoch", "step", "rank", "outcome"]
        {
            assert!(value.get(name).is_some(), "{name} is missing in {line}");
        }
    }
}

#[test]
fn descriptors_running_out_slow_the_reading_down_instead_of_failing() {
    let storm: Vec<_> = (0..40).map(|index| (index, vec![Fault::Errno(libc::EMFILE); 3])).collect();
    let (loader, _) = scripted(40, &storm, Config { io_threads: 8, ..config(OnError::Raise) });
    assert_eq!(epoch(&loader).len(), 40);
    assert_eq!(loader.books()[0].1.delivered, 40);
}

#[test]
fn samples_of_different_shape_come_as_values() {
    let mut store = forebay_store::testing::Memory::default();
    store.insert(path_of(0), crate::fixture::bitmap(3, 2, 0));
    store.insert(path_of(1), crate::fixture::bitmap(2, 3, 1));
    let pipeline = Pipeline::new(vec![Op::ToTensor]).unwrap();
    let loader = Loader::new(source(Arc::new(Scripted::new(store)), pipeline), config(OnError::Raise)).unwrap();
    let batch = loader.epoch().unwrap().next().unwrap().unwrap();
    assert!(matches!(batch.into_content(), Column::Objects(values) if values.len() == 2));
}

#[test]
fn batches_without_a_single_good_sample_are_passed_over() {
    let mut store = pictures(40, false);
    (0..40).filter(|index| index % 2 == 0).for_each(|index| store.insert(path_of(index), *b"BM nothing"));
    let config = Config { shuffle: false, ..config(OnError::Skip) };
    let loader = Loader::new(source(Arc::new(Scripted::new(store)), crop()), config).unwrap();
    let sizes: Vec<_> = loader.epoch().unwrap().map(|batch| batch.unwrap().len()).collect();
    // All even numbers are cats, and bad: the first two batches of 8 are empty, the third has 4 dogs.
    assert_eq!(sizes, [4, 8, 8]);
    let (_, books) = loader.books()[0];
    assert_eq!((books.planned, books.delivered, books.skipped), (40, 20, 20));
}
