//! The columns of a batch, made of what recipes made of its samples.

use std::sync::Arc;

use forebay_core::{Error, Result, ScalarColumn, Scalars, Stage};
use forebay_decode::{Array, ColumnKind, Dense, Order, Recipe, Value, layouts};

use crate::batch::buffer_pool::{Buffer, BufferPool};
use crate::batch::places::Places;

/// What the samples of a batch have under one name, in their order.
#[derive(Debug)]
pub enum Column {
    /// Arrays of one shape, one after the other.
    Dense {
        /// Their memory.
        buffer: Buffer,
        /// Each one's shape.
        layout: Dense,
    },
    /// Arrays of different shapes.
    Ragged(Vec<Array>),
    /// Texts.
    Text(Vec<String>),
    /// Bytes.
    Bytes(Vec<Vec<u8>>),
    /// What the dataset itself says of each sample: labels.
    Scalars(Scalars),
    /// Anything else: pictures that are not tensors yet, JSON values, what a user's own code made.
    Objects(Vec<Value>),
}

/// A column and its name.
#[derive(Debug)]
pub struct NamedColumn {
    /// Its name.
    pub name: Arc<str>,
    /// Its content.
    pub column: Column,
}

impl From<ScalarColumn> for NamedColumn {
    fn from(column: ScalarColumn) -> Self {
        Self { name: column.name, column: Column::Scalars(column.values) }
    }
}

/// The columns that a recipe makes, by name. Asked once, and not for every batch.
#[derive(Debug)]
pub(crate) struct Schema(Vec<(Arc<str>, ColumnKind)>);

impl Schema {
    pub(crate) fn of(recipe: &dyn Recipe) -> Result<Self> {
        let columns: Vec<_> = recipe.schema().into_iter().map(|spec| (spec.name.as_ref().into(), spec.kind)).collect();
        let (all, in_place) = (columns.len(), layouts(recipe).len());
        if in_place > 0 && in_place != all {
            return Err(Error::internal(format!("a recipe of {all} columns has layouts of {in_place}")));
        }
        match columns.is_empty() {
            true => Err(Error::internal("a recipe announced no columns")),
            false => Ok(Self(columns)),
        }
    }
}

/// The columns of samples that were written in place.
pub(crate) fn of_places(places: Places, schema: &Schema, layouts: &[Dense]) -> Vec<NamedColumn> {
    let columns = schema.0.iter().zip(places.into_buffers()).zip(layouts);
    columns
        .map(|(((name, _), buffer), layout)| NamedColumn {
            name: Arc::clone(name),
            column: Column::Dense { buffer, layout: layout.clone() },
        })
        .collect()
}

/// The columns of samples that were made as values.
pub(crate) fn of_values(
    values: Vec<Value>,
    schema: &Schema,
    recipe: &dyn Recipe,
    pool: &Arc<BufferPool>,
) -> Result<Vec<NamedColumn>> {
    let columns = match schema.0.len() {
        1 => vec![values],
        count => transposed(values, count)?,
    };
    let named = schema.0.iter().zip(columns).map(|((name, kind), values)| {
        let column = column_of(values, kind, recipe, pool)?;
        Ok(NamedColumn { name: Arc::clone(name), column })
    });
    named.collect()
}

/// Rows of so many values each, column by column.
fn transposed(values: Vec<Value>, count: usize) -> Result<Vec<Vec<Value>>> {
    let mut columns: Vec<_> = (0..count).map(|_| Vec::with_capacity(values.len())).collect();
    for value in values {
        match value {
            Value::Row(row) if row.len() == count => {
                columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
            }
            other => return Err(Error::internal(format!("a recipe of {count} columns made {other:?}"))),
        }
    }
    Ok(columns)
}

fn column_of(values: Vec<Value>, kind: &ColumnKind, recipe: &dyn Recipe, pool: &Arc<BufferPool>) -> Result<Column> {
    Ok(match values.first() {
        Some(Value::Array(_)) if values.iter().all(|value| matches!(value, Value::Array(_))) => {
            let arrays = values.into_iter().filter_map(|value| match value {
                Value::Array(array) => Some(array),
                _ => None,
            });
            arrays_of(arrays.collect(), kind, pool)?
        }
        Some(Value::Tensor(_)) => tensors_of(values, recipe, pool)?,
        Some(Value::Text(_)) if values.iter().all(|value| matches!(value, Value::Text(_))) => {
            let texts =
                values.into_iter().filter_map(|value| if let Value::Text(text) = value { Some(text) } else { None });
            Column::Text(texts.collect())
        }
        Some(Value::Bytes(_)) if values.iter().all(|value| matches!(value, Value::Bytes(_))) => {
            let all =
                values.into_iter().filter_map(|value| if let Value::Bytes(bytes) = value { Some(bytes) } else { None });
            Column::Bytes(all.collect())
        }
        None if *kind == ColumnKind::Text => Column::Text(Vec::new()),
        None if *kind == ColumnKind::Bytes => Column::Bytes(Vec::new()),
        None if *kind == ColumnKind::Arrays => Column::Ragged(Vec::new()),
        _ => Column::Objects(values),
    })
}

