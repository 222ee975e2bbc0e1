//! Arrow files: the stream format, as `datasets` of Hugging Face writes it, and the file format, whose beginning is the same.
//!
//! A file is a sequence of messages, each with its length: a schema, and record batches, whose columns lie in buffers. Only what
//! says where values are is read: the messages themselves, offsets, and bitmaps of values that are there. Rows become samples, and
//! columns their fields.

mod flatbuffer;
mod scanner;
mod schema;
#[cfg(test)]
mod tests;

pub use scanner::{ArrowScanner, arrow_schema};
pub use schema::ArrowSchema;
