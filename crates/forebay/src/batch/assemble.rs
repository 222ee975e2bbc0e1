//! Assembly: what a batch is, and how samples without a fixed shape, late ones and gaps become one.

use std::sync::Arc;

use forebay_core::{Epoch, Error, Result, SampleId, Scalars, Stage, Step};
use forebay_decode::{Recipe, Value, layouts};

use crate::batch::buffer_pool::BufferPool;
use crate::batch::column::{Column, NamedColumn};
use crate::batch::places::Places;
use crate::loader::deliver::Progress;

/// One batch, as planned.
#[derive(Debug)]
pub struct Batch {
    /// The epoch it belongs to.
    pub epoch: Epoch,
    /// Its step within the epoch.
    pub step: Step,
    /// What the recipe made of the samples, then what the dataset says of them: labels.
    pub columns: Vec<NamedColumn>,
    /// Which samples they are, substitutes included.
    pub samples: Vec<SampleId>,
    /// How many of the planned ones failed: replaced or left out.
    pub failed: u64,
    /// For [`crate::Run::commit`].
    pub receipt: Receipt,
}

/// The progress of a run once the batch is delivered.
#[derive(Clone, Copy, Debug)]
pub struct Receipt(pub(crate) Progress);

impl Batch {
    /// How many samples it has.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The column of this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| *column.name == *name).map(|column| &column.column)
    }

    /// What the recipe made: its first column.
    pub fn into_content(mut self) -> Column {
        self.columns.swap_remove(0).column
    }

    /// The labels, where they are whole numbers.
    pub fn labels(&self) -> Option<&[i64]> {
        match self.column("label")? {
            Column::Scalars(Scalars::I64(labels)) => Some(labels),
            _ => None,
        }
    }
}

/// Copies a batch with slots that late threads may still write to. `values` are the samples that replace those slots, and `kept`
/// are the slots to copy. The late threads keep the memory of the batch itself.
pub(crate) fn copy_apart(
    batch: &Places,
    kept: &[bool],
    values: &[(usize, Value)],
    recipe: &dyn Recipe,
    pool: &Arc<BufferPool>,
) -> Result<Places> {
    let copy = Places::take(pool, &layouts(recipe), kept.len())?;
    for slot in (0..kept.len()).filter(|&slot| kept[slot]) {
        // SAFETY: no other thread has the copy.
        let mut targets = unsafe { copy.slots(slot) };
        let Some((_, value)) = values.iter().find(|(at, _)| *at == slot) else {
            // SAFETY: a kept slot without a value of its own was filled in time by the one thread that it was given to;
            // late threads have other slots. So no thread writes to these bytes any more.
            let made = unsafe { batch.slots(slot) };
            targets.iter_mut().zip(&made).for_each(|(target, made)| target.copy_from_slice(made));
            continue;
        };
        let values = match value {
            Value::Row(row) => row,
            single => std::slice::from_ref(single),
        };
        if values.len() != targets.len() {
            let (expected, got) = (targets.len(), values.len());
            return Err(Error::internal(format!("a batch of {expected} columns got {got}")));
        }
        for (value, target) in values.iter().zip(&mut targets) {
            match value {
                Value::Tensor(tensor) => {
                    recipe.place(tensor, target).map_err(|error| error.at_stage(Stage::Assemble))?;
                }
                Value::Array(array) if array.bytes.len() == target.len() => target.copy_from_slice(&array.bytes),
                other => return Err(Error::internal(format!("a batch of tensors got {other:?}"))),
            }
        }
    }
    batch.leave(pool);
    Ok(copy)
}

/// Closes the gaps that skipped samples leave in a dense batch.
pub(crate) fn compact(places: &mut Places, keep: &[bool]) {
    places.columns().for_each(|(bytes, slot_bytes)| compact_column(bytes, slot_bytes, keep));
}