/// Tensors of one shape side by side, in the batch's type and order; others stay as they are.
fn tensors_of(values: Vec<Value>, recipe: &dyn Recipe, pool: &Arc<BufferPool>) -> Result<Column> {
    let layout_of = |value: &Value| match value {
        Value::Tensor(tensor) => Some(tensor.layout()),
        _ => None,
    };
    let Some(made) = values.first().and_then(layout_of) else { return Ok(Column::Objects(values)) };
    if !values.iter().all(|value| layout_of(value) == Some(made)) {
        return Ok(Column::Objects(values));
    }
    let assembling = |error: Error| error.at_stage(Stage::Assemble);
    let layout = Dense::from(recipe.batch_layout(made).map_err(assembling)?);
    let mut buffer = pool.take(layout.size_bytes() * values.len())?;
    for (value, slot) in values.iter().zip(buffer.bytes().chunks_exact_mut(layout.size_bytes().max(1))) {
        let Value::Tensor(tensor) = value else { continue };
        recipe.place(tensor, slot).map_err(assembling)?;
    }
    Ok(Column::Dense { buffer, layout })
}

/// Arrays of one shape and type side by side, in the order that was announced for them; others stay as they are.
fn arrays_of(arrays: Vec<Array>, kind: &ColumnKind, pool: &Arc<BufferPool>) -> Result<Column> {
    let Some((shape, element)) = arrays.first().map(|array| (array.shape.clone(), array.element)) else {
        return Ok(Column::Ragged(arrays));
    };
    if !arrays.iter().all(|array| array.shape == shape && array.element == element) {
        return Ok(Column::Ragged(arrays));
    }
    let order = if let ColumnKind::Dense(announced) = kind { announced.order } else { Order::default() };
    let layout = Dense { shape, element, order };
    let mut buffer = pool.take(layout.size_bytes() * arrays.len())?;
    for (array, slot) in arrays.iter().zip(buffer.bytes().chunks_exact_mut(layout.size_bytes().max(1))) {
        slot[..array.bytes.len()].copy_from_slice(&array.bytes);
    }
    Ok(Column::Dense { buffer, layout })
}

/// Puts arrays of different shapes into one array each, as large as the largest along every dimension; `fill` is the one
/// element that stands where an array has none. All have as many dimensions, and elements of `fill`'s size.
pub fn pad(arrays: &[(&[u8], &[usize])], fill: &[u8]) -> Result<(Vec<u8>, Vec<usize>)> {
    let Some((_, first)) = arrays.first() else { return Ok((Vec::new(), vec![0])) };
    if let Some((_, other)) = arrays.iter().find(|(_, shape)| shape.len() != first.len()) {
        let (one, other) = (first.len(), other.len());
        let message =
            format!("ragged: expected arrays of as many dimensions to pad, got some of {one} and some of {other}");
        return Err(Error::config(message).at_stage(Stage::Assemble).with_hint("`ragged=\"list\"` takes any arrays"));
    }
    let largest: Vec<usize> =
        (0..first.len()).map(|axis| arrays.iter().map(|(_, shape)| shape[axis]).max().unwrap_or(0)).collect();
    let too_large =
        || Error::new(forebay_core::Kind::Exhausted, format!("a batch padded to {largest:?} does not fit into memory"));
    let sizes = largest.iter().try_fold(fill.len(), |size, extent| size.checked_mul(*extent));
    let total = sizes.and_then(|size| size.checked_mul(arrays.len())).ok_or_else(too_large)?;
    let mut padded = Vec::new();
    padded.try_reserve_exact(total).map_err(|_| too_large())?;
    while padded.len() < total {
        padded.extend_from_slice(fill);
    }
    if total > 0 {
        for ((bytes, shape), target) in arrays.iter().zip(padded.chunks_exact_mut(total / arrays.len())) {
            place(bytes, shape, target, &largest, fill.len());
        }
    }
    Ok((padded, std::iter::once(arrays.len()).chain(largest).collect()))
}

