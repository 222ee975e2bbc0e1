//! `explain` tells what was delivered, substitutes included: here, in an earlier run, on another rank.

use std::sync::Arc;

use forebay::{Config, Epoch, Loader, OnError, Outcome, Rank, SampleId, Step, WorldSize};
use forebay_store::LedgerFile;
use forebay_store::testing::Scripted;

use crate::fixture::{crop, loader, pictures, source};

const COUNT: usize = 60;

fn config(on_error: OnError) -> Config {
    Config { batch_size: 7, shuffle: true, on_error, seed: 3, ..Config::default() }
}

/// What was delivered, by epoch and step.
type Delivered = Vec<(Epoch, Step, Vec<SampleId>)>;

fn deliver(loader: &Loader, steps: usize) -> Delivered {
    let batches = loader.epoch().unwrap().take(steps).map(Result::unwrap);
    batches.map(|batch| (batch.epoch, batch.step, batch.samples)).collect()
}

fn explained(loader: &Loader, epoch: Epoch, step: Step, rank: u32) -> Vec<SampleId> {
    let rows = loader.explain(step, Some(epoch), None, Some(Rank(rank))).unwrap();
    for row in &rows {
        assert_eq!(row.path, loader.source().dataset.path(row.sample));
        assert_eq!(row.scalars, loader.source().dataset.scalars(&[row.sample]));
    }
    rows.iter().map(|row| row.sample).collect()
}

fn check(loader: &Loader, delivered: &Delivered, rank: u32) {
    for (epoch, step, samples) in delivered {
        assert_eq!(&explained(loader, *epoch, *step, rank), samples, "epoch {epoch}, step {step}, rank {rank}");
    }
}

#[test]
fn explain_equals_what_was_delivered_with_substitutes_and_gaps() {
    for on_error in [OnError::Replace, OnError::Skip] {
        let loader = loader(COUNT, true, config(on_error));
        let planned: Vec<_> = (0..loader.steps()).map(|step| explained(&loader, Epoch(1), Step(step), 0)).collect();
        let (first, second) = (deliver(&loader, usize::MAX), deliver(&loader, 4));
        assert_eq!(first.len() as u64, loader.steps());
        check(&loader, &first, 0);
        check(&loader, &second, 0);
        assert_ne!(
            second.iter().map(|(_, _, samples)| samples).collect::<Vec<_>>(),
            planned.iter().take(4).collect::<Vec<_>>()
        );
        // What was not delivered yet is the plan.
        for step in 4..loader.steps() {
            assert_eq!(explained(&loader, Epoch(1), Step(step), 0), planned[step as usize]);
        }
    }
}

#[test]
fn planned_names_what_the_plan_wanted() {
    let loader = loader(COUNT, true, config(OnError::Replace));
    let wanted: Vec<_> = (0..loader.steps()).flat_map(|step| explained(&loader, Epoch(0), Step(step), 0)).collect();
    deliver(&loader, usize::MAX);
    let rows: Vec<_> =
        (0..loader.steps()).flat_map(|step| loader.explain(Step(step), Some(Epoch(0)), None, None).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row.planned).collect::<Vec<_>>(), wanted);
    let replaced: Vec<_> = rows.iter().filter(|row| row.planned != row.sample).map(|row| row.planned.0).collect();
    let failed: Vec<_> = loader.failures().iter().map(|failure| failure.index).collect();
    assert_eq!(replaced, failed);
    assert_eq!(failed.len(), 5);
}

#[test]
fn a_new_process_knows_it_from_the_ledger() {
    for on_error in [OnError::Replace, OnError::Skip] {
        let folder = tempfile::tempdir().unwrap();
        let config = Config { ledger: Some(folder.path().join("ledger.jsonl")), ..config(on_error) };
        let first = loader(COUNT, true, config.clone());
        let mut delivered = deliver(&first, 5);
        let second = loader(COUNT, true, config.clone());
        second.load_state(&first.state()).unwrap();
        delivered.extend(deliver(&second, usize::MAX));
        delivered.extend(deliver(&second, 2));
        check(&second, &delivered, 0);
        check(&loader(COUNT, true, config.clone()), &delivered, 0);
        // Neither another seed nor another dataset is about these lines.
        let other = loader(COUNT, true, Config { seed: 4, ..config.clone() });
        let plan = loader(COUNT, true, Config { seed: 4, ledger: None, ..config });
        for step in 0..plan.steps() {
            assert_eq!(explained(&other, Epoch(0), Step(step), 0), explained(&plan, Epoch(0), Step(step), 0));
        }
    }
}

#[test]
fn ranks_that_share_a_ledger_know_each_others_steps() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { ledger: Some(folder.path().join("ledger.jsonl")), ..config(OnError::Replace) };
    let rank = |rank| Config { rank: Rank(rank), world_size: WorldSize(3), ..config.clone() };
    // All are made before any delivers: what the others enter comes later.
    let ranks: Vec<_> = (0..3).map(|number| loader(COUNT, true, rank(number))).collect();
    let delivered: Vec<_> = ranks.iter().map(|rank| deliver(rank, usize::MAX)).collect();
    assert!(ranks.iter().filter(|rank| !rank.failures().is_empty()).count() > 1);
    for asked in &ranks {
        for (number, delivered) in delivered.iter().enumerate() {
            check(asked, delivered, number as u32);
        }
    }
}

#[test]
fn a_file_that_was_repaired_is_delivered_and_explained_as_planned_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    let config = Config { ledger: Some(path.clone()), ..config(OnError::Replace) };
    let first = loader(COUNT, true, config.clone());
    let state = first.state();
    let damaged = deliver(&first, 6);
    // The same steps again, from the checkpoint, with all files whole.
    let repaired =
        || Loader::new(source(Arc::new(Scripted::new(pictures(COUNT, false))), crop()), config.clone()).unwrap();
    let second = repaired();
    check(&second, &damaged, 0);
    second.load_state(&state).unwrap();
    let delivered = deliver(&second, 6);
    assert_ne!(delivered, damaged);
    check(&second, &delivered, 0);
    check(&repaired(), &delivered, 0);
    assert!(second.failures().is_empty(), "nothing failed in this run");
    let lines = LedgerFile::read(&path).unwrap();
    let (replaced, recovered): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.outcome == Outcome::Replaced);
    assert_eq!(
        replaced.iter().map(|line| line.position).collect::<Vec<_>>(),
        recovered.iter().map(|line| line.position).collect::<Vec<_>>()
    );
}
