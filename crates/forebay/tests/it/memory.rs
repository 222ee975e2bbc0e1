//! Memory is charged before it is taken.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay::{Column, Config, Custom, Kind, Loader, Op, Pipeline, Result, Value};
use forebay_store::testing::Scripted;

use crate::fixture::{bitmap, crop, epoch, loader, path_of, source};

#[test]
fn a_budget_of_hardly_more_than_a_batch_still_gets_through() {
    let expected = epoch(&loader(30, false, Config { batch_size: 4, ..Config::default() }));
    // A batch is 4 × 3 × 4 × 4 floats; a picture with all that decoding it takes is more.
    let config = Config {
        batch_size: 4,
        memory_budget: 768,
        max_sample_bytes: Some(1 << 20),
        cpu_threads: 3,
        io_threads: 5,
        ..Config::default()
    };
    assert_eq!(epoch(&loader(30, false, config.clone())), expected);
    let store = Arc::new(Scripted::new(crate::fixture::pictures(30, false)));
    let error = Loader::new(source(store, crop()), Config { memory_budget: 767, ..config }).err().unwrap();
    assert!(error.to_string().contains("expected at least 768 bytes, which one batch of 4 takes, got 767"), "{error}");
}

#[test]
fn a_file_larger_than_any_sample_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("cat")).unwrap();
    for (name, size) in [("good.bmp", None), ("huge.bmp", Some(5u64 << 30))] {
        let path = folder.path().join("cat").join(name);
        std::fs::write(&path, bitmap(9, 7, 0)).unwrap();
        if let Some(size) = size {
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(size).unwrap();
        }
    }
    let source = forebay::Source::image_folder(folder.path(), crop()).unwrap();
    let loader = Loader::new(source, Config { on_error: forebay::OnError::Replace, ..Config::default() }).unwrap();
    assert_eq!(epoch(&loader).len(), 2);
    let failure = &loader.failures()[0];
    let expected = "needs too much memory for one sample (expected at most 1073741824 bytes, got 5368709120: 5368709120 to \
                    read and 0 to decode)";
    assert!(failure.message.contains(expected), "{failure:?}");
}

/// Four small pictures and a large one in the middle, of the folder's second class.
fn one_large(on_error: forebay::OnError, max_sample_bytes: Option<u64>) -> Loader {
    let mut store = forebay_store::testing::Memory::default();
    for index in 0..5 {
        let side = if index == 2 { 300 } else { 9 };
        store.insert(path_of(index), bitmap(side, side, index as u64));
    }
    let memory_budget = if max_sample_bytes.is_some() { 1 << 30 } else { 200_000 };
    let config = Config { on_error, memory_budget, max_sample_bytes, ..Config::default() };
    let dataset = crate::fixture::source(Arc::new(Scripted::new(store)), crop());
    Loader::new(dataset, config).unwrap()
}

#[test]
fn a_sample_that_takes_more_memory_than_one_may_is_treated_like_other_bad_ones() {
    use forebay::OnError;
    // The file has 270,054 bytes; to decode it takes as many again, 64 KiB, and what the transforms take. The budget is the
    // limit by default.
    for (limit, to_decode) in [(None, 0), (Some(200_000), 0), (Some(300_000), 355_008)] {
        let most = limit.unwrap_or(200_000);
        let expected = format!(
            "needs too much memory for one sample (expected at most {most} bytes, got {}: 270054 to read and {to_decode} to \
             decode)",
            270_054 + to_decode
        );
        let loader = one_large(OnError::Replace, limit);
        assert_eq!(epoch(&loader).len(), 5);
        let (_, books) = loader.books()[0];
        assert_eq!((books.delivered, books.replaced), (4, 1));
        let failures = loader.failures();
        let failure = &failures[0];
        assert_eq!((failure.path(), failure.code.as_str()), (path_of(2), Kind::Exhausted.slug()));
        assert_eq!((failure.attempts, failures.len()), (1, 1), "it is not tried again");
        assert!(failure.message.contains(&expected), "{}", failure.message);

        assert_eq!(epoch(&one_large(OnError::Skip, limit)).len(), 4);
        let error = one_large(OnError::Raise, limit).epoch().unwrap().find_map(Result::err).unwrap();
        assert!(error.to_string().contains(&expected), "{error}");
        assert!(error.hint().starts_with("raise `max_sample_bytes`"), "{}", error.hint());
    }
    assert_eq!(epoch(&one_large(OnError::Raise, Some(700_000))).len(), 5);
}

