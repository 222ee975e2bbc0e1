//! Every recipe under the same promises: a row of `ROWS` is all that a new one needs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use forebay::{
    ArrayArchive, Batch, BytesRecipe, Column, Config, CsvColumn, CsvRecipe, DocumentRule, Element, Endian, InvalidText,
    JsonRecipe, Kind, Loader, NamedArraysRecipe, NpyRecipe, OnError, PartsRecipe, Rank, RawRecipe, Recipe,
    RecordRecipe, Result, ScalarRecipe, ScanOptions, Source, State, Store, TextRecipe, TokenSpec, TokensRecipe, Value,
    WorldSize, scan_folder,
};
use forebay_decode::{ColumnSpec, Dense, Fields, LightRecipe, Made, Sample, Scratch, SizedRecord};
use forebay_store::testing::{Memory, Scripted};

use crate::fixture::{bitmap, crop, hashes};

const ROOT: &str = "/samples";
const SAMPLES: usize = 42;

/// One kind of sample.
struct Row {
    name: &'static str,
    recipe: fn() -> Arc<dyn Recipe>,
    content: fn(u64) -> Vec<u8>,
    /// Makes content that cannot be read; `None` where there is no such thing.
    damage: Option<fn(Vec<u8>) -> Vec<u8>>,
}

fn cut(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() / 2);
    bytes
}

const TOKENS: TokenSpec = TokenSpec {
    source: Element::U16,
    element: Element::I64,
    length: 8,
    has_targets: true,
    documents: DocumentRule::None,
    has_loss_mask: false,
    pad: 0,
    vocab_size: Some(60_000),
};

fn beyond_the_vocabulary(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[6..8].fill(0xFF);
    bytes
}

fn npy(index: u64, rows: u64) -> Vec<u8> {
    let header = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({rows}, 2), }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend((0..rows * 2).flat_map(|at| (index * 1000 + at).to_le_bytes()));
    bytes
}

