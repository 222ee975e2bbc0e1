//! Arrays: as many elements as the shape says, and no more than the file has bytes for.

use forebay_core::{Epoch, Rng, SampleId};
use forebay_decode::{ArrayArchive, Fields, NamedArraysRecipe, NpyRecipe, Recipe, Sample, Scratch, Value, array_names};

pub(crate) fn npy(bytes: &[u8]) {
    let (rng, scratch) = (&Rng::for_sample(0, Epoch(0), SampleId(0)), &mut Scratch::default());
    let sample = Sample { fields: Fields(&[bytes]), path: &|| "array.npy".into(), rng, scratch, slot: None };
    let Ok((value, _)) = NpyRecipe.make(sample) else { return };
    let Some(Value::Array(array)) = value else { panic!("an array file made {value:?}") };
    let elements: usize = array.shape.iter().product();
    assert_eq!(array.bytes.len(), elements * array.element.size_bytes(), "another size than its shape");
    assert!(array.bytes.len() <= bytes.len(), "more than the file has");
}

/// Every array of an archive, by its own name. Deflate may unpack to 1032 times its bytes, and no more.
pub(crate) fn archive(kind: ArrayArchive, bytes: &[u8]) {
    let Ok(names) = array_names(kind, bytes) else { return };
    let (rng, scratch) = (&Rng::for_sample(0, Epoch(0), SampleId(0)), &mut Scratch::default());
    for name in names {
        let recipe = NamedArraysRecipe::new(kind, vec![name]).expect("one name");
        let charged = recipe.memory_bytes(Fields(&[bytes]), scratch).expect("it was opened a moment ago");
        let sample = Sample { fields: Fields(&[bytes]), path: &|| "archive".into(), rng, scratch, slot: None };
        let Ok((value, _)) = recipe.make(sample) else { continue };
        let Some(Value::Array(array)) = value else { panic!("an array file made {value:?}") };
        let elements: usize = array.shape.iter().product();
        assert_eq!(array.bytes.len(), elements * array.element.size_bytes(), "another size than its shape");
        assert!(array.bytes.len() <= bytes.len() * 1032 && array.bytes.len() as u64 <= charged, "more than it claims");
    }
}