/// Counts how many samples are being transformed at the same time.
#[derive(Default)]
struct Gauge {
    now: AtomicU64,
    most: AtomicU64,
}

impl Custom for Gauge {
    fn name(&self) -> &str {
        "Gauge"
    }

    fn apply(&self, value: Value, _seed: u64) -> Result<Value> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        std::thread::yield_now();
        self.now.fetch_sub(1, Ordering::SeqCst);
        Ok(value)
    }
}

#[test]
fn pictures_larger_than_the_budget_are_decoded_one_at_a_time() {
    let gauge = Arc::new(Gauge::default());
    let mut store = forebay_store::testing::Memory::default();
    (0..12).for_each(|index| store.insert(path_of(index), bitmap(200, 200, index as u64)));
    let pipeline = Pipeline::new(vec![Op::Custom(gauge.clone()), Op::ToTensor]).unwrap();
    let config = Config {
        batch_size: 2,
        memory_budget: 100_000,
        max_sample_bytes: Some(10_000_000),
        cpu_threads: 4,
        io_threads: 4,
        ..Config::default()
    };
    let loader = Loader::new(source(Arc::new(Scripted::new(store)), pipeline), config).unwrap();
    assert_eq!(epoch(&loader).len(), 12);
    assert_eq!(gauge.most.load(Ordering::SeqCst), 1);
}

#[test]
fn wrong_settings_are_refused_before_anything_starts() {
    let config = Config { batch_size: 0, memory_budget: 0, ..Config::default() };
    let store = Arc::new(Scripted::new(crate::fixture::pictures(2, false)));
    let error = Loader::new(source(store, crop()), config).err().unwrap();
    assert_eq!(error.kind(), Kind::Config);
    assert!(error.to_string().contains("batch_size") && error.to_string().contains("memory_budget"), "{error}");
}

#[test]
fn a_loop_that_is_slower_than_its_loader_gets_the_memory_of_the_batch_it_let_go() {
    let (batches, ahead) = (20, 2);
    let config = Config { batch_size: 2, prefetch_batches: ahead, ..Config::default() };
    let loader = loader(2 * batches, false, config);
    let mut held = None;
    let mut places = HashSet::new();
    for (number, batch) in loader.epoch().unwrap().enumerate() {
        let Column::Dense { buffer, .. } = batch.unwrap().into_content() else { panic!("a dense batch is expected") };
        places.insert(buffer.as_ptr() as usize);
        // As in `for images, labels in loader`: the batch before is let go once there is the next one.
        drop(held.replace(buffer));
        let prepared = batches.min(number + 1 + ahead) as u64;
        let deadline = Instant::now() + Duration::from_secs(20);
        while loader.stats().assemble.items < prepared {
            assert!(Instant::now() < deadline, "after batch {number}: {:?}", loader.stats().assemble);
            std::thread::yield_now();
        }
    }
    assert!(places.len() <= ahead + 1, "{} pieces of memory", places.len());
}

#[test]
fn a_loop_that_takes_its_time_has_one_batch_waiting_and_all_that_it_keeps() {
    let (batches, ahead) = (400, 3);
    let config = Config { batch_size: 2, prefetch_batches: ahead, prefetch_shrinks: true, ..Config::default() };
    let loader = loader(2 * batches, false, config);
    let mut run = loader.epoch().unwrap().enumerate();
    let mut take = || {
        let (number, batch) = run.next().expect("fewer batches than that are needed to see it");
        let Column::Dense { buffer, .. } = batch.unwrap().into_content() else { panic!("a dense batch is expected") };
        (number as u64, buffer)
    };
    let made = || loader.stats().assemble.items;
    let mut held = None;
    let mut steps_with_one = 0;
    while steps_with_one < 5 {
        let (number, buffer) = take();
        drop(held.replace(buffer));
        let begun = Instant::now();
        while made() < number + 2 {
            assert!(begun.elapsed() < Duration::from_secs(20), "after batch {number}: {:?}", loader.stats().assemble);
            std::thread::yield_now();
        }
        // Several times as long as a batch takes.
        std::thread::sleep(begun.elapsed() * 4 + Duration::from_millis(2));
        steps_with_one = if made() == number + 2 { steps_with_one + 1 } else { 0 };
    }
    // None comes back any more, and the next batch does not wait for it.
    let kept: Vec<_> = (0..20).map(|_| take().1).collect();
    let places: HashSet<_> = kept.iter().map(|buffer| buffer.as_ptr() as usize).collect();
    assert_eq!(places.len(), 20);
}