const ROWS: &[Row] = &[
    Row { name: "pictures", recipe: || Arc::new(crop()), content: |index| bitmap(9, 7, index), damage: Some(cut) },
    Row {
        name: "text",
        recipe: || Arc::new(TextRecipe { invalid: InvalidText::Strict, ..TextRecipe::default() }),
        content: |index| format!("Zeile {index}: größer\n").repeat(index as usize % 5).into_bytes(),
        damage: Some(|mut bytes| {
            bytes.push(0xFC);
            bytes
        }),
    },
    Row {
        name: "bytes",
        recipe: || Arc::new(BytesRecipe),
        content: |index| index.to_le_bytes()[..index as usize % 9].to_vec(),
        damage: None,
    },
    Row {
        name: "raw",
        recipe: || Arc::new(RawRecipe::new(vec![3, 2], Element::F32, Endian::Big).unwrap()),
        content: |index| (0..6).flat_map(|at| (index as f32 + at as f32 / 8.0).to_be_bytes()).collect(),
        damage: Some(cut),
    },
    Row {
        name: "arrays of one shape",
        recipe: || Arc::new(NpyRecipe),
        content: |index| npy(index, 3),
        damage: Some(cut),
    },
    Row {
        name: "arrays of many shapes",
        recipe: || Arc::new(NpyRecipe),
        content: |index| npy(index, index % 4),
        damage: Some(cut),
    },
    Row {
        name: "rows of any number",
        recipe: || Arc::new(RawRecipe::of_any_length(vec![2], Element::U16, Endian::Little).unwrap()),
        content: |index| vec![index as u8; 4 * (index as usize % 3)],
        damage: Some(|mut bytes| {
            bytes.push(0);
            bytes
        }),
    },
    Row {
        name: "documents",
        recipe: || Arc::new(JsonRecipe::default()),
        content: |index| format!("{{\"id\": {index}, \"tags\": [\"a\", null]}}").into_bytes(),
        damage: Some(cut),
    },
    Row {
        name: "parts of several datasets",
        recipe: || Arc::new(PartsRecipe::new(vec![Arc::new(NpyRecipe)]).unwrap()),
        content: |index| npy(index, index % 4),
        damage: Some(cut),
    },
    Row {
        name: "tokens",
        recipe: || Arc::new(TokensRecipe::new(TOKENS).unwrap()),
        content: |index| (0..9).flat_map(|at| (index as u16 * 9 + at).to_le_bytes()).collect(),
        damage: Some(beyond_the_vocabulary),
    },
    Row {
        name: "tokens of documents",
        recipe: || {
            let documents = DocumentRule::EndedBy(40);
            Arc::new(TokensRecipe::new(TokenSpec { documents, ..TOKENS }).unwrap())
        },
        content: |index| (0..9).flat_map(|at| (index as u16 * 9 + at).to_le_bytes()).collect(),
        damage: Some(beyond_the_vocabulary),
    },
    Row {
        name: "fields of documents",
        recipe: || Arc::new(JsonRecipe { fields: ["id", "text"].map(str::to_owned).to_vec(), is_line: false }),
        content: |index| format!("{{\"text\": \"number {index}\", \"id\": [{index}, 1]}}").into_bytes(),
        damage: Some(cut),
    },
    Row {
        name: "tensors by name",
        recipe: || {
            let names = ["x", "y"].map(str::to_owned).to_vec();
            Arc::new(NamedArraysRecipe::new(ArrayArchive::Safetensors, names).unwrap())
        },
        content: |index| {
            let header = r#"{"x": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
                "y": {"dtype": "I64", "shape": [], "data_offsets": [2, 10]}}"#;
            let size = (header.len() as u64).to_le_bytes();
            [&size, header.as_bytes(), &[1, index as u8], &index.to_le_bytes()].concat()
        },
        damage: Some(cut),
    },
    Row {
        name: "records",
        recipe: || {
            let columns: Vec<(String, Arc<dyn Recipe>)> = vec![
                ("picture".to_owned(), Arc::new(crop())),
                ("number".to_owned(), Arc::new(RawRecipe::new(vec![], Element::I64, Endian::Little).unwrap())),
                ("text".to_owned(), Arc::new(TextRecipe::default())),
            ];
            let format = SizedRecord::new(vec![None, Some(8), None], vec![0, 1, 2]);
            Arc::new(RecordRecipe::new(Arc::new(format), columns).unwrap())
        },
        content: |index| {
            let (picture, text) = (bitmap(9, 7, index), format!("größer {index}"));
            let sizes = [picture.len() as u32, text.len() as u32].map(u32::to_le_bytes).concat();
            [&sizes, &*picture, &index.to_le_bytes(), text.as_bytes()].concat()
        },
        damage: Some(cut),
    },
    Row {
        name: "one field of records",
        recipe: || {
            let label = RawRecipe::new(vec![], Element::I64, Endian::Little).unwrap();
            let columns: Vec<(String, Arc<dyn Recipe>)> = vec![("number".to_owned(), Arc::new(label))];
            Arc::new(RecordRecipe::new(Arc::new(SizedRecord::new(vec![Some(8), None], vec![0])), columns).unwrap())
        },
        content: |index| [&3u32.to_le_bytes()[..], &index.to_le_bytes(), b"abc"].concat(),
        damage: Some(cut),
    },
    Row {
        name: "lines",
        recipe: || Arc::new(TextRecipe { is_line: true, ..TextRecipe::default() }),
        content: |index| format!("Zeile {index}: größer\r\n").into_bytes(),
        damage: Some(|mut bytes| {
            bytes[0] = 0xFC;
            bytes
        }),
    },
    Row {
        name: "whole numbers",
        recipe: || Arc::new(ScalarRecipe::integer()),
        content: |index| format!("{index}\n").into_bytes(),
        damage: Some(|mut bytes| {
            bytes.push(b'x');
            bytes
        }),
    },
    Row {
        name: "records of CSV",
        recipe: || {
            let column = |name: &str, place, element| CsvColumn { name: name.to_owned(), place, element };
            let columns = vec![column("n", 1, Some(Element::I32)), column("text", 0, None)];
            Arc::new(CsvRecipe::new(b',', 2, columns).unwrap())
        },
        content: |index| format!("\"a\n{index}\",{index}\n").into_bytes(),
        damage: Some(cut),
    },
];

