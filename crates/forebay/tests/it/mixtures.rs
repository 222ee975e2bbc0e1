//! Several datasets in one loader: each with its store and recipe, in given proportions, resumed anywhere, with bad files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{
    Balanced, Concat, Config, Dataset, Epoch, Loader, Mixture, OnError, Op, PartsRecipe, Pipeline, Rank, Recipe,
    Routed, Sampling, ScanOptions, Source, State, Step, Store, Weighted, WorldSize, scan_folder,
};
use forebay_store::testing::{Memory, Scripted};

use crate::fixture::{bitmap, crop, hashes};

/// Samples of the two datasets. Of the second some are bad.
const COUNTS: [u64; 2] = [40, 14];
const SAMPLES: u64 = 60;
/// The proportions change in the middle of the second epoch.
const CHANGE: u64 = 90;

/// Pictures below a root of their own, and a store that has nothing else.
fn pictures(root: &str, count: u64, is_bad: fn(u64) -> bool) -> (Arc<dyn Dataset>, Arc<dyn Store>) {
    let mut memory = Memory::default();
    for index in 0..count {
        let mut bytes = bitmap(9, 7, index + root.len() as u64 * 1000);
        bytes.truncate(if is_bad(index) { bytes.len() / 2 } else { bytes.len() });
        memory.insert(Path::new(root).join(["cat", "dog"][index as usize % 2]).join(format!("{index:04}.bmp")), bytes);
    }
    let store: Arc<dyn Store> = Arc::new(Scripted::new(memory));
    let index = scan_folder(&store, Path::new(root), &ScanOptions::images(), None).unwrap();
    (Arc::new(index), store)
}

/// Random crops of one dataset, and plain ones of the other: the same columns.
fn source() -> Source {
    let plain = Pipeline::new(vec![Op::CenterCrop { size: 4.into() }, Op::ToTensor]).unwrap();
    let recipes: Vec<Arc<dyn Recipe>> = vec![Arc::new(crop()), Arc::new(plain)];
    let roots = ["/one", "/second"];
    let made = [pictures(roots[0], COUNTS[0], |_| false), pictures(roots[1], COUNTS[1], |index| index % 7 == 3)];
    let stores = roots.iter().zip(&made).map(|(root, (_, store))| (PathBuf::from(root), Arc::clone(store)));
    let store = Arc::new(Routed::new(stores).unwrap());
    let dataset = Concat::new(made.iter().map(|(dataset, _)| Arc::clone(dataset)).collect()).unwrap();
    Source { dataset: Arc::new(dataset), store, recipe: Arc::new(PartsRecipe::new(recipes).unwrap()) }
}

fn mixture() -> Sampling {
    let weights = [(0, vec![0.7, 0.3]), (CHANGE, vec![0.25, 0.75])];
    Sampling::Mixture(Mixture::new(&COUNTS, SAMPLES, &weights).unwrap())
}

fn loader(sampling: Sampling, cpu_threads: usize, world: u32, rank: u32) -> Loader {
    let config = Config {
        batch_size: 4,
        shuffle: true,
        seed: 5,
        cpu_threads,
        world_size: WorldSize(world),
        rank: Rank(rank),
        on_error: OnError::Replace,
        sampling: Some(sampling),
        ..Config::default()
    };
    Loader::new(source(), config).unwrap()
}

