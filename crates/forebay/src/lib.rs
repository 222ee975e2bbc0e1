//! forebay: whatever the storage does, the training loop gets its next batch.
//!
//! This crate is the loader itself, usable without Python: it takes a [`Source`] (samples, where their bytes
//! are, what to make of them) and a [`Config`], and gives batches in planned order. It owns the threads, and it
//! alone decides about recovery: stores and decoders only report.
//!
//! The data path is the list of modules: [`Source`] → fetch → decode → assemble → deliver.
//!
//! ```
//! use forebay::{Config, Loader, OnError, Op, Pipeline, Source};
//! # let folder = tempfile::tempdir().unwrap();
//! # std::fs::create_dir(folder.path().join("cat")).unwrap();
//! # let bmp = [b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0".as_slice(), &[0; 24], &[1, 2, 3, 0]].concat();
//! # std::fs::write(folder.path().join("cat/1.bmp"), bmp).unwrap();
//! # let root = folder.path();
//! let pipeline = Pipeline::new(vec![Op::ToTensor])?;
//! let source = Source::image_folder(root, pipeline)?;
//! let loader = Loader::new(source, Config { batch_size: 32, on_error: OnError::Replace, ..Config::default() })?;
//! for batch in loader.epoch()? {
//!     assert_eq!(batch?.labels, [0]);
//! }
//! # Ok::<(), forebay::Error>(())
//! ```

mod assemble;
mod bounded;
mod callers;
mod decode;
mod decoding;
mod defaults;
mod deliver;
mod dump;
mod familiar;
mod fetch;
mod flight;
mod item;
mod journal;
mod ledger_writer;
mod limit;
mod loader;
mod manifest;
mod mirror;
mod overdue;
mod provenance;
mod recover;
mod report;
mod scan;
mod schedule;
mod signal;
mod source;
mod stats;
mod stream;
mod sync;
mod watch;

pub use assemble::{Batch, Buffer, Lender, Payload, Receipt};
pub use bounded::Bounded;
pub use defaults::Defaults;
pub use deliver::{Next, Run};
pub use dump::dump_on_signal;
pub use item::InFlight;
pub use ledger_writer::LedgerWriter;
pub use loader::{Explained, Loader};
pub use mirror::{Doing, Filter, Mirror, Mirrored, Progress};
pub use report::Report;
pub use watch::Watch;

pub use manifest::{KeepScan, Output as ManifestOutput, Scanned, open_manifest, recorded_root, scan_manifest};
pub use scan::{ScanProgress, WatchScan, find_classes, scan_folder};
pub use source::{Dataset, Open, Opened, Selection, Source, Storage, kind_of, open_remote, store_for};
pub use stats::{StageStats, Stats, Verdict};

pub use forebay_core::{
    Books, Config, DatasetIdentity, Element, Epoch, Error, Failure, FailureLimit, Hedge, Isolate, Kind, OnError,
    Outcome, REGISTRY, Rank, Result, Retry, Rng, SampleId, Stage, State, Step, WorldSize,
};
pub use forebay_decode::{
    Array, BytesRecipe, Custom, Dense, Detail, Dtype, Endian, Erase, Image, Interpolation, InvalidText, Landmarks,
    Layout, Made, NpyRecipe, Op, Order, Output, Padding, PaddingMode, Pipeline, RawRecipe, Recipe, ResizeTo, Sample,
    Scratch, Size, Tensor, TensorData, TextRecipe, Value,
};
pub use forebay_format::{
    Content, Difference, Facts, FolderIndex, IMAGE_EXTENSIONS, Keeps, Manifest, Note, Picture, ScanOptions,
};
pub use forebay_store::{
    Cache, CacheInfo, CacheOptions, CacheStats, Cached, Cleared, Damaged, Isolated, Local, Mount, MountKind, Readers,
    Remote, Replacement, StorageOptions, Store, Traffic, Verified, file_path, is_url, machine, read_setting, split_url,
    take_warnings,
};
