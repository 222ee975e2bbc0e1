//! The loader as a whole, on a store in memory that fails as told.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod cached;
mod decoded;
mod fields;
mod fixture;
mod golden;
mod hanging;
mod lifecycle;
mod memory;
mod mixtures;
mod neighbours;
mod order;
mod parity;
mod parts;
mod provenance;
mod recipes;
mod recovery;
mod resume;
mod shard_damage;