/// Copies an array into the beginning of a larger one, dimension by dimension.
fn place(source: &[u8], shape: &[usize], target: &mut [u8], room: &[usize], element_bytes: usize) {
    let ([extent, inner @ ..], [_, inner_room @ ..]) = (shape, room) else {
        return target[..source.len()].copy_from_slice(source);
    };
    if inner == inner_room {
        return target[..source.len()].copy_from_slice(source); // whole rows
    }
    let row = inner.iter().product::<usize>() * element_bytes;
    let row_room = inner_room.iter().product::<usize>() * element_bytes;
    for at in 0..*extent {
        place(&source[at * row..][..row], inner, &mut target[at * row_room..][..row_room], inner_room, element_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::Kind;
    use forebay_decode::{Dtype, Output, Pipeline, Tensor, TensorData};

    #[test]
    fn tensors_of_one_shape_become_a_batch_of_the_type_asked_for() {
        let tensor = |values: [f32; 2]| {
            Value::Tensor(Tensor { channels: 2, height: 1, width: 1, data: TensorData::F32(values.to_vec()) })
        };
        let pool = Arc::new(BufferPool::new(2));
        let output = |dtype| Output { dtype: Some(dtype), order: Order::Interleaved };
        let pipeline = |dtype| Pipeline::new(vec![]).unwrap().with_output(output(dtype)).unwrap();
        let values = || vec![tensor([1.0, -2.0]), tensor([0.5, 65504.0])];
        let only = |values, dtype| {
            let pipeline = pipeline(dtype);
            let columns = of_values(values, &Schema::of(&pipeline).unwrap(), &pipeline, &pool);
            columns.map(|mut columns| columns.swap_remove(0))
        };
        let NamedColumn { name, column: Column::Dense { mut buffer, layout } } = only(values(), Dtype::F16).unwrap()
        else {
            panic!("a dense column is expected")
        };
        assert_eq!(&*name, "image");
        assert_eq!((layout.element, layout.order), (Dtype::F16.element(), Order::Interleaved));
        let expected: Vec<u8> = [0x3C00u16, 0xC000, 0x3800, 0x7BFF].into_iter().flat_map(u16::to_ne_bytes).collect();
        assert_eq!(buffer.bytes(), expected);
        let error = only(values(), Dtype::U8).unwrap_err();
        assert_eq!((error.kind(), error.stage()), (Kind::Config, Some(Stage::Assemble)));
        let other = Value::Tensor(Tensor { channels: 1, height: 1, width: 1, data: TensorData::F32(vec![0.0]) });
        let mixed = only(vec![tensor([0.0; 2]), other], Dtype::F16).unwrap();
        assert!(matches!(mixed.column, Column::Objects(values) if values.len() == 2));
    }

    #[test]
    fn rows_become_columns_of_their_own_kinds() {
        let recipe =
            forebay_decode::JsonRecipe { fields: ["ids", "text", "more"].map(str::to_owned).to_vec(), is_line: false };
        let pool = Arc::new(BufferPool::new(2));
        let array = |count: usize| {
            let bytes = vec![1; count * 8];
            Value::Array(Array { shape: vec![count], element: forebay_core::Element::I64, bytes })
        };
        let row =
            |count| Value::Row(vec![array(count), Value::Text(count.to_string()), Value::Opaque(Box::new(count))]);
        let schema = Schema::of(&recipe).unwrap();
        let columns = of_values(vec![row(2), row(2)], &schema, &recipe, &pool).unwrap();
        let names: Vec<_> = columns.iter().map(|column| &*column.name).collect();
        assert_eq!(names, ["ids", "text", "more"]);
        assert!(matches!(&columns[0].column, Column::Dense { layout, .. } if layout.shape == [2]));
        assert!(matches!(&columns[1].column, Column::Text(texts) if texts == &["2", "2"]));
        assert!(matches!(&columns[2].column, Column::Objects(values) if values.len() == 2));
        let columns = of_values(vec![row(2), row(3)], &schema, &recipe, &pool).unwrap();
        assert!(matches!(&columns[0].column, Column::Ragged(arrays) if arrays.len() == 2));
        assert!(of_values(vec![Value::Text("no row".to_owned())], &schema, &recipe, &pool).is_err());
    }

    #[test]
    fn arrays_are_padded_along_every_dimension() {
        let (one, two): (&[u8], &[u8]) = (&[1, 2, 3, 4, 5, 6], &[7, 8, 9]);
        let (padded, shape) = pad(&[(one, &[2, 3]), (two, &[3, 1])], &[0]).unwrap();
        assert_eq!(shape, [2, 3, 3]);
        assert_eq!(padded, [1, 2, 3, 4, 5, 6, 0, 0, 0, 7, 0, 0, 8, 0, 0, 9, 0, 0]);
        let (padded, shape) = pad(&[(&[1, 0], &[1]), (&[], &[0])], &[9, 9]).unwrap();
        assert_eq!((padded.as_slice(), shape.as_slice()), ([1, 0, 9, 9].as_slice(), [2, 1].as_slice()));
        let (padded, shape) = pad(&[(&[5], &[]), (&[6], &[])], &[0]).unwrap();
        assert_eq!((padded.as_slice(), shape.as_slice()), ([5, 6].as_slice(), [2].as_slice()), "single elements");
        assert_eq!(pad(&[(&[], &[0]), (&[], &[0])], &[0]).unwrap(), (vec![], vec![2, 0]));
        assert_eq!(pad(&[], &[0]).unwrap(), (vec![], vec![0]));
        assert!(pad(&[(&[1], &[1]), (&[1], &[1, 1])], &[0]).is_err());
    }
}
