//! What a loader allocates, once it has all it needs. A program of its own, because it counts with its own `malloc`.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::path::Path;

use forebay::{Config, Interpolation, Loader, Op, Pipeline, ResizeTo, Source};

#[path = "../examples/counted/mod.rs"]
mod counted;

const FILES: usize = 500;
const BATCH_SIZE: usize = 50;

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../forebay-decode/tests/golden/decode");
    let pictures = ["jpeg-420.jpg", "jpeg-grey.jpg", "large-420.jpg"].map(|name| golden.join(name));
    for number in 0..FILES {
        let class = folder.path().join(format!("class {}", number % 7));
        std::fs::create_dir_all(&class).unwrap();
        std::fs::copy(&pictures[number % pictures.len()], class.join(format!("{number}.jpg"))).unwrap();
    }
    folder
}

/// Allocations of all threads for a batch, and for an image, after an epoch that is not counted.
fn allocations(folder: &Path, ops: Vec<Op>) -> (f64, f64) {
    const EPOCHS: usize = 4;
    let source = Source::image_folder(folder, Pipeline::new(ops).unwrap()).unwrap();
    let config = Config { batch_size: BATCH_SIZE as u64, shuffle: true, cpu_threads: 2, ..Config::default() };
    let loader = Loader::new(source, config).unwrap();
    let epoch = || loader.epoch().unwrap().map(|batch| batch.unwrap().len()).sum::<usize>();
    epoch();
    let before = counted::Counts::now();
    let images: usize = (0..EPOCHS).map(|_| epoch()).sum();
    assert_eq!(images, EPOCHS * FILES);
    let calls = before.calls_since() as f64;
    (calls / (images / BATCH_SIZE) as f64, calls / images as f64)
}

#[test]
fn samples_are_loaded_into_memory_that_is_there() {
    let folder = folder();
    let bilinear = Interpolation::Bilinear;
    let training = vec![
        Op::RandomResizedCrop {
            size: 32.into(),
            scale: (0.08, 1.0),
            ratio: (3.0 / 4.0, 4.0 / 3.0),
            interpolation: bilinear,
            antialias: true,
        },
        Op::RandomHorizontalFlip { p: 0.5 },
        Op::ToTensor,
        Op::Normalize { mean: vec![0.5; 3], std: vec![0.5; 3] },
    ];
    let (each_batch, _) = allocations(folder.path(), training);
    // A batch has some of its own: where its samples belong, their labels, who holds its memory.
    assert!((1.0..20.0).contains(&each_batch), "{each_batch} allocations a batch of {BATCH_SIZE}");
    let resize = Op::Resize { size: ResizeTo::Edge(40), max_size: None, interpolation: bilinear, antialias: true };
    let evaluating = vec![resize, Op::CenterCrop { size: 32.into() }, Op::ToTensor];
    let (_, each_image) = allocations(folder.path(), evaluating);
    assert!(each_image <= 2.0, "{each_image} allocations an image");
}
