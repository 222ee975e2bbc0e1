//! Samples of several fields: each is located, read, checked and condemned by itself, and the sample is one.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay::{
    Batch, Blocks, Column, Config, Dataset, DatasetIdentity, Field, FieldsRecipe, Kind, Loader, Locator, NpyRecipe,
    OnError, Rank, Recipe, Retry, SampleId, ScalarColumn, Source, State, TextRecipe, WorldSize,
};
use forebay_store::testing::{Fault, Memory, Scripted};

use crate::fixture::{bitmap, crop};

const COUNT: u64 = 42;
const PICTURE: Field = Field(0);
const SHARD: &str = "/pairs/captions.bin";
const CAPTION_BYTES: u64 = 12;

/// Pictures in files of their own, and captions side by side in one file.
struct Pairs;

fn picture_of(sample: u64) -> PathBuf {
    format!("/pairs/{sample:03}.bmp").into()
}

impl Dataset for Pairs {
    fn len(&self) -> u64 {
        COUNT
    }
    fn field_count(&self) -> u32 {
        2
    }
    fn locate(&self, sample: SampleId, field: Field, locator: &mut Locator) {
        *locator = match field {
            PICTURE => Locator::whole(picture_of(sample.0)),
            _ => {
                let start = sample.0 * CAPTION_BYTES;
                let member = Some(format!("{:03}", sample.0));
                Locator { path: SHARD.into(), range: Some(start..start + CAPTION_BYTES), member }
            }
        };
    }
    fn blocks(&self) -> Option<Blocks> {
        Blocks::new([20, 0, 22]).ok()
    }
    fn scalars(&self, samples: &[SampleId]) -> Vec<ScalarColumn> {
        vec![ScalarColumn::labels(samples.iter().map(|sample| sample.0 as i64).collect())]
    }
    fn identity(&self) -> DatasetIdentity {
        DatasetIdentity { samples: COUNT, classes: 0, fingerprint: "pairs".to_owned() }
    }
}

fn caption(sample: u64) -> String {
    format!("caption {sample:04}")
}

/// Samples 3, 17 and 31 have a damaged picture, sample 8 a damaged caption.
fn store() -> Scripted<Memory> {
    let mut memory = Memory::default();
    for sample in 0..COUNT {
        let mut bytes = bitmap(9, 7, sample);
        if sample % 14 == 3 {
            bytes.truncate(bytes.len() / 2);
        }
        memory.insert(picture_of(sample), bytes);
    }
    let mut captions: Vec<u8> = (0..COUNT).flat_map(|sample| caption(sample).into_bytes()).collect();
    captions[(8 * CAPTION_BYTES) as usize] = 0xFF;
    memory.insert(SHARD, captions);
    Scripted::new(memory)
}

fn recipe() -> FieldsRecipe {
    let captions: Arc<dyn Recipe> = Arc::new(TextRecipe::default());
    FieldsRecipe::new(vec![("image".to_owned(), Arc::new(crop())), ("caption".to_owned(), captions)]).unwrap()
}

fn config() -> Config {
    Config { batch_size: 4, shuffle: true, seed: 7, cpu_threads: 2, on_error: OnError::Replace, ..Config::default() }
}

fn loader(store: Scripted<Memory>, config: Config) -> Loader {
    Loader::new(Source::new(Arc::new(Pairs), Arc::new(store), recipe()), config).unwrap()
}

/// Each sample of a batch: its number, pixels and caption.
fn samples_of(batch: Batch) -> Vec<(u64, Vec<u8>, String)> {
    let names: Vec<_> = batch.columns.iter().map(|column| &*column.name).collect();
    assert_eq!(names, ["image", "caption", "label"]);
    let ids: Vec<_> = batch.samples.iter().map(|sample| sample.0).collect();
    let mut columns = batch.columns.into_iter().map(|column| column.column);
    let (Some(Column::Dense { mut buffer, layout }), Some(Column::Text(captions))) = (columns.next(), columns.next())
    else {
        panic!("expected pictures of one size, and texts")
    };
    assert_eq!(layout.shape, [3, 4, 4]);
    let pixels = buffer.bytes().chunks_exact(layout.size_bytes()).map(<[u8]>::to_vec);
    ids.into_iter().zip(pixels).zip(captions).map(|((id, pixels), caption)| (id, pixels, caption)).collect()
}

fn epoch(loader: &Loader) -> Vec<(u64, Vec<u8>, String)> {
    loader.epoch().unwrap().flat_map(|batch| samples_of(batch.unwrap())).collect()
}

#[test]
fn the_fields_of_a_sample_stay_together_and_resume_exactly_on_any_threads_and_world() {
    for shuffle_window in [None, NonZeroU64::new(1)] {
        let config = || Config { shuffle_window, ..config() };
        let first = loader(store(), config());
        let mut states = vec![first.state()];
        let mut whole = Vec::new();
        for batch in first.epoch().unwrap() {
            whole.extend(samples_of(batch.unwrap()));
            states.push(State::from_json(&first.state().to_json().unwrap()).unwrap());
        }
        assert_eq!(whole.len() as u64, COUNT);
        assert!(whole.iter().all(|(sample, _, text)| *text == caption(*sample)));
        for state in &states {
            for (cpu_threads, world) in [(1, 1), (2, 2), (5, 3)] {
                let ranks = (0..world).map(|rank| Config {
                    cpu_threads,
                    world_size: WorldSize(world),
                    rank: Rank(rank),
                    ..config()
                });
                let loaders: Vec<_> = ranks.map(|config| loader(store(), config)).collect();
                loaders.iter().for_each(|loader| loader.load_state(state).unwrap());
                let mut runs: Vec<_> = loaders.iter().map(|loader| loader.epoch().unwrap()).collect();
                let mut rest = Vec::new();
                while let Some(batches) = runs.iter_mut().map(Iterator::next).collect::<Option<Vec<_>>>() {
                    rest.extend(batches.into_iter().flat_map(|batch| samples_of(batch.unwrap())));
                }
                rest.truncate(whole.len() - state.position as usize);
                assert_eq!(rest, whole[state.position as usize..], "from {} on {world} ranks", state.position);
            }
        }
    }
}

