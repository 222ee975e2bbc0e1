//! What the crate promises, tried on whole pictures.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

mod decode;
mod fast;
mod landmarks;
mod limits;
mod memory;
mod ops;
mod reuse;
mod tiff;
