//! The recipe of documents: their text, then its tokens.

use std::sync::Arc;
use std::time::Instant;

use forebay::{Array, ColumnKind, ColumnSpec, Dense, Element, Fields, Made, Recipe, Sample, Scratch, Timing, Value};
use forebay_core::{Error, Kind, Result, Stage};

use crate::tokenizer::Tokenizer;

/// Memory of the tokenizer for each byte of text: its copies of the text, the place of each character, the tokens. Not measured.
const BYTES_PER_TEXT_BYTE: u64 = 64;

/// Makes an array of tokens of what another recipe makes a text of.
pub(crate) struct TokenRecipe {
    pub(crate) text: Arc<dyn Recipe>,
    pub(crate) tokenizer: Arc<dyn Tokenizer>,
    pub(crate) with_special: bool,
    /// Comes behind each document that has tokens.
    pub(crate) end: Option<u32>,
}

impl Recipe for TokenRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        vec![ColumnSpec::new("tokens", ColumnKind::Arrays)]
    }

    fn layout(&self) -> Option<&Dense> {
        None
    }

    fn max_bytes(&self) -> Option<u64> {
        self.text.max_bytes()
    }

    fn memory_bytes(&self, fields: Fields<'_>, scratch: &mut Scratch) -> Result<u64> {
        let tokens = (fields.only().len() as u64).saturating_mul(BYTES_PER_TEXT_BYTE);
        self.text.memory_bytes(fields, scratch).map(|text| text.saturating_add(tokens))
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let (value, timing) = self.text.make(Sample { slot: None, ..sample })?;
        let Some(Value::Text(text)) = value else {
            let message = "is no text (expected a string in the field of the documents)";
            return Err(Error::new(Kind::Corrupt, message).at_stage(Stage::Decode));
        };
        let started = Instant::now();
        let mut tokens = self.tokenizer.encode(&text, self.with_special)?;
        if !tokens.is_empty() {
            tokens.extend(self.end);
        }
        let bytes = tokens.iter().flat_map(|token| token.to_ne_bytes()).collect();
        let array = Array { shape: vec![tokens.len()], element: Element::U32, bytes };
        let timing = Timing { transform: started.elapsed(), ..timing };
        Ok((Some(Value::Array(array)), timing))
    }
}