fn path_of(index: usize) -> PathBuf {
    Path::new(ROOT).join(if index.is_multiple_of(2) { "a" } else { "b" }).join(format!("{index:03}.data"))
}

fn is_damaged(row: &Row, index: usize) -> bool {
    row.damage.is_some() && index % 14 == 3
}

/// A loader over samples of a row, 7 % of them damaged.
fn loader(row: &Row, config: Config) -> Loader {
    let mut memory = Memory::default();
    for index in 0..SAMPLES {
        let content = (row.content)(index as u64);
        let damage = row.damage.filter(|_| is_damaged(row, index));
        memory.insert(path_of(index), damage.map_or_else(|| content.clone(), |damage| damage(content.clone())));
    }
    let store: Arc<dyn Store> = Arc::new(Scripted::new(memory));
    let options = ScanOptions { extensions: vec![".data".to_owned()], ..ScanOptions::default() };
    let index = scan_folder(&store, Path::new(ROOT), &options, None).unwrap();
    Loader::new(Source { dataset: Arc::new(index), store, recipe: (row.recipe)() }, config).unwrap()
}

fn config(cpu_threads: usize, world: u32, rank: u32) -> Config {
    Config {
        batch_size: 4,
        shuffle: true,
        seed: 3,
        cpu_threads,
        world_size: WorldSize(world),
        rank: Rank(rank),
        on_error: OnError::Replace,
        ..Config::default()
    }
}

/// What all ranks of a world give from a state on: padding left out.
fn remaining(row: &Row, cpu_threads: usize, world: u32, state: Option<&State>) -> Vec<u64> {
    let loaders: Vec<_> = (0..world).map(|rank| loader(row, config(cpu_threads, world, rank))).collect();
    let mut runs: Vec<_> = loaders
        .iter()
        .map(|loader| {
            state.iter().for_each(|state| loader.load_state(state).unwrap());
            loader.epoch().unwrap()
        })
        .collect();
    let mut all = Vec::new();
    while let Some(batches) = runs.iter_mut().map(|run| run.next()).collect::<Option<Vec<_>>>() {
        all.extend(batches.into_iter().flat_map(|batch| hashes(batch.unwrap())));
    }
    all.truncate(SAMPLES - state.map_or(0, |state| state.position as usize));
    all
}

#[test]
fn every_recipe_resumes_exactly_on_any_threads_and_world() {
    for row in ROWS {
        let whole = remaining(row, 2, 1, None);
        assert_eq!(whole.len(), SAMPLES, "{}", row.name);
        for world in 1..=4 {
            assert_eq!(remaining(row, 1, world, None), whole, "{}, world {world}", row.name);
        }
        let loader = loader(row, config(5, 1, 0));
        let mut states = vec![loader.state()];
        for batch in loader.epoch().unwrap() {
            batch.unwrap();
            states.push(State::from_json(&loader.state().to_json().unwrap()).unwrap());
        }
        for state in &states {
            for (threads, world) in [(1, 1), (2, 2), (5, 3), (2, 4)] {
                let rest = remaining(row, threads, world, Some(state));
                assert_eq!(rest, whole[state.position as usize..], "{}, from {}", row.name, state.position);
            }
        }
    }
}