#[test]
fn a_damaged_field_is_named_and_condemns_itself_alone() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger.jsonl");
    for attempts in [2, 0] {
        let loader = loader(store(), Config { ledger: Some(ledger.clone()), ..config() });
        let found = epoch(&loader);
        assert_eq!(found.len() as u64, COUNT);
        let mut failures = loader.failures();
        failures.sort_by_key(|failure| failure.index);
        let named: Vec<_> = failures.iter().map(|failure| (failure.index, failure.name(), failure.attempts)).collect();
        let caption = PathBuf::from("/pairs/captions.bin#008");
        let expected = [(3, picture_of(3)), (8, caption), (17, picture_of(17)), (31, picture_of(31))];
        assert_eq!(named, expected.map(|(index, name)| (index, name, attempts)));
        assert_eq!((failures[1].path(), failures[1].offset), (PathBuf::from(SHARD), Some(8 * CAPTION_BYTES)));
        assert!(failures[1].message.starts_with("\"/pairs/captions.bin#008\" is not UTF-8"), "{}", failures[1].message);
        loader.close();
    }
    // Another process knows from the ledger what was delivered in place of each, whichever field it was.
    let other = loader(store(), Config { ledger: Some(ledger), ..config() });
    let places = (0..11).flat_map(|step| other.explain(forebay::Step(step), None, None, None).unwrap());
    let replaced: Vec<_> = places.filter(|place| place.planned != place.sample).map(|place| place.planned.0).collect();
    assert_eq!(replaced.len(), 4, "{replaced:?}");
    assert!(replaced.contains(&8));
}

#[test]
fn a_field_that_cannot_be_read_is_tried_again_and_only_then_given_up() {
    let store = store();
    store.script(picture_of(0), vec![Fault::Errno(5)]);
    let retry = Retry { first_pause: Duration::from_millis(1), ..Retry::default() };
    let loader = loader(store, Config { retry, on_error: OnError::Skip, ..config() });
    let found = epoch(&loader);
    assert!(found.iter().any(|(sample, ..)| *sample == 0));
    assert_eq!(found.len() as u64, COUNT - 4);
    let recovered = loader.failures().into_iter().find(|failure| failure.index == 0).unwrap();
    assert_eq!((recovered.name(), recovered.errno), (picture_of(0), Some(5)));
}

#[test]
fn fields_that_do_not_fit_into_memory_together_are_read_one_sample_at_a_time() {
    // Less than the pictures of two samples: every thread that holds one waits for its caption.
    let size = bitmap(9, 7, 0).len() as u64;
    let small = Config {
        memory_budget: 2 * size + CAPTION_BYTES / 2,
        max_sample_bytes: Some(1 << 30),
        io_threads: 4,
        max_io_threads: 4,
        ..config()
    };
    let expected = epoch(&loader(store(), config()));
    assert_eq!(epoch(&loader(store(), small)), expected);
    let tiny = Config { max_sample_bytes: Some(size + CAPTION_BYTES - 1), on_error: OnError::Raise, ..config() };
    let error = loader(store(), tiny).epoch().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), Kind::Exhausted);
    assert!(error.to_string().contains("captions.bin#"), "the field that was too much is named: {error}");
}

#[test]
fn what_does_not_fit_together_is_refused_before_any_thread_starts() {
    let text = || -> Arc<dyn Recipe> { Arc::new(TextRecipe::default()) };
    let source = Source::new(Arc::new(Pairs), Arc::new(store()), TextRecipe::default());
    let error = Loader::new(source, config()).err().unwrap();
    assert!(error.to_string().contains("takes samples of 1 fields, the dataset has 2"), "{error}");
    let twice = FieldsRecipe::new(vec![("a".to_owned(), text()), ("a".to_owned(), Arc::new(NpyRecipe))]);
    assert!(twice.err().unwrap().to_string().contains("\"a\" twice"));
    let nested = FieldsRecipe::new(vec![("pair".to_owned(), Arc::new(recipe()))]);
    assert!(nested.err().unwrap().to_string().contains("expected \"pair\" to be made into one column"));
    assert_eq!(FieldsRecipe::new(Vec::new()).err().unwrap().kind(), Kind::Config);
}

#[test]
fn one_sample_is_loaded_with_all_of_its_fields() {
    let source = Source::new(Arc::new(Pairs), Arc::new(store()), recipe());
    let load = |sample| source.load(SampleId(sample), 0, forebay::Epoch(0));
    let forebay::Value::Row(row) = load(5).unwrap() else { panic!("expected a row") };
    assert!(matches!(&row[1], forebay::Value::Text(text) if *text == caption(5)));
    let error = load(8).unwrap_err();
    assert_eq!(error.path(), Some(Path::new("/pairs/captions.bin#008")));
}
