//! From names to samples: which paths there are, in which order, with which label.
//!
//! Does no I/O (`forebay-store` lists directories and reads manifests for it) and no decoding (`forebay-decode`).

mod extents;
mod file_scan;
mod filter;
mod folder;
mod index;
mod index_file;
mod lines;
mod manifest;
mod packed;
mod parity;
mod parquet_pages;
mod records;
mod scan;
mod shards;
mod tokens;
mod versions;

pub use extents::{Extents, ExtentsBuilder};
pub use file_scan::{FileIndex, FileScanner, RangeScanner};
pub use filter::{FilteredDirectory, SampleFilter};
pub use folder::{Accept, IMAGE_EXTENSIONS, ScanOptions, find_classes, scan};
pub use index::{FolderIndex, Note};
pub use index_file::{FileVersion, is_index, read_index, write_index};
pub use lines::{LineIndex, LineRule, LineScanner};
pub use manifest::{
    Content, ContentHash, Difference, Facts, Keeps, Labels, Manifest, Picture, content_hash, read_manifest,
    write_manifest,
};
pub use packed::{PackedScanner, SeekTable};
pub use parity::{GroupEncoder, GroupRecord, GroupRepair, GroupRun, MadeBlock, PARITY_HEADER_BYTES, ParityLayout};
pub use records::RecordLayout;
pub use scan::{ListJob, Scan};
pub use shards::{
    ArrowScanner, ArrowSchema, Directory, FieldKind, Listed, Lost, PageTable, ParquetScanner, ParquetSchema, Part,
    RecordField, SHARD_RULE, ShardIndex, ShardIndexBuilder, TableScanner, TarScanner, TfRecordScanner, arrow_schema,
    litdata_elements, parquet_schema, read_saved_dataset, read_wds2idx,
};
pub use tokens::{
    Documents, MEGATRON_HEADER_BYTES, MegatronHeader, MegatronIndex, MegatronWriter, PACKING_BLOCK, Packing, Piece,
    PlainTokens, Run, Runs, ShardSpec, TOKEN_HEADER_BYTES, Tail, TokenShard, TokenShardIndex, TokenStream, Windows,
    is_token_index, npy_tokens, plain_tokens,
};
