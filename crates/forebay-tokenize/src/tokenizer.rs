//! What makes tokens of text.

use forebay_core::Result;

/// Makes tokens of text. Shared by threads.
pub trait Tokenizer: Send + Sync {
    /// One more than the largest token.
    fn vocabulary_size(&self) -> u64;

    /// The tokens of a document, with those that the tokenizer itself puts around it if `with_special` says so.
    fn encode(&self, text: &str, with_special: bool) -> Result<Vec<u32>>;

    /// The token that is written like this, such as `<|endoftext|>`.
    fn token(&self, text: &str) -> Option<u32>;

    /// A number that another tokenizer does not have.
    fn fingerprint(&self) -> u64;
}