/// What an epoch has from a state on, read off all ranks of a world: padding left out.
fn rest(sampling: &Sampling, cpu_threads: usize, world: u32, state: &State) -> Vec<u64> {
    let mut runs: Vec<_> = (0..world)
        .map(|rank| {
            let loader = loader(sampling.clone(), cpu_threads, world, rank);
            loader.load_state(state).unwrap();
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
    all.truncate((sampling.samples() - state.position) as usize);
    all
}

#[test]
fn any_sampling_resumes_exactly_on_any_threads_and_world() {
    let weights: Vec<_> = (0..54).map(|sample| f64::from(sample % 5)).collect();
    let classes: Vec<_> = (0..54).map(|sample| sample % 4).collect();
    let samplings = [
        mixture(),
        Sampling::Weighted(Weighted::new(&weights, SAMPLES, true).unwrap()),
        Sampling::Weighted(Weighted::new(&weights, 30, false).unwrap()),
        Sampling::Balanced(Balanced::new(&classes, SAMPLES).unwrap()),
    ];
    for sampling in samplings {
        // The second epoch, in which the weights of the mixture change.
        let first = loader(sampling.clone(), 2, 1, 0);
        first.set_epoch(Epoch(1));
        let start = first.state();
        let whole: Vec<_> = first.epoch().unwrap().flat_map(|batch| hashes(batch.unwrap())).collect();
        assert_eq!(whole.len() as u64, sampling.samples());
        for world in [1, 2, 3, 4] {
            assert_eq!(rest(&sampling, 1, world, &start), whole, "{world} ranks");
            let running = loader(sampling.clone(), 3, world, 0);
            running.load_state(&start).unwrap();
            for batch in running.epoch().unwrap() {
                batch.unwrap();
                let state = State::from_json(&running.state().to_json().unwrap()).unwrap();
                let got = rest(&sampling, 2, world % 3 + 1, &state);
                assert_eq!(got, whole[state.position as usize..], "after step {} of {world} ranks", state.step);
            }
        }
    }
}

#[test]
fn a_mixture_has_its_proportions_and_substitutes_are_of_the_same_dataset() {
    let loader = loader(mixture(), 2, 1, 0);
    let part_of = |sample: u64| usize::from(sample >= COUNTS[0]);
    let mut counts = [0_u64; 2];
    for _ in 0..3 {
        for batch in loader.epoch().unwrap() {
            for sample in batch.unwrap().samples {
                let position = counts.iter().sum::<u64>();
                counts[part_of(sample.0)] += 1;
                let shares = if position < CHANGE { [0.7, 0.3] } else { [0.25, 0.75] };
                let before = if position < CHANGE { [0.0, 0.0] } else { [63.0, 27.0] };
                let length = (position + 1).saturating_sub(if position < CHANGE { 0 } else { CHANGE }) as f64;
                for part in 0..2 {
                    let exact: f64 = before[part] + length * shares[part];
                    assert!((counts[part] as f64 - exact).abs() < 1.0, "{counts:?} at {position}");
                }
            }
        }
    }
    assert_eq!(loader.delivered_by_part(), counts);
    let failures = loader.failures();
    assert!(!failures.is_empty());
    for failure in failures {
        assert!(failure.path.starts_with("/second"));
        assert!(failure.substitute.unwrap() >= COUNTS[0], "{failure:?}");
    }
    let books = loader.books();
    assert_eq!(books.iter().map(|(_, books)| books.planned).collect::<Vec<_>>(), [SAMPLES; 3]);
}

#[test]
fn a_sample_that_comes_again_in_an_epoch_is_augmented_anew() {
    let mut weights = vec![0.0; 54];
    weights[7] = 1.0;
    let always = Sampling::Weighted(Weighted::new(&weights, 20, true).unwrap());
    let loader = loader(always, 2, 1, 0);
    let mut crops: Vec<_> = loader.epoch().unwrap().flat_map(|batch| hashes(batch.unwrap())).collect();
    crops.sort_unstable();
    crops.dedup();
    assert!(crops.len() > 10, "{} different crops of 20", crops.len());
}

#[test]
fn explain_is_what_was_delivered() {
    let loader = loader(mixture(), 2, 1, 0);
    let delivered: Vec<Vec<_>> = loader.epoch().unwrap().map(|batch| batch.unwrap().samples).collect();
    let mut roots = BTreeMap::new();
    for (step, samples) in (0..).zip(&delivered) {
        let rows = loader.explain(Step(step), Some(Epoch(0)), None, None).unwrap();
        assert_eq!(rows.iter().map(|row| row.sample).collect::<Vec<_>>(), *samples);
        for row in rows {
            *roots.entry(row.path.starts_with("/second")).or_insert(0) += 1;
        }
    }
    assert_eq!(roots, BTreeMap::from([(false, 42), (true, 18)]));
}

#[test]
fn weights_of_another_dataset_are_refused() {
    let few = Sampling::Weighted(Weighted::new(&[1.0; 3], 3, true).unwrap());
    let config = Config { sampling: Some(few), ..Config::default() };
    let message = Loader::new(source(), config).map(|_| ()).unwrap_err().to_string();
    assert!(message.contains("expected 54, one for each sample, got 3"), "{message}");
}
