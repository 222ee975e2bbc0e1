//! The reader, a program of its own (`main.rs`), and what this process and it say to each other.

pub(crate) mod protocol;
