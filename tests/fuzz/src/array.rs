//! Arrays: as many elements as the shape says, and no more than the file has bytes for.

use forebay_core::{Epoch, Rng, SampleId};
use forebay_decode::{Fields, NpyRecipe, Recipe, Sample, Scratch, Value};

pub(crate) fn npy(bytes: &[u8]) {
    let (rng, scratch) = (&Rng::for_sample(0, Epoch(0), SampleId(0)), &mut Scratch::default());
    let sample = Sample { fields: Fields(&[bytes]), path: &|| "array.npy".into(), rng, scratch, slot: None };
    let Ok((value, _)) = NpyRecipe.make(sample) else { return };
    let Some(Value::Array(array)) = value else { panic!("an array file made {value:?}") };
    let elements: usize = array.shape.iter().product();
    assert_eq!(array.bytes.len(), elements * array.element.size_bytes(), "another size than its shape");
    assert!(array.bytes.len() <= bytes.len(), "more than the file has");
}
