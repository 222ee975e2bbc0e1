//! A small folder of pictures in memory, and how to compare what a loader makes of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{
    Batch, Column, Config, Interpolation, Loader, Op, Pipeline, ScanOptions, Source, Store, TensorData, Value,
    scan_folder,
};
use forebay_store::testing::{Memory, Scripted};
use xxhash_rust::xxh3::xxh3_64;

pub(crate) const ROOT: &str = "/pictures";

/// A 24-bit Windows bitmap, every pixel different from every other picture's.
pub(crate) fn bitmap(width: u32, height: u32, seed: u64) -> Vec<u8> {
    let row = (width as usize * 3).next_multiple_of(4);
    let size = 54 + row * height as usize;
    let mut bytes = Vec::with_capacity(size);
    bytes.extend(b"BM");
    bytes.extend((size as u32).to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(54u32.to_le_bytes());
    bytes.extend(40u32.to_le_bytes());
    bytes.extend(width.to_le_bytes());
    bytes.extend(height.to_le_bytes());
    bytes.extend([1, 0, 24, 0]);
    bytes.extend([0; 24]);
    for at in 0..(size - 54) as u64 {
        bytes.push(xxh3_64(&(seed << 32 | at).to_le_bytes()) as u8);
    }
    bytes
}

pub(crate) fn path_of(index: usize) -> PathBuf {
    Path::new(ROOT).join(if index.is_multiple_of(2) { "cat" } else { "dog" }).join(format!("{index:04}.bmp"))
}

/// `count` pictures in two classes; every 14th is cut in half when `damaged` (7 %).
pub(crate) fn pictures(count: usize, damaged: bool) -> Memory {
    let mut store = Memory::default();
    for index in 0..count {
        let mut bytes = bitmap(9, 7, index as u64);
        if damaged && index % 14 == 3 {
            bytes.truncate(bytes.len() / 2);
        }
        store.insert(path_of(index), bytes);
    }
    store
}

/// Random crops, so that every random stream shows in the bytes.
pub(crate) fn crop() -> Pipeline {
    let size = 4u32.into();
    let ops = vec![
        Op::RandomResizedCrop {
            size,
            scale: (0.08, 1.0),
            ratio: (0.75, 4.0 / 3.0),
            interpolation: Interpolation::Bilinear,
            antialias: true,
        },
        Op::RandomHorizontalFlip { p: 0.5 },
        Op::ToTensor,
    ];
    Pipeline::new(ops).unwrap()
}

pub(crate) fn source(store: Arc<dyn Store>, pipeline: Pipeline) -> Source {
    let index = scan_folder(&store, Path::new(ROOT), &ScanOptions::images(), None).unwrap();
    Source::new(Arc::new(index), store, pipeline)
}

/// A loader over `count` pictures, 7 % of them bad when `damaged`.
pub(crate) fn loader(count: usize, damaged: bool, config: Config) -> Loader {
    let store = Arc::new(Scripted::new(pictures(count, damaged)));
    Loader::new(source(store, crop()), config).unwrap()
}

/// One hash per sample of a batch: content, label and which sample it is.
pub(crate) fn hashes(batch: Batch) -> Vec<u64> {
    let (labels, ids) = (batch.labels().unwrap().to_vec(), batch.samples.clone());
    let samples: Vec<Vec<u8>> = match batch.into_content() {
        Column::Dense { mut buffer, layout } => {
            let (size, bytes) = (layout.size_bytes(), buffer.bytes());
            (0..labels.len()).map(|place| bytes[place * size..][..size].to_vec()).collect()
        }
        Column::Ragged(arrays) => arrays.into_iter().map(|array| array.bytes).collect(),
        Column::Text(texts) => texts.into_iter().map(String::into_bytes).collect(),
        Column::Bytes(all) => all,
        Column::Objects(values) => values.iter().map(value_bytes).collect(),
        Column::Scalars(_) => panic!("the first column is the recipe's"),
    };
    assert_eq!(samples.len(), labels.len());
    let ids = labels.iter().zip(&ids);
    samples
        .into_iter()
        .zip(ids)
        .map(|(bytes, (label, id))| xxh3_64(&[bytes, id.0.to_le_bytes().into(), label.to_le_bytes().into()].concat()))
        .collect()
}

fn value_bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::Tensor(tensor) => match &tensor.data {
            TensorData::U8(data) => data.clone(),
            TensorData::F32(data) => data.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        },
        Value::Image(image) => image.pixels.clone(),
        Value::Array(array) => array.bytes.clone(),
        Value::Text(text) => text.clone().into_bytes(),
        Value::Bytes(bytes) => bytes.clone(),
        Value::Json(value) => value.to_string().into_bytes(),
        Value::Row(values) => values.iter().flat_map(value_bytes).collect(),
        Value::Opaque(_) => unreachable!("no opaque values in these tests"),
    }
}

/// All samples of an epoch, in order.
pub(crate) fn epoch(loader: &Loader) -> Vec<u64> {
    loader.epoch().unwrap().flat_map(|batch| hashes(batch.unwrap())).collect()
}