#[test]
fn damage_is_met_as_the_policy_says_and_the_books_balance() {
    for row in ROWS {
        let damaged = (0..SAMPLES).filter(|index| is_damaged(row, *index)).count() as u64;
        for on_error in [OnError::Replace, OnError::Skip, OnError::Raise] {
            let loader = loader(row, Config { on_error, ..config(2, 1, 0) });
            let ended: Result<Vec<Batch>> = loader.epoch().unwrap().collect();
            if on_error == OnError::Raise && damaged > 0 {
                let error = ended.expect_err(row.name);
                assert_eq!(error.kind(), Kind::Corrupt, "{}: {error}", row.name);
                assert!(is_damaged(row, number(error.index().unwrap() as usize) as usize), "{}: {error}", row.name);
                continue;
            }
            let count: usize = ended.unwrap().iter().map(Batch::len).sum();
            let skipped = if on_error == OnError::Skip { damaged } else { 0 };
            assert_eq!(count as u64, SAMPLES as u64 - skipped, "{}", row.name);
            let codes: Vec<_> = loader.report().failures.iter().map(|failure| failure.code.clone()).collect();
            assert_eq!(codes, vec!["corrupt"; damaged as usize], "{}", row.name);
            // A fresh read has to agree before damage is believed.
            assert!(loader.failures().iter().all(|failure| failure.attempts == 2), "{}", row.name);
        }
    }
}

/// Bytes, with the threads that made them.
#[derive(Default)]
struct Watched {
    makers: Mutex<Vec<(usize, String)>>,
}

impl Watched {
    fn watch(&self, bytes: &[u8]) {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.makers.lock().unwrap().push((bytes.len(), thread));
    }
}

impl LightRecipe for Watched {
    fn memory_bytes(&self, size_bytes: u64) -> u64 {
        size_bytes
    }
    fn make(&self, bytes: &[u8]) -> Result<Value> {
        self.watch(bytes);
        LightRecipe::make(&BytesRecipe, bytes)
    }
}

impl Recipe for Watched {
    fn schema(&self) -> Vec<ColumnSpec> {
        BytesRecipe.schema()
    }
    fn layout(&self) -> Option<&Dense> {
        None
    }
    fn memory_bytes(&self, fields: Fields<'_>, scratch: &mut Scratch) -> Result<u64> {
        Recipe::memory_bytes(&BytesRecipe, fields, scratch)
    }
    fn light(&self) -> Option<&dyn LightRecipe> {
        Some(self)
    }
    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        self.watch(sample.fields.only());
        Recipe::make(&BytesRecipe, sample)
    }
}

#[test]
fn small_samples_of_a_light_recipe_are_made_by_the_thread_that_has_read_them() {
    const LARGEST: usize = 64 << 10;
    let mut memory = Memory::default();
    for size in [0, 1, LARGEST, LARGEST + 1] {
        memory.insert(Path::new(ROOT).join(format!("{size}.data")), vec![7; size]);
    }
    let store: Arc<dyn Store> = Arc::new(Scripted::new(memory));
    let options = ScanOptions { extensions: vec![".data".to_owned()], is_flat: true, ..ScanOptions::default() };
    let index = Arc::new(scan_folder(&store, Path::new(ROOT), &options, None).unwrap());
    let made = |max_sample_bytes| {
        let recipe = Arc::new(Watched::default());
        let source = Source { dataset: index.clone(), store: Arc::clone(&store), recipe: recipe.clone() };
        let config = Config { max_sample_bytes, on_error: OnError::Skip, ..config(2, 1, 0) };
        let loader = Loader::new(source, config).unwrap();
        let count: usize = loader.epoch().unwrap().map(|batch| batch.unwrap().len()).sum();
        assert!(loader.stats().decode.items >= count as u64, "what its readers make counts as decoded");
        // Samples of the next epoch are among them.
        let makers = std::mem::take(&mut *recipe.makers.lock().unwrap());
        makers.into_iter().map(|(size, thread)| (size, thread.starts_with("forebay-io"))).collect::<BTreeSet<_>>()
    };
    assert_eq!(made(None), BTreeSet::from([(0, true), (1, true), (LARGEST, true), (LARGEST + 1, false)]));
    // With its copy it would be too large: it is refused like the one that is larger, and not made here.
    assert_eq!(made(Some(LARGEST as u64)), BTreeSet::from([(0, true), (1, true)]));
}

