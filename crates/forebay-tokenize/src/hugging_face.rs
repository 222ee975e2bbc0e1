//! Tokenizers of Hugging Face: a `tokenizer.json`.

use std::path::Path;

use forebay_core::{Error, Kind, Result, Retry};
use forebay_store::{Local, ReadRequest, Store};
use xxhash_rust::xxh3::xxh3_64;

use crate::tokenizer::Tokenizer;

/// The largest known ones have some 30 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// A tokenizer that was read from its `tokenizer.json`.
pub struct HuggingFace {
    tokenizer: tokenizers::Tokenizer,
    vocabulary_size: u64,
    fingerprint: u64,
}

impl HuggingFace {
    /// Reads a `tokenizer.json`.
    pub fn open(path: &Path) -> Result<Self> {
        let located = |error: Error| error.at_path(path);
        let request = ReadRequest::new(path, Retry::default().deadline);
        let mut allot = |size_bytes| match size_bytes {
            size_bytes if size_bytes <= MAX_FILE_BYTES => Ok(Vec::new()),
            size_bytes => {
                let message = format!("is no tokenizer (expected at most {MAX_FILE_BYTES} bytes, got {size_bytes})");
                Err(Error::new(Kind::Config, message).with_hint("expected a tokenizer.json"))
            }
        };
        let file = Local.fetch(&request, &mut allot).map_err(located)?;
        Self::parse(&file.bytes).map_err(located)
    }

    /// Reads what is in a `tokenizer.json`.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(json).map_err(|error| {
            Error::new(Kind::Config, "is no tokenizer that can be read")
                .with_detail(error.to_string())
                .with_hint("expected a tokenizer.json, as `tokenizer.save_pretrained` of transformers writes it")
        })?;
        // They are for batches of a model. Documents would be cut silently.
        let unlimited = tokenizer.with_truncation(None).map_err(|error| {
            Error::new(Kind::Config, "has a limit that cannot be taken off").with_detail(error.to_string())
        })?;
        unlimited.with_padding(None);
        let largest = tokenizer.get_vocab(true).into_values().max();
        let vocabulary_size = largest.map_or(0, |token| u64::from(token) + 1);
        Ok(Self { tokenizer, vocabulary_size, fingerprint: xxh3_64(json) })
    }
}

impl Tokenizer for HuggingFace {
    fn vocabulary_size(&self) -> u64 {
        self.vocabulary_size
    }

    fn encode(&self, text: &str, with_special: bool) -> Result<Vec<u32>> {
        let encoded = self.tokenizer.encode_fast(text, with_special);
        let encoding = encoded
            .map_err(|error| Error::new(Kind::Undecodable, "cannot be tokenized").with_detail(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    fn token(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}
