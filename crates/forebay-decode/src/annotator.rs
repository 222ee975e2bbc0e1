//! What is learnt of a picture once, and kept beside it: where decoding can start in its data.

use crate::{Decoders, Image};

/// Makes annotations: what is known of the bytes of a field before they are decoded, as bytes for an index. Today these are the
/// landmarks of JPEGs, for [`Scratch::lend_annotation`](crate::Scratch::lend_annotation).
///
/// One per thread; creating one costs nothing. It gets past all codes of a picture without making pixels of them.
///
/// ```
/// let mut annotator = forebay_decode::Annotator::default();
/// assert!(annotator.annotate(b"a caption").is_empty());
/// ```
#[derive(Default)]
pub struct Annotator {
    decoders: Decoders,
    image: Image,
}

impl Annotator {
    /// The annotation of these bytes, which holds for them alone: keep it with a checksum of them. It is empty for
    /// what is no JPEG, for JPEGs without landmarks (progressive ones, CMYK, with restart markers), and for damaged ones.
    pub fn annotate(&mut self, bytes: &[u8]) -> Vec<u8> {
        // What is damaged is said when it is decoded.
        self.decoders.find_landmarks(bytes, &mut self.image).map(|found| found.to_annotation()).unwrap_or_default()
    }
}

impl std::fmt::Debug for Annotator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Annotator").finish_non_exhaustive()
    }
}
