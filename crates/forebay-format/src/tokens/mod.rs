//! Files of tokens: where each token is, which tokens are a window of them, and which documents are packed together.
//!
//! All files of a dataset are one stream of tokens in order. Nothing here reads a file: layouts are found out from headers and
//! sizes, and windows are arithmetic on the number of tokens in each file.

mod documents;
mod index;
mod megatron;
mod megatron_writer;
mod packing;
mod plain;
mod stream;

pub use documents::Documents;
pub use index::{ShardSpec, TokenShard, TokenShardIndex, is_token_index};
pub use megatron::{MEGATRON_HEADER_BYTES, MegatronHeader, MegatronIndex};
pub use megatron_writer::MegatronWriter;
pub use packing::{PACKING_BLOCK, Packing};
pub use plain::{HEADER_BYTES as TOKEN_HEADER_BYTES, PlainTokens, npy_tokens, plain_tokens};
pub use stream::{Piece, Run, Runs, Tail, TokenStream, Windows};

use forebay_core::{Element, Error, Kind, Result};

/// Element types that tokens may have.
pub(crate) fn check_element(element: Element) -> Result<Element> {
    use Element::{I8, I16, I32, I64, U8, U16, U32, U64};
    match element {
        U8 | U16 | U32 | U64 | I8 | I16 | I32 | I64 => Ok(element),
        other => Err(Error::new(Kind::Undecodable, format!("holds {} (expected whole numbers)", other.name()))),
    }
}

/// Memory for so many numbers of an index; lack of it is an error, and does not end the process.
pub(crate) fn room(count: u64) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    let no_memory = |_| Error::new(Kind::Exhausted, format!("no memory was left for an index of {count} documents"));
    numbers.try_reserve_exact(usize::try_from(count).unwrap_or(usize::MAX)).map_err(no_memory)?;
    Ok(numbers)
}

/// An index or a header that is not what it has to be.
pub(crate) fn damaged(what: impl std::fmt::Display) -> Error {
    Error::new(Kind::Corrupt, what.to_string())
}
