//! Columns that a dataset knows without reading a sample: labels, and whatever else a table says of each sample.

use std::cmp::Ordering;
use std::sync::{Arc, LazyLock};

use crate::{hash_bytes, hash_words};

/// One value for each sample, all of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalars {
    /// Yes or no.
    Bool(Vec<bool>),
    /// Whole numbers.
    I64(Vec<i64>),
    /// Other numbers.
    F64(Vec<f64>),
    /// Texts.
    Text(Vec<String>),
}

impl Scalars {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Bool(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::Text(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values at these places, in this order.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn select(&self, places: impl Iterator<Item = usize>) -> Self {
        match self {
            Self::Bool(values) => Self::Bool(places.map(|place| values[place]).collect()),
            Self::I64(values) => Self::I64(places.map(|place| values[place]).collect()),
            Self::F64(values) => Self::F64(places.map(|place| values[place]).collect()),
            Self::Text(values) => Self::Text(places.map(|place| values[place].clone()).collect()),
        }
    }

    /// Adds the values of another column behind these.
    ///
    /// # Panics
    /// If they are of another type.
    pub fn append(&mut self, other: Self) {
        match (self, other) {
            (Self::Bool(values), Self::Bool(other)) => values.extend(other),
            (Self::I64(values), Self::I64(other)) => values.extend(other),
            (Self::F64(values), Self::F64(other)) => values.extend(other),
            (Self::Text(values), Self::Text(other)) => values.extend(other),
            (values, other) => panic!("values of one type are expected, got {values:?} and {other:?}"),
        }
    }

    /// The values as numbers: equal ones have the same, from 0 on in their order.
    pub fn numbered(&self) -> Vec<u32> {
        match self {
            Self::Bool(values) => numbered(values, bool::cmp),
            Self::I64(values) => numbered(values, i64::cmp),
            Self::F64(values) => numbered(values, f64::total_cmp),
            Self::Text(values) => numbered(values, String::cmp),
        }
    }

    fn fingerprint(&self) -> u64 {
        match self {
            Self::Bool(values) => hash_words(&values.iter().map(|value| u64::from(*value)).collect::<Vec<_>>()),
            Self::I64(values) => hash_words(&values.iter().map(|value| *value as u64).collect::<Vec<_>>()),
            Self::F64(values) => hash_words(&values.iter().map(|value| value.to_bits()).collect::<Vec<_>>()),
            Self::Text(values) => {
                hash_words(&values.iter().map(|text| hash_bytes(text.as_bytes())).collect::<Vec<_>>())
            }
        }
    }
}

fn numbered<T: Clone>(values: &[T], order: fn(&T, &T) -> Ordering) -> Vec<u32> {
    let mut distinct = values.to_vec();
    distinct.sort_unstable_by(order);
    distinct.dedup_by(|one, other| order(one, other).is_eq());
    let number = |value: &T| distinct.partition_point(|known| order(known, value).is_lt()) as u32;
    values.iter().map(number).collect()
}

/// A column of scalars and its name.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalarColumn {
    /// What it is called in a batch.
    pub name: Arc<str>,
    /// Its values.
    pub values: Scalars,
}

impl ScalarColumn {
    /// A column.
    pub fn new(name: &str, values: Scalars) -> Self {
        Self { name: name.into(), values }
    }

    /// A number that another name or other values have another of: part of what a resume state is bound to.
    pub fn fingerprint(&self) -> u64 {
        hash_words(&[hash_bytes(self.name.as_bytes()), self.values.fingerprint()])
    }

    /// Whole numbers under the name that labels have.
    pub fn labels(labels: Vec<i64>) -> Self {
        static NAME: LazyLock<Arc<str>> = LazyLock::new(|| "label".into());
        Self { name: Arc::clone(&NAME), values: Scalars::I64(labels) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_other_bytes_have_other_fingerprints() {
        let fingerprint =
            |texts: &[&str]| Scalars::Text(texts.iter().map(|text| (*text).to_owned()).collect()).fingerprint();
        assert_ne!(fingerprint(&["a", ""]), fingerprint(&["", "a"]));
        assert_ne!(fingerprint(&["ab"]), fingerprint(&["ab\0"]));
        assert_eq!(fingerprint(&["a longer text"]), fingerprint(&["a longer text"]));
    }

    #[test]
    fn equal_values_have_equal_numbers_in_order() {
        assert_eq!(Scalars::Text(["b", "a", "b"].map(str::to_owned).to_vec()).numbered(), [1, 0, 1]);
        assert_eq!(Scalars::I64(vec![5, -1, 5, 7]).numbered(), [1, 0, 1, 2]);
        assert_eq!(Scalars::F64(vec![0.5, f64::NAN, 0.5]).numbered(), [0, 1, 0]);
        assert_eq!(Scalars::Bool(vec![true, true]).numbered(), [0, 0]);
    }

    #[test]
    fn values_are_selected_in_the_order_of_the_places() {
        let all = [
            Scalars::Bool(vec![true, false, true]),
            Scalars::I64(vec![1, 2, 3]),
            Scalars::F64(vec![0.5, 1.5, 2.5]),
            Scalars::Text(["a", "b", "c"].map(str::to_owned).to_vec()),
        ];
        for values in &all {
            assert_eq!((values.len(), values.is_empty()), (3, false));
            let chosen = values.select([2, 0, 2].into_iter());
            assert_eq!(chosen.len(), 3);
            assert_eq!(chosen.select([1].into_iter()), values.select([0].into_iter()));
            let mut both = chosen.clone();
            both.append(values.select([0, 2].into_iter()));
            assert_eq!(both, values.select([2, 0, 2, 0, 2].into_iter()));
            let fingerprint = |name, values: &Scalars| ScalarColumn::new(name, values.clone()).fingerprint();
            assert_ne!(fingerprint("x", values), fingerprint("x", &chosen));
            assert_ne!(fingerprint("x", values), fingerprint("y", values));
        }
    }
}
