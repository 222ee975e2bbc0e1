//! Order and content depend on seed and epoch alone.

use std::collections::HashSet;

use forebay::{Config, Epoch, OnError, Rank, ScalarColumn, Step, WorldSize};

use crate::fixture::{epoch, loader};

fn config() -> Config {
    Config { batch_size: 8, shuffle: true, on_error: OnError::Replace, ..Config::default() }
}

#[test]
fn any_thread_count_gives_the_same_bytes() {
    let expected = epoch(&loader(60, true, config()));
    for (cpu_threads, io_threads, prefetch_batches) in [(1, 1, 1), (2, 3, 2), (5, 16, 9)] {
        let config = Config { cpu_threads, io_threads, prefetch_batches, ..config() };
        assert_eq!(epoch(&loader(60, true, config)), expected, "{cpu_threads} threads");
    }
}

#[test]
fn another_epoch_or_seed_gives_another_order_and_other_crops() {
    let first = loader(60, false, config());
    let (one, two) = (epoch(&first), epoch(&first));
    assert_ne!(one, two);
    // Not only the order differs: no crop of epoch 0 comes again in epoch 1.
    let seen: HashSet<_> = one.iter().collect();
    assert!(two.iter().filter(|hash| seen.contains(hash)).count() < 3);
    let other = epoch(&loader(60, false, Config { seed: 1, ..config() }));
    assert_ne!(one, other);
    // The same epoch again, on the same loader, is the same.
    first.set_epoch(Epoch(1));
    assert_eq!(epoch(&first), two);
}

#[test]
fn without_shuffle_the_folders_order_is_kept() {
    let loader = loader(20, false, Config { shuffle: false, ..config() });
    let samples: Vec<_> = loader.epoch().unwrap().flat_map(|batch| batch.unwrap().samples).collect();
    assert_eq!(samples.iter().map(|sample| sample.0).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
}

#[test]
fn explain_equals_what_is_delivered_on_any_world_size() {
    let one_rank = loader(50, false, Config { batch_size: 7, ..config() });
    for world in [1, 2, 3] {
        for rank in 0..world {
            let config = Config { rank: Rank(rank), world_size: WorldSize(world), batch_size: 7, ..config() };
            let loader = loader(50, false, config);
            for batch in loader.epoch().unwrap() {
                let batch = batch.unwrap();
                let explained = loader.explain(batch.step, None, None, None).unwrap();
                assert_eq!(explained.iter().map(|row| row.sample).collect::<Vec<_>>(), batch.samples);
                let labels = explained.iter().flat_map(|row| row.scalars.clone());
                let expected = batch.labels().unwrap().iter().map(|label| ScalarColumn::labels(vec![*label]));
                assert!(labels.eq(expected));
                let from_outside =
                    one_rank.explain(batch.step, Some(Epoch(0)), Some(WorldSize(world)), Some(Rank(rank)));
                assert_eq!(from_outside.unwrap(), explained);
            }
            assert!(loader.explain(Step(loader.steps()), None, None, None).is_err());
        }
    }
}

#[test]
fn ranks_share_an_epoch_and_make_equal_steps() {
    let mut all = Vec::new();
    let mut steps = HashSet::new();
    for rank in 0..3 {
        let loader = loader(50, true, Config { rank: Rank(rank), world_size: WorldSize(3), ..config() });
        let batches: Vec<_> = loader.epoch().unwrap().map(Result::unwrap).collect();
        steps.insert(batches.iter().map(forebay::Batch::len).collect::<Vec<_>>());
        let (_, books) = loader.books()[0];
        assert_eq!(books.planned, books.delivered + books.replaced);
        all.push(books.planned);
    }
    assert_eq!(steps.len(), 1, "ranks differ in steps or batch sizes: {steps:?}");
    assert_eq!(all.iter().sum::<u64>(), 51, "50 samples and one of padding");
}