fn compact_column(bytes: &mut [u8], slot_bytes: usize, keep: &[bool]) {
    let kept = (0..keep.len()).filter(|&slot| keep[slot]);
    for (target, slot) in kept.enumerate().filter(|(target, slot)| target != slot) {
        bytes.copy_within(slot * slot_bytes..(slot + 1) * slot_bytes, target * slot_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::Element;
    use forebay_decode::{Array, DocumentRule, Op, Pipeline, Tensor, TensorData, TokenSpec, TokensRecipe};

    #[test]
    fn a_batch_with_a_late_writer_is_copied_and_its_memory_stays_the_writers() {
        let pipeline = Pipeline::new(vec![Op::CenterCrop { size: 2.into() }, Op::ToTensor]).unwrap();
        let layouts = layouts(&pipeline);
        let size = layouts[0].size_bytes();
        let tensor = Tensor { channels: 3, height: 2, width: 2, data: TensorData::F32(vec![1.5; 12]) };
        let pool = Arc::new(BufferPool::new(2));
        let batch = Arc::new(Places::take(&pool, &layouts, 4).unwrap());
        for slot in [0, 2] {
            // SAFETY: the only reference to this slot.
            let mut slots = unsafe { batch.slots(slot) };
            slots[0].fill(slot as u8 + 1);
        }
        let writer = Arc::clone(&batch);
        // SAFETY: as above; the late thread has it for longer than the batch lives.
        let mut late = unsafe { writer.slots(1) };
        let (kept, values) = ([true, true, true, false], [(1, Value::Tensor(tensor))]);
        let mut copy = copy_apart(&batch, &kept, &values, &pipeline, &pool).unwrap();
        late[0].fill(9);
        drop((batch, late));
        let (bytes, _) = copy.columns().next().unwrap();
        let slots: Vec<&[u8]> = bytes[..4 * size].chunks(size).collect();
        assert!(slots[0].iter().all(|&byte| byte == 1) && slots[2].iter().all(|&byte| byte == 3));
        assert_eq!(slots[1], [1.5_f32.to_ne_bytes(); 12].concat());
        assert!(slots[3].iter().all(|&byte| byte == 0), "a slot that does not count is not looked at");
        assert_eq!(pool.counts(), (0, 1), "only the copy counts as in use");
        drop(writer);
        assert_eq!(pool.counts(), (1, 1), "the late one is back");
        drop(copy);
        assert_eq!(pool.counts(), (2, 0));
    }

    #[test]
    fn every_column_of_a_batch_is_copied() {
        let spec = TokenSpec {
            source: Element::U16,
            element: Element::U16,
            length: 1,
            has_targets: true,
            documents: DocumentRule::None,
            has_loss_mask: false,
            pad: 0,
            vocab_size: None,
        };
        let (recipe, pool) = (TokensRecipe::new(spec).unwrap(), Arc::new(BufferPool::new(4)));
        let batch = Places::take(&pool, &layouts(&recipe), 2).unwrap();
        // SAFETY: the only reference to this slot.
        unsafe { batch.slots(0) }.iter_mut().for_each(|slot| slot.fill(5));
        let array = |bytes: &[u8], element| Value::Array(Array { shape: vec![1], element, bytes: bytes.to_vec() });
        let row = |values| [(1, Value::Row(values))];
        let value = row(vec![array(&[1, 0], Element::U16), array(&[2; 8], Element::I64)]);
        let mut copy = copy_apart(&batch, &[true, true], &value, &recipe, &pool).unwrap();
        let columns = |copy: &mut Places, count| {
            copy.columns().map(|(bytes, size)| bytes[..count * size].to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(columns(&mut copy, 2), [vec![5, 5, 1, 0], [[5; 8], [2; 8]].concat()]);
        compact(&mut copy, &[false, true]);
        assert_eq!(columns(&mut copy, 1), [vec![1, 0], vec![2; 8]]);
        for wrong in [vec![array(&[1, 0], Element::U16)], vec![array(&[1, 0], Element::U16), array(&[2], Element::U8)]]
        {
            assert!(copy_apart(&batch, &[true, true], &row(wrong), &recipe, &pool).is_err());
        }
    }

    #[test]
    fn gaps_are_closed_in_order() {
        let mut bytes = [1, 1, 2, 2, 3, 3, 4, 4];
        compact_column(&mut bytes, 2, &[true, false, true, true]);
        assert_eq!(bytes[..6], [1, 1, 3, 3, 4, 4]);
    }
}
