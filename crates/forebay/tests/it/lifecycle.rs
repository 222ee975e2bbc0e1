//! Threads live exactly as long as they are needed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::{Config, Failure, Kind, Loader, Next, Outcome, Retry, SampleId, Stage};
use forebay_store::testing::{Fault, Scripted};

use crate::fixture::{crop, epoch, hashes, loader, path_of, pictures, source};

fn threads() -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap();
    names
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with("forebay-"))
        .count()
}

/// A thread gets its name, and leaves /proc, a moment after it starts and is joined.
fn expect_threads(count: usize) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while threads() != count {
        assert!(Instant::now() < deadline, "expected {count} threads, got {}", threads());
        std::thread::yield_now();
    }
}

/// The only test that counts the threads of this process; others run beside it, so it has a process of its own.
#[test]
fn abandoned_runs_leave_no_thread() {
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    let ended = alone.args(["--ignored", "--exact", "lifecycle::abandoned_runs", "--test-threads=1"]).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "run by abandoned_runs_leave_no_thread, in a process of its own"]
fn abandoned_runs() {
    // Three readers and no more: where they are slow, others would be tried.
    let config =
        Config { batch_size: 2, cpu_threads: 2, io_threads: 3, max_io_threads: 3, shuffle: true, ..Config::default() };
    let loader = loader(40, false, config);
    expect_threads(0); // none before the first run
    for _ in 0..200 {
        let mut run = loader.epoch().unwrap();
        run.next().unwrap().unwrap();
        run.next().unwrap().unwrap();
        drop(run);
        expect_threads(0);
    }
    epoch(&loader);
    expect_threads(6); // after a whole epoch they prepare the next one; one watches
    loader.close();
    expect_threads(0);
    epoch(&loader);
    drop(loader);
    expect_threads(0);
}

#[test]
fn the_next_epoch_is_prefetched_and_used() {
    let store = Arc::new(Scripted::new(pictures(20, false)));
    let config = Config { batch_size: 2, prefetch_batches: 3, shuffle: true, ..Config::default() };
    let twin = Loader::new(source(store.clone(), crop()), config.clone()).unwrap();
    let (_, second_epoch) = (epoch(&twin), epoch(&twin));
    drop(twin);
    let before = store.total_reads();
    let loader = Loader::new(source(store.clone(), crop()), config).unwrap();
    epoch(&loader);
    // The boundary is crossed without being asked.
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.total_reads() - before < 20 + 6 {
        assert!(Instant::now() < deadline, "only {} reads", store.total_reads() - before);
        std::thread::yield_now();
    }
    assert_eq!(epoch(&loader), second_epoch);
    drop(loader);
    assert!(store.total_reads() - before <= 20 + 20 + 6 + 4, "what was prefetched was read again");
}

#[test]
fn a_batch_that_is_not_ready_is_pending_and_what_it_waits_for_is_named() {
    let store = Arc::new(Scripted::new(pictures(4, false)));
    store.script(path_of(0), vec![Fault::Wait]);
    let loader = Loader::new(source(store.clone(), crop()), Config { batch_size: 4, ..Config::default() }).unwrap();
    let mut run = loader.epoch().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while run.in_flight().len() != 1 {
        assert!(matches!(run.poll(Duration::from_millis(1)), Ok(Next::Pending)));
        assert!(Instant::now() < deadline, "{:?}", run.in_flight());
    }
    let stuck = &run.in_flight()[0];
    assert_eq!((stuck.path.as_path(), stuck.stage, stuck.attempt), (path_of(0).as_path(), Stage::Fetch, 1));
    assert!(stuck.thread.starts_with("forebay-io-"));
    store.release();
    assert!(matches!(run.poll(Duration::from_secs(20)), Ok(Next::Batch(_))));
}

#[test]
fn a_stall_is_said_and_entered_into_the_ledger_and_counted_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    let store = Arc::new(Scripted::new(pictures(4, false)));
    store.script(path_of(0), vec![Fault::Wait]);
    // One batch at a time: a read for the next epoch could be the one that waits.
    let config = Config { batch_size: 4, prefetch_batches: 1, ledger: Some(path.clone()), ..Config::default() };
    let loader = Loader::new(source(store.clone(), crop()), config).unwrap();
    let mut run = loader.epoch().unwrap();
    // All of it has been read but the one that waits.
    while store.total_reads() < 4 || run.in_flight().len() != 1 {
        assert!(matches!(run.poll(Duration::from_millis(1)), Ok(Next::Pending)));
    }
    let said = run.stall_in_words(Duration::from_secs(30));
    let stuck = format!("no batch for 30.0 s (epoch 0, step 0); in flight: {:?} (stage fetch, thread ", path_of(0));
    assert!(said.starts_with(&stuck) && said.contains(" on \"/\" ("), "{said}");
    run.note_stall(Duration::from_secs(30));
    let line: Failure = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!((line.outcome, line.code.as_str(), line.stage), (Outcome::Stalled, "timeout", Some(Stage::Fetch)));
    assert_eq!((line.path(), line.index, line.attempts, line.step), (path_of(0), 0, 1, 0));
    assert!(line.message.contains("waited 30.0 s for step 0"), "{}", line.message);
    store.release();
    assert!(matches!(run.poll(Duration::from_secs(20)), Ok(Next::Batch(_))));
    run.note_stall(Duration::from_secs(1));
    assert!(loader.failures().is_empty() && loader.report().to_string().starts_with("no sample failed"));
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
}

