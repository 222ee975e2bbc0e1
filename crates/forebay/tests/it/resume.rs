//! Exact and elastic resume: after every step, on any number of threads and ranks, with bad files.

use forebay::{Config, Kind, OnError, Rank, State, WorldSize};

use crate::fixture::{epoch, hashes, loader};

const SAMPLES: usize = 60;

fn config(cpu_threads: usize, world: u32, rank: u32) -> Config {
    Config {
        batch_size: 4,
        shuffle: true,
        seed: 5,
        cpu_threads,
        world_size: WorldSize(world),
        rank: Rank(rank),
        on_error: OnError::Replace,
        ..Config::default()
    }
}

/// The global sequence from `state` on, read off all ranks of a world: padding left out.
fn remaining(cpu_threads: usize, world: u32, state: Option<&State>) -> Vec<u64> {
    let mut runs: Vec<_> = (0..world)
        .map(|rank| {
            let loader = loader(SAMPLES, true, config(cpu_threads, world, rank));
            state.iter().for_each(|state| loader.load_state(state).unwrap());
            let run = loader.epoch().unwrap();
            (loader, run)
        })
        .collect();
    let mut all = Vec::new();
    'steps: loop {
        for (_, run) in &mut runs {
            match run.next() {
                Some(batch) => all.extend(hashes(batch.unwrap())),
                None => break 'steps,
            }
        }
    }
    let position = state.map_or(0, |state| state.position as usize);
    all.truncate(SAMPLES - position);
    all
}

#[test]
fn resumes_exactly_after_every_step_on_any_threads_and_world() {
    let whole = remaining(2, 1, None);
    assert_eq!(whole.len(), SAMPLES);
    for world in [1, 2, 3, 4] {
        assert_eq!(remaining(1, world, None), whole, "world {world} has another order");
        // States as rank 0 of this world takes them, one after each step.
        let loader = loader(SAMPLES, true, config(5, world, 0));
        let mut states = vec![loader.state()];
        for batch in loader.epoch().unwrap() {
            batch.unwrap();
            states.push(State::from_json(&loader.state().to_json().unwrap()).unwrap());
        }
        for (made, state) in states.iter().enumerate() {
            assert_eq!(state.step.0, made as u64);
            for (threads, other_world) in [(1, 1), (2, 2), (5, 3), (2, 4)] {
                let rest = remaining(threads, other_world, Some(state));
                assert_eq!(
                    rest,
                    whole[state.position as usize..],
                    "{world} ranks, step {made}, then {other_world} ranks"
                );
            }
        }
    }
}

#[test]
fn the_state_after_the_end_is_the_start_of_the_next_epoch() {
    let first = loader(SAMPLES, false, config(2, 1, 0));
    epoch(&first);
    let state = first.state();
    assert_eq!((state.epoch.0, state.step.0, state.position), (1, 0, 0));
    let second = loader(SAMPLES, false, config(1, 1, 0));
    second.load_state(&state).unwrap();
    assert_eq!(epoch(&second), epoch(&first));
}

#[test]
fn a_state_taken_after_the_last_batch_leaves_nothing_of_its_epoch() {
    let first = loader(SAMPLES, false, config(2, 1, 0));
    let mut run = first.epoch().unwrap();
    for _ in 0..first.steps() {
        run.next().unwrap().unwrap();
    }
    let second = loader(SAMPLES, false, config(2, 1, 0));
    second.load_state(&first.state()).unwrap();
    assert!(epoch(&second).is_empty());
    assert!(run.next().is_none());
    assert_eq!(epoch(&second), epoch(&first));
}

#[test]
fn a_run_that_was_dropped_unasked_does_not_count() {
    let other = loader(SAMPLES, false, config(2, 1, 0));
    let expected = [epoch(&other), epoch(&other), epoch(&other)];
    let first = loader(SAMPLES, false, config(2, 1, 0));
    drop(first.epoch().unwrap());
    drop(first.epoch().unwrap());
    assert_eq!(epoch(&first), expected[0]);
    drop(first.epoch().unwrap());
    assert_eq!(epoch(&first), expected[1], "a run that came to its end does");
    // One that a batch was asked of does, too, whatever became of it.
    let mut run = first.epoch().unwrap();
    run.next().unwrap().unwrap();
    let state = first.state();
    drop(run);
    // And a loaded state is still there, with the steps to leave out.
    first.load_state_skipping(&state, 2..4).unwrap();
    drop(first.epoch().unwrap());
    let rest = epoch(&first);
    let third = &expected[2];
    assert_eq!(rest, [&third[4..8], &third[16..]].concat());
}

