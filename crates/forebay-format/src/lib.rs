//! How storage becomes samples: which paths there are, in which order, with which label.
//!
//! Knows neither where bytes are (`forebay-store` lists directories for it) nor what they mean (`forebay-decode`).

mod folder;
mod index;
mod scan;
mod sift;

pub use folder::{Accept, IMAGE_EXTENSIONS, ScanOptions, find_classes, scan};
pub use index::{FolderIndex, Note};
pub use scan::{Errand, Scan};
pub use sift::{Sieve, Sifted};