#[test]
fn what_waits_for_its_next_attempt_is_named_too() {
    let store = Arc::new(Scripted::new(pictures(4, false)));
    store.script(path_of(0), vec![Fault::Errno(libc::EIO)]);
    let retry = Retry { first_pause: Duration::from_secs(5), ..Retry::default() };
    let config = Config { batch_size: 4, retry, ..Config::default() };
    let loader = Loader::new(source(store.clone(), crop()), config).unwrap();
    let run = loader.epoch().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !run.in_flight().iter().any(|item| item.path == path_of(0) && item.thread.contains("next attempt")) {
        assert!(Instant::now() < deadline, "{:?}", run.in_flight());
    }
}

#[test]
fn abandoning_a_run_does_not_wait_for_a_slow_read_and_closing_does() {
    let store = Arc::new(Scripted::new(pictures(4, false)));
    store.script(path_of(0), vec![Fault::Wait]);
    let loader = Loader::new(source(store.clone(), crop()), Config { batch_size: 4, ..Config::default() }).unwrap();
    let mut run = loader.epoch().unwrap();
    while store.reads(&path_of(0)) == 0 {
        assert!(matches!(run.poll(Duration::from_millis(1)), Ok(Next::Pending)));
    }
    run.abandon(); // would wait for ever if it joined
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| loader.close());
        store.release();
        closing.join().unwrap();
    });
}

#[test]
fn every_io_thread_reads_at_the_same_time() {
    let store = Arc::new(Scripted::new(pictures(40, false)));
    (0..40).for_each(|index| store.script(path_of(index), vec![Fault::Wait]));
    let config = Config { batch_size: 40, io_threads: 12, cpu_threads: 1, ..Config::default() };
    let loader = Loader::new(source(store.clone(), crop()), config).unwrap();
    let mut run = loader.epoch().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.total_reads() < 12 {
        assert!(matches!(run.poll(Duration::from_millis(1)), Ok(Next::Pending)));
        assert!(Instant::now() < deadline, "only {} reads at a time", store.total_reads());
    }
    store.release();
    assert_eq!(run.next().unwrap().unwrap().len(), 40);
}

#[test]
fn a_read_that_never_ends_does_not_keep_the_loader() {
    let store = Arc::new(Scripted::new(pictures(4, false)));
    store.script(path_of(0), vec![Fault::Wait]);
    let loader = Loader::new(source(store.clone(), crop()), Config { batch_size: 4, ..Config::default() }).unwrap();
    let run = loader.epoch().unwrap();
    while store.reads(&path_of(0)) == 0 {
        std::thread::yield_now();
    }
    let started = Instant::now();
    drop(run);
    drop(loader);
    assert!(started.elapsed() < Duration::from_secs(10), "it waits for a read that never ends");
    store.release();
}

#[test]
fn a_slow_sample_delays_its_own_batch_only() {
    let store = Arc::new(Scripted::new(pictures(12, false)));
    store.script(path_of(0), vec![Fault::Wait]);
    let config = Config { batch_size: 2, prefetch_batches: 6, io_threads: 2, ..Config::default() };
    let loader = Loader::new(source(store.clone(), crop()), config).unwrap();
    let mut run = loader.epoch().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.total_reads() < 12 {
        assert!(matches!(run.poll(Duration::from_millis(1)), Ok(Next::Pending)));
        assert!(Instant::now() < deadline, "later batches wait for a slow sample: {} reads", store.total_reads());
    }
    store.release();
    assert_eq!(run.map(|batch| batch.unwrap().len()).sum::<usize>(), 12);
}

#[test]
fn a_users_own_order_is_followed_and_resumed() {
    let loader = loader(10, false, Config { batch_size: 2, ..Config::default() });
    let mut run = loader.given_order().unwrap();
    run.give(vec![SampleId(7), SampleId(7), SampleId(1)]).unwrap();
    run.give(vec![SampleId(0)]).unwrap();
    assert_eq!(run.give(vec![SampleId(10)]).unwrap_err().kind(), Kind::Config);
    run.close_order().unwrap();
    let samples: Vec<_> = run.by_ref().map(|batch| batch.unwrap().samples).collect();
    assert_eq!(samples, [vec![SampleId(7), SampleId(7), SampleId(1)], vec![SampleId(0)]]);
}

#[test]
fn two_runs_at_a_time_do_not_disturb_each_other() {
    let loader = loader(20, false, Config { batch_size: 4, shuffle: true, ..Config::default() });
    let (one, two) = (loader.epoch().unwrap(), loader.epoch().unwrap());
    let mut both = [Vec::new(), Vec::new()];
    for (first, second) in one.zip(two) {
        both[0].extend(hashes(first.unwrap()));
        both[1].extend(hashes(second.unwrap()));
    }
    assert_eq!((both[0].len(), both[1].len()), (20, 20));
    assert_ne!(both[0], both[1], "they are different epochs");
}