#[test]
fn prefetched_batches_do_not_count_and_books_go_on() {
    let first = loader(SAMPLES, true, Config { prefetch_batches: 8, ..config(4, 1, 0) });
    let mut run = first.epoch().unwrap();
    run.next().unwrap().unwrap();
    let state = first.state();
    assert_eq!((state.step.0, state.position, state.books.planned), (1, 4, 4));
    drop(run);
    let second = loader(SAMPLES, true, config(1, 1, 0));
    second.load_state(&state).unwrap();
    assert_eq!(second.state(), state, "loading and taking it again changes nothing");
    epoch(&second);
    let (_, books) = second.books()[0];
    assert_eq!((books.planned, books.replaced), (60, 5));
}

#[test]
fn another_dataset_is_refused_with_what_differs() {
    let state = loader(SAMPLES, false, config(1, 1, 0)).state();
    let error = loader(SAMPLES - 1, false, config(1, 1, 0)).load_state(&state).unwrap_err();
    assert_eq!(error.kind(), Kind::StateMismatch);
    assert!(error.to_string().contains("samples: this loader has 59, the state 60"), "{error}");
}

#[test]
fn only_a_committed_batch_counts() {
    let loader = loader(SAMPLES, false, config(1, 1, 0));
    let mut run = loader.epoch().unwrap();
    let mut poll = || loop {
        match run.poll(std::time::Duration::from_secs(20)).unwrap() {
            forebay::Next::Pending => {}
            next => break next,
        }
    };
    let (forebay::Next::Batch(first), forebay::Next::Batch(second)) = (poll(), poll()) else { panic!("no batches") };
    assert_eq!(loader.state().step.0, 0, "they may still fail on their way to the training loop");
    run.commit(first.receipt);
    assert_eq!((loader.state().step.0, loader.state().position), (1, 4), "the other one is still on its way");
    run.commit(second.receipt);
    assert_eq!((loader.state().step.0, loader.state().position), (2, 8));
}

#[test]
fn choosing_the_next_epoch_does_not_move_the_state_of_this_one() {
    let loader = loader(SAMPLES, false, config(1, 1, 0));
    let mut run = loader.epoch().unwrap();
    run.next().unwrap().unwrap();
    loader.set_epoch(forebay::Epoch(7));
    assert_eq!((loader.state().epoch.0, loader.state().step.0), (0, 1));
    drop(run);
    assert_eq!((loader.state().epoch.0, loader.state().step.0), (7, 0));
    assert_eq!(loader.epoch().unwrap().next().unwrap().unwrap().epoch.0, 7);
}

#[test]
fn a_run_that_cannot_begin_loses_no_state() {
    let loader = loader(SAMPLES, false, config(1, 1, 0));
    let state = State { position: 61, step: forebay::Step(3), ..loader.state() };
    loader.load_state(&state).unwrap();
    assert!(loader.epoch().is_err());
    assert_eq!(loader.state().step.0, 3);
}

#[test]
fn a_range_of_steps_can_be_left_out() {
    let whole = loader(SAMPLES, true, config(1, 1, 0));
    let all: Vec<_> = whole.epoch().unwrap().map(|batch| hashes(batch.unwrap())).collect();
    for (resumed_at, skipped, expected) in [(0, 2..4, vec![0, 1, 4, 5]), (3, 1..5, vec![5]), (3, 90..95, vec![3, 4, 5])]
    {
        let first = loader(SAMPLES, true, config(1, 1, 0));
        let mut run = first.epoch().unwrap();
        (0..resumed_at).for_each(|_| drop(run.next().unwrap().unwrap()));
        let second = loader(SAMPLES, true, config(2, 1, 0));
        second.load_state_skipping(&first.state(), skipped).unwrap();
        let rest: Vec<_> = second.epoch().unwrap().map(|batch| hashes(batch.unwrap())).collect();
        let until = expected.len();
        let wanted: Vec<_> = expected.into_iter().map(|step: usize| all[step].clone()).collect();
        assert_eq!(rest[..until], wanted);
        assert_eq!(rest.last(), all.last());
        assert_eq!(second.state().epoch.0, 1, "and the next epoch is whole");
        assert_eq!(epoch(&second).len(), SAMPLES);
    }
}

#[test]
fn a_position_beyond_the_dataset_is_refused() {
    let loader = loader(SAMPLES, false, config(1, 1, 0));
    loader.load_state(&State { position: 61, ..loader.state() }).unwrap();
    assert_eq!(loader.epoch().err().unwrap().kind(), Kind::StateMismatch);
}

#[test]
fn explain_knows_where_a_resumed_epoch_was_entered() {
    let one_rank = loader(SAMPLES, false, config(1, 1, 0));
    let mut run = one_rank.epoch().unwrap();
    (0..3).for_each(|_| drop(run.next().unwrap().unwrap()));
    let second = loader(SAMPLES, false, config(1, 3, 1));
    second.load_state(&one_rank.state()).unwrap();
    for batch in second.epoch().unwrap() {
        let batch = batch.unwrap();
        let explained = second.explain(batch.step, Some(batch.epoch), None, None).unwrap();
        assert_eq!(explained.iter().map(|row| row.sample).collect::<Vec<_>>(), batch.samples);
    }
}
