//! Samples that are parts of one object: reads of ranges, and failures that condemn a part and not its object.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{
    Blocks, Config, Dataset, DatasetIdentity, Field, Kind, Loader, Locator, OnError, SampleId, ScalarColumn, Source,
    Store, TextRecipe,
};
use forebay_store::testing::{Memory, Scripted};

use crate::fixture::{crop, hashes, pictures, source};

const SHARD: &str = "/shards/records.bin";
const COUNT: u64 = 30;
const SIZE: u64 = 16;
const DAMAGED: u64 = 11;
/// Records that lie in one block.
const BLOCK: u64 = 6;

/// Records of one file, of which the even ones have names.
struct Records;

impl Dataset for Records {
    fn len(&self) -> u64 {
        COUNT
    }
    fn locate(&self, sample: SampleId, _field: Field, locator: &mut Locator) {
        let start = sample.0 * SIZE;
        let member = sample.0.is_multiple_of(2).then(|| format!("{:02}.txt", sample.0));
        *locator = Locator { path: SHARD.into(), range: Some(start..start + SIZE), member };
    }
    fn blocks(&self) -> Option<Blocks> {
        Blocks::new(std::iter::repeat_n(BLOCK, (COUNT / BLOCK) as usize)).ok()
    }
    fn scalars(&self, samples: &[SampleId]) -> Vec<ScalarColumn> {
        vec![ScalarColumn::labels(samples.iter().map(|sample| sample.0 as i64).collect())]
    }
    fn identity(&self) -> DatasetIdentity {
        DatasetIdentity { samples: COUNT, classes: 0, fingerprint: "records".to_owned() }
    }
}

fn store() -> Scripted<Memory> {
    let mut content: Vec<u8> = (0..COUNT).flat_map(|number| format!("record {number:>8}\n").into_bytes()).collect();
    assert_eq!(content.len() as u64, COUNT * SIZE);
    content[(DAMAGED * SIZE) as usize + 3] = 0xFF;
    let mut memory = Memory::default();
    memory.insert(SHARD, content);
    Scripted::new(memory)
}

fn loader(store: Arc<dyn Store>, config: Config) -> Loader {
    Loader::new(Source::new(Arc::new(Records), store, TextRecipe::default()), config).unwrap()
}

fn config() -> Config {
    Config { batch_size: 4, shuffle: true, seed: 5, cpu_threads: 2, on_error: OnError::Replace, ..Config::default() }
}

fn in_windows(blocks: u64) -> Config {
    Config { shuffle_window: NonZeroU64::new(blocks), ..config() }
}

#[test]
fn parts_are_read_by_themselves_and_resume_exactly() {
    resumes_exactly(&config());
}

#[test]
fn an_order_by_blocks_resumes_exactly() {
    resumes_exactly(&in_windows(2));
}

#[test]
fn an_order_by_blocks_needs_the_blocks_of_one_window_at_a_time() {
    let order = |config: Config| -> Vec<u64> {
        let loader = loader(Arc::new(store()), Config { batch_size: COUNT, ..config });
        let places = loader.explain(forebay::Step(0), None, None, None).unwrap();
        places.iter().map(|place| place.planned.0).collect()
    };
    let blocks_of = |samples: &[u64]| samples.iter().map(|sample| sample / BLOCK).collect::<BTreeSet<_>>().len();
    let (by_block, by_two, global) = (order(in_windows(1)), order(in_windows(2)), order(config()));
    assert!(by_block.chunks(BLOCK as usize).all(|window| blocks_of(window) == 1), "{by_block:?}");
    // Five blocks in windows of at most two: 2 + 2 + 1.
    let counts: Vec<_> = by_two.chunks(2 * BLOCK as usize).map(blocks_of).collect();
    assert_eq!(counts, [2, 2, 1]);
    assert!(blocks_of(&global[..BLOCK as usize]) > 2, "{global:?}");
    for mut order in [by_block, by_two, global] {
        order.sort_unstable();
        assert_eq!(order, (0..COUNT).collect::<Vec<_>>());
    }
}

