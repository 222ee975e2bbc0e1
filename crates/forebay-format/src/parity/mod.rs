//! Parity sidecars: Reed–Solomon parity of a file, kept beside it, by which damaged bytes are made again. Arithmetic only: reading
//! and writing is the engine's.
//!
//! A file is cut into **blocks** of 4 KiB, the smallest piece that a disk loses; sixteen neighbours are a **run**, which one
//! read gives. The runs of a **region** (62 to 124 MiB, or all of a smaller file) are dealt to sixteen **groups**, one after
//! the other. Each group has parity of its own: as many blocks of it may be lost as it has parity blocks. Dealing runs spreads
//! a burst over all groups, so that 2 % carry a lost mebibyte, and one sample touches few groups.
//!
//! ```text
//! header                                64 bytes
//! of each group: record, parity blocks
//! of each group: record, once more
//! header, once more
//! ```
//!
//! All numbers are little-endian, and every place follows from the header ([`ParityLayout`]): magic, version, the file's
//! size, the five numbers of the geometry, and their XXH3. A record has the 64-bit XXH3 of each block of its group, then of each
//! parity block, zeros up to the length of the longest record, and an XXH3 of all that, whose seed is the number of the
//! group. Blocks are found to be damaged by these checksums and are then erasures, so that nothing is guessed, and a block
//! that was made again has to have its checksum as well. Header and records are there twice, the copies as far from each
//! other as the file is long; damaged parity blocks are erasures too.

mod code;
mod layout;
mod record;
#[cfg(test)]
mod tests;

pub use code::{GroupEncoder, GroupRepair, MadeBlock};
pub use layout::{GroupRun, PARITY_HEADER_BYTES, ParityLayout};
pub use record::GroupRecord;
