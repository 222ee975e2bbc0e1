//! Parquet files: rows are samples, and columns their fields.
//!
//! A file is made of row groups, in each of which every column has its pages one behind the other; a footer says where they are.
//! The index of a file has the place of every value: in the file itself, where a page is neither compressed nor encoded, and else
//! in what becomes of a page when it is unpacked ([`PageTable`]).

mod chunk;
mod delta;
mod footer;
mod hybrid;
mod page;
mod scanner;
mod schema;
mod table;
#[cfg(test)]
mod tests;
mod values;

pub use scanner::{ParquetScanner, parquet_schema};
pub use schema::ParquetSchema;
pub use table::PageTable;