#[test]
fn an_order_by_blocks_is_refused_where_it_cannot_be_had_or_was_another() {
    let by_two = loader(Arc::new(store()), in_windows(2));
    let error = loader(Arc::new(store()), config()).load_state(&by_two.state()).unwrap_err();
    assert_eq!(error.kind(), Kind::StateMismatch);
    assert!(error.to_string().contains("shard-local order: this loader has none"), "{error}");
    let pictures = source(Arc::new(pictures(4, false)), crop());
    let error = Loader::new(pictures, in_windows(2)).err().unwrap();
    assert_eq!(error.kind(), Kind::Config);
    assert!(error.to_string().contains("expected a dataset whose samples lie in blocks"), "{error}");
}

fn resumes_exactly(config: &Config) {
    let config = || config.clone();
    let first = loader(Arc::new(store()), config());
    let mut states = Vec::new();
    let mut whole: Vec<Vec<u64>> = Vec::new();
    for batch in first.epoch().unwrap() {
        whole.push(hashes(batch.unwrap()));
        states.push(first.state());
    }
    for (step, state) in states.iter().enumerate() {
        let resumed = loader(Arc::new(store()), config());
        resumed.load_state(state).unwrap();
        let rest: Vec<_> = resumed.epoch().unwrap().map(|batch| hashes(batch.unwrap())).collect();
        assert_eq!(rest, whole[step + 1..]);
    }
    // Every sample once, the damaged one twice and its substitute; the next epoch is prefetched.
    let bytes_read = first.stats().bytes_read;
    assert!(bytes_read.is_multiple_of(SIZE) && bytes_read >= (COUNT + 2) * SIZE, "{bytes_read}");
}

#[test]
fn a_damaged_part_condemns_itself_and_not_its_object() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger.jsonl");
    for attempts in [2, 0] {
        let loader = loader(Arc::new(store()), Config { ledger: Some(ledger.clone()), ..config() });
        let delivered: usize = loader.epoch().unwrap().map(|batch| batch.unwrap().len()).sum();
        assert_eq!(delivered as u64, COUNT);
        let failures = loader.failures();
        assert_eq!(failures.len(), 1, "{failures:?}");
        let failure = &failures[0];
        assert_eq!((failure.index, failure.attempts, &*failure.code), (DAMAGED, attempts, "corrupt"));
        assert_eq!((failure.path(), failure.offset), (PathBuf::from(SHARD), Some(DAMAGED * SIZE)));
        assert_eq!(failure.name(), Path::new("/shards/records.bin@176"));
        assert!(failure.message.starts_with("\"/shards/records.bin@176\" is not UTF-8"), "{}", failure.message);
        loader.close();
    }
    // What the ledger has is what `explain` knows in another process.
    let other = loader(Arc::new(store()), Config { ledger: Some(ledger), ..config() });
    let places: Vec<_> =
        (0..8).flat_map(|step| other.explain(forebay::Step(step), None, None, None).unwrap()).collect();
    let place = places.iter().find(|place| place.planned.0 == DAMAGED).unwrap();
    assert_ne!(place.sample.0, DAMAGED);
    let named = places.iter().find(|place| place.planned.0 == 4).unwrap();
    assert_eq!(named.path, Path::new("/shards/records.bin#04.txt"));
}

#[test]
fn an_object_that_is_shorter_than_its_index_fails_the_parts_behind_its_end() {
    let mut memory = Memory::default();
    memory.insert(SHARD, vec![b'x'; (COUNT * SIZE - 1) as usize]);
    let loader = loader(Arc::new(Scripted::new(memory)), Config { on_error: OnError::Skip, ..config() });
    let delivered: usize = loader.epoch().unwrap().map(|batch| batch.unwrap().len()).sum();
    assert_eq!(delivered as u64, COUNT - 1);
    let failure = &loader.failures()[0];
    assert_eq!((failure.index, &*failure.code), (COUNT - 1, Kind::Corrupt.slug()));
    assert!(failure.message.contains("is truncated (expected at least 480 bytes, got 479)"), "{}", failure.message);
}
