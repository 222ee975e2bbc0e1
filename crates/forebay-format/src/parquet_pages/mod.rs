//! What manifests and shards in Parquet have in common: the encoding of its metadata, and the headers of its pages.

mod header;
mod thrift;
#[cfg(test)]
mod writer;

pub(crate) use header::Header;
pub(crate) use thrift::{Thrift, Type, wrong};
#[cfg(test)]
pub(crate) use writer::Writer;
