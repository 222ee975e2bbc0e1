//! forebay: whatever the storage does, the training loop gets its next batch.
//!
//! This crate is the loader itself, usable without Python: it takes a [`Source`] (samples, where their bytes
//! are, what to make of them) and a [`Config`], and gives batches in planned order. It owns the threads, and it
//! alone decides about recovery: stores and decoders only report.
//!
//! The data path is the list of modules: `source` (what is loaded), `engine` (fetch and decode), `batch` (assemble), `loader`
//! (deliver); `record` keeps what happened, `diagnose` shows what is happening, `scan` finds the samples.
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
//!     assert_eq!(batch?.labels(), Some(&[0][..]));
//! }
//! # Ok::<(), forebay::Error>(())
//! ```

mod batch;
mod diagnose;
mod engine;
mod loader;
mod record;
mod scan;
mod source;
mod sync;

pub use batch::assemble::{Batch, Receipt};
pub use batch::buffer_pool::{Buffer, Lender};
pub use batch::column::{Column, NamedColumn, pad};
pub use diagnose::bounded::Bounded;
pub use diagnose::dump::dump_on_signal;
pub use diagnose::watch::Watch;
pub use engine::concurrency::ConcurrencyLimit;
pub use engine::decoded_cache::DecodedCacheStats;
pub use engine::item::InFlight;
pub use engine::recover::panicked;
pub use engine::retries::{Judged, Retries, Tries, Trouble};
pub use loader::deliver::{Next, Run};
pub use loader::{Explained, Loader};
pub use record::account::Account;
pub use record::journal::Journal;
pub use record::report::{Report, Unit, rots};
pub use record::stats::{StageStats, Stats, Verdict};
pub use scan::{ScanProgress, WatchScan, find_classes, list_directory, scan_folder};
pub use source::concat::Concat;
pub use source::defaults::{Defaults, farthest};
pub use source::lines::{Lines, is_packed};
pub use source::manifest::{
    KeepScan, ManifestOutput, Scanned, examine_samples, open_manifest, recorded_root, scan_manifest,
};
pub use source::parity::{ParityCheck, ParityMade, Repairing, Sidecars, check_parity, make_parity, repair_by_parity};
pub use source::parquet::is_parquet_manifest;
pub use source::records::Records;
pub use source::shard_formats::{FormattedShards, ShardFields, ShardFormat};
pub use source::shards::{IndexPlace, Shards};
pub use source::split::{SplitBy, split};
pub use source::tokens::{DocumentMode, TokenOptions, Tokens};
pub use source::unpacked::{SeekTables, Unpacked};
pub use source::{
    Dataset, Labelled, Open, Opened, Selection, Source, Storage, check_mapped, kind_of, open_remote, open_store,
    store_for,
};

pub use forebay_core::{
    Balanced, Blocks, Books, Config, DatasetIdentity, Element, Epoch, Error, Failure, FailureLimit, Field, Hedge,
    Isolate, Kind, Locator, MAX_SUBSTITUTES, Mixture, OnError, Outcome, REGISTRY, Rank, Registered, Result, Retry, Rng,
    SETTINGS, SampleId, Sampling, ScalarColumn, Scalars, Setting, Stage, State, Step, Weighted, Wording, WorldSize,
    neutral, substitute, worded,
};
pub use forebay_decode::{
    Annotator, Array, ArrayArchive, BytesRecipe, Codec, CodecRecipe, ColumnKind, ColumnSpec, CsvColumn, CsvRecipe,
    Custom, Decoded, Dense, Detail, DocumentRule, Dtype, Encoding, Endian, Erase, Fields, FieldsRecipe, Image,
    Interpolation, InvalidText, JsonRecipe, Landmarks, Layout, LimitedRecipe, Made, MappedRecipe, NamedArraysRecipe,
    NpyRecipe, Op, Order, Output, Padding, PaddingMode, PartsRecipe, Pipeline, PixelsRecipe, RawRecipe, Recipe,
    RecordRecipe, ResizeTo, Sample, ScalarRecipe, Scratch, Size, Tensor, TensorData, TextRecipe, Timing, TokenSpec,
    TokensRecipe, Value, array_names, csv_fields,
};
pub use forebay_format::{
    Content, Difference, Facts, FieldKind, FolderIndex, IMAGE_EXTENSIONS, Keeps, Labels, LineRule, Manifest, Note,
    Picture, RecordField, RecordLayout, ScanOptions, Tail,
};
pub use forebay_store::{
    Cache, CacheInfo, CacheOptions, CacheStats, Cached, Capabilities, Cleared, Damaged, Isolated, Local, Mapped,
    MemoryCache, MemoryCached, Mount, MountKind, Protocol, Readers, Remote, Repairs, Replacement, Routed,
    StorageOptions, Store, Traffic, Verified, file_path, is_url, machine, protocol_of, read_setting, split_url,
    take_warnings,
};