/// Places tokens, with the threads that did.
struct Placed {
    tokens: TokensRecipe,
    threads: Mutex<Vec<String>>,
}

impl LightRecipe for Placed {
    fn memory_bytes(&self, size_bytes: u64) -> u64 {
        LightRecipe::memory_bytes(&self.tokens, size_bytes)
    }
    fn make(&self, bytes: &[u8]) -> Result<Value> {
        LightRecipe::make(&self.tokens, bytes)
    }
    fn place(&self, bytes: &[u8], slots: &mut [&mut [u8]]) -> Result<()> {
        self.threads.lock().unwrap().push(std::thread::current().name().unwrap_or_default().to_owned());
        LightRecipe::place(&self.tokens, bytes, slots)
    }
}

impl Recipe for Placed {
    fn schema(&self) -> Vec<ColumnSpec> {
        self.tokens.schema()
    }
    fn layout(&self) -> Option<&Dense> {
        self.tokens.layout()
    }
    fn more_layouts(&self) -> &[Dense] {
        self.tokens.more_layouts()
    }
    fn memory_bytes(&self, fields: Fields<'_>, scratch: &mut Scratch) -> Result<u64> {
        Recipe::memory_bytes(&self.tokens, fields, scratch)
    }
    fn light(&self) -> Option<&dyn LightRecipe> {
        Some(self)
    }
    fn make(&self, _sample: Sample<'_>) -> Result<Made> {
        panic!("a sample of tokens went to a CPU thread")
    }
}

#[test]
fn tokens_are_written_to_their_places_by_the_thread_that_has_read_them() {
    let row = ROWS.iter().find(|row| row.name == "tokens").unwrap();
    let mut memory = Memory::default();
    (0..SAMPLES).for_each(|index| memory.insert(path_of(index), (row.content)(index as u64)));
    let store: Arc<dyn Store> = Arc::new(Scripted::new(memory));
    let options = ScanOptions { extensions: vec![".data".to_owned()], is_flat: true, ..ScanOptions::default() };
    let index = scan_folder(&store, Path::new(ROOT), &options, None).unwrap();
    let recipe = Arc::new(Placed { tokens: TokensRecipe::new(TOKENS).unwrap(), threads: Mutex::default() });
    let source = Source { dataset: Arc::new(index), store, recipe: recipe.clone() };
    let config = Config { shuffle: false, ..config(2, 1, 0) };
    let mut place = 0;
    for batch in Loader::new(source, config).unwrap().epoch().unwrap() {
        let batch = batch.unwrap();
        let count = batch.len();
        let mut columns = batch.columns.into_iter().map(|column| match column.column {
            Column::Dense { mut buffer, layout } => {
                assert_eq!((layout.shape.as_slice(), layout.element), ([8].as_slice(), Element::I64));
                let numbers = buffer.bytes().chunks_exact(8).map(|token| i64::from_ne_bytes(token.try_into().unwrap()));
                numbers.take(8 * count).collect::<Vec<_>>()
            }
            other => panic!("expected a dense column, got {other:?}"),
        });
        let (tokens, targets) = (columns.next().unwrap(), columns.next().unwrap());
        for row in 0..count {
            let first = number(place) as i64 * 9;
            assert_eq!(tokens[8 * row..8 * row + 8], (first..first + 8).collect::<Vec<_>>());
            assert_eq!(targets[8 * row..8 * row + 8], (first + 1..first + 9).collect::<Vec<_>>());
            place += 1;
        }
    }
    let threads = recipe.threads.lock().unwrap();
    assert!(place == SAMPLES && threads.len() >= SAMPLES);
    assert!(threads.iter().all(|thread| thread.starts_with("forebay-io")), "{threads:?}");
}

