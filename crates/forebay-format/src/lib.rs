//! From names to samples: which paths there are, in which order, with which label.
//!
//! Does no I/O (`forebay-store` lists directories and reads manifests for it) and no decoding (`forebay-decode`).

mod filter;
mod folder;
mod index;
mod manifest;
mod records;
mod scan;
mod versions;

pub use filter::{FilteredDirectory, SampleFilter};
pub use folder::{Accept, IMAGE_EXTENSIONS, ScanOptions, find_classes, scan};
pub use index::{FolderIndex, Note};
pub use manifest::{
    Content, ContentHash, Difference, Facts, Keeps, Labels, Manifest, Picture, content_hash, read_manifest,
    write_manifest,
};
pub use records::RecordLayout;
pub use scan::{ListJob, Scan};