/// Batches in the order of the files.
fn batches(name: &str) -> Vec<Batch> {
    let row = ROWS.iter().find(|row| row.name == name).unwrap();
    let all = Row { damage: None, ..*row };
    loader(&all, Config { shuffle: false, ..config(2, 1, 0) }).epoch().unwrap().map(Result::unwrap).collect()
}

/// The class `a` has the even numbers, and comes first.
fn number(place: usize) -> u64 {
    if place < SAMPLES / 2 { place as u64 * 2 } else { (place - SAMPLES / 2) as u64 * 2 + 1 }
}

#[test]
fn values_are_what_the_files_hold() {
    let columns = |name| batches(name).into_iter().map(Batch::into_content);
    let texts = columns("text").flat_map(|column| if let Column::Text(texts) = column { texts } else { vec![] });
    let found: Vec<_> = texts.map(String::into_bytes).collect();
    assert_eq!(found, (0..SAMPLES).map(|place| (ROWS[1].content)(number(place))).collect::<Vec<_>>());
    let all = columns("bytes").flat_map(|column| if let Column::Bytes(all) = column { all } else { vec![] });
    let expected: Vec<_> = (0..SAMPLES).map(|place| (ROWS[2].content)(number(place))).collect();
    assert_eq!(all.collect::<Vec<_>>(), expected);
    let arrays = columns("arrays of many shapes").flat_map(|column| match column {
        Column::Ragged(arrays) => arrays,
        other => panic!("expected arrays, got {other:?}"),
    });
    let shapes: Vec<_> = arrays.map(|array| array.shape).collect();
    assert_eq!(shapes, (0..SAMPLES).map(|place| vec![number(place) as usize % 4, 2]).collect::<Vec<_>>());
    let documents =
        columns("documents").flat_map(|column| if let Column::Objects(all) = column { all } else { vec![] });
    for (place, document) in documents.enumerate() {
        assert!(matches!(document, Value::Json(fields) if fields["id"] == number(place)));
    }
}

#[test]
fn a_recipe_may_make_several_columns() {
    let mut place = 0;
    for batch in batches("fields of documents") {
        let names: Vec<_> = batch.columns.iter().map(|column| &*column.name).collect();
        assert_eq!(names, ["id", "text", "label"]);
        let Some(Column::Text(texts)) = batch.column("text") else { panic!("expected texts") };
        for text in texts {
            assert_eq!(*text, format!("number {}", number(place)));
            place += 1;
        }
        assert!(matches!(batch.column("id"), Some(Column::Dense { layout, .. }) if layout.shape == [2]));
    }
    assert_eq!(place, SAMPLES);
}

#[test]
fn arrays_of_one_shape_become_one() {
    for (name, shape, element) in [("raw", [3, 2], Element::F32), ("arrays of one shape", [3, 2], Element::I64)] {
        let mut place = 0;
        for batch in batches(name) {
            let count = batch.len();
            let Column::Dense { mut buffer, layout } = batch.into_content() else {
                panic!("{name}: expected one array")
            };
            assert_eq!((layout.shape.as_slice(), layout.element), (shape.as_slice(), element));
            for sample in buffer.bytes().chunks_exact(layout.size_bytes()).take(count) {
                let first = match element {
                    Element::F32 => f64::from(f32::from_ne_bytes(sample[..4].try_into().unwrap())),
                    _ => i64::from_ne_bytes(sample[..8].try_into().unwrap()) as f64 / 1000.0,
                };
                assert_eq!(first, number(place) as f64, "{name}");
                place += 1;
            }
        }
        assert_eq!(place, SAMPLES);
    }
}
