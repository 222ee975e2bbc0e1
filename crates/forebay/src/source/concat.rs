//! Several datasets as one: the samples of each, one dataset after the other.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{
    Blocks, DatasetIdentity, Error, Expected, Field, Locator, Result, SampleId, ScalarColumn, Scalars, hash_bytes,
    hash_words,
};

use crate::source::Dataset;

/// Datasets one after the other. Each may have fields, a root and a recipe of its own; labels have to agree.
pub struct Concat {
    datasets: Vec<Arc<dyn Dataset>>,
    /// The samples of each.
    samples: Blocks,
    /// The number of each one's first part: a dataset may consist of several itself.
    first_parts: Vec<u32>,
}

impl Concat {
    /// Puts datasets together. Each has to have samples, with the same columns of labels.
    pub fn new(datasets: Vec<Arc<dyn Dataset>>) -> Result<Self> {
        if datasets.is_empty() {
            return Err(Error::config("expected at least one dataset, got none"));
        }
        if let Some(number) = datasets.iter().position(|dataset| dataset.is_empty()) {
            return Err(Error::config(format!("expected datasets with samples, got none in dataset {number}")));
        }
        let columns = |dataset: &Arc<dyn Dataset>| described(&dataset.scalars(&[SampleId(0)]));
        let expected = columns(&datasets[0]);
        let others = datasets.iter().map(columns).enumerate();
        if let Some((number, got)) = others.into_iter().find(|(_, got)| *got != expected) {
            let message = format!(
                "expected datasets with the same labels, got {expected} in dataset 0 and {got} in dataset {number}"
            );
            return Err(Error::config(message).with_hint("label all of the datasets in the same way"));
        }
        let samples = Blocks::new(datasets.iter().map(|dataset| dataset.len()))?;
        let mut parts = 0;
        let first_parts = datasets.iter().map(|dataset| {
            let first = parts;
            parts += dataset.fields_by_part().len() as u32;
            first
        });
        let first_parts = first_parts.collect();
        Ok(Self { datasets, samples, first_parts })
    }

    fn find(&self, sample: SampleId) -> (usize, SampleId) {
        let (dataset, place) = self.samples.locate(sample.0);
        (dataset as usize, SampleId(place))
    }

    fn of(&self, sample: SampleId) -> (&dyn Dataset, SampleId) {
        let (dataset, place) = self.find(sample);
        (&*self.datasets[dataset], place)
    }
}

/// Columns of labels in words.
fn described(columns: &[ScalarColumn]) -> String {
    let column = |column: &ScalarColumn| {
        let kind = match column.values {
            Scalars::Bool(_) => "truth values",
            Scalars::I64(_) => "whole numbers",
            Scalars::F64(_) => "floats",
            Scalars::Text(_) => "texts",
        };
        format!("{:?} ({kind})", &*column.name)
    };
    if columns.is_empty() { "none".to_owned() } else { columns.iter().map(column).collect::<Vec<_>>().join(", ") }
}

impl Dataset for Concat {
    fn len(&self) -> u64 {
        self.samples.sample_count()
    }

    fn field_count(&self) -> u32 {
        self.datasets[0].field_count()
    }

    fn field_count_of(&self, sample: SampleId) -> u32 {
        let (dataset, place) = self.of(sample);
        dataset.field_count_of(place)
    }

    fn outline(&self, sample: SampleId) -> Option<Vec<u8>> {
        let (dataset, place) = self.of(sample);
        dataset.outline(place)
    }

    fn fields_by_part(&self) -> Vec<u32> {
        self.datasets.iter().flat_map(|dataset| dataset.fields_by_part()).collect()
    }

    fn part_of(&self, sample: SampleId) -> u32 {
        let (dataset, place) = self.find(sample);
        self.first_parts[dataset] + self.datasets[dataset].part_of(place)
    }

    fn locate(&self, sample: SampleId, field: Field, locator: &mut Locator) {
        let (dataset, place) = self.of(sample);
        dataset.locate(place, field, locator);
    }

    fn is_unpacked(&self, sample: SampleId) -> bool {
        let (dataset, place) = self.of(sample);
        dataset.is_unpacked(place)
    }

    fn blocks(&self) -> Option<Blocks> {
        let each: Option<Vec<_>> = self.datasets.iter().map(|dataset| dataset.blocks()).collect();
        Blocks::new(each?.iter().flat_map(Blocks::lengths)).ok()
    }

    fn scalars(&self, samples: &[SampleId]) -> Vec<ScalarColumn> {
        // Dataset by dataset, and then back in the order that was asked for.
        let mut grouped: Vec<_> = samples.iter().map(|sample| self.find(*sample)).enumerate().collect();
        grouped.sort_by_key(|(_, (dataset, _))| *dataset);
        let mut columns: Vec<ScalarColumn> = Vec::new();
        for group in grouped.chunk_by(|(_, (one, _)), (_, (other, _))| one == other) {
            let places: Vec<_> = group.iter().map(|(_, (_, place))| *place).collect();
            let own = self.datasets[group[0].1.0].scalars(&places);
            if columns.is_empty() {
                columns = own;
            } else {
                columns.iter_mut().zip(own).for_each(|(column, own)| column.values.append(own.values));
            }
        }
        if columns.is_empty() {
            return self.datasets[0].scalars(&[]); // of no samples
        }
        let mut order = vec![0; samples.len()];
        for (place, (asked, _)) in grouped.iter().enumerate() {
            order[*asked] = place;
        }
        let select = |column: ScalarColumn| ScalarColumn {
            values: column.values.select(order.iter().copied()),
            name: column.name,
        };
        columns.into_iter().map(select).collect()
    }

    fn expected(&self, sample: SampleId, field: Field) -> Option<Expected> {
        let (dataset, place) = self.of(sample);
        dataset.expected(place, field)
    }

    fn verify(&self, sample: SampleId, field: Field, bytes: &[u8]) -> Result<()> {
        let (dataset, place) = self.of(sample);
        dataset.verify(place, field, bytes)
    }

    fn annotation(&self, sample: SampleId, field: Field) -> Option<&[u8]> {
        let (dataset, place) = self.of(sample);
        dataset.annotation(place, field)
    }

    fn identity(&self) -> DatasetIdentity {
        let identities: Vec<_> = self.datasets.iter().map(|dataset| dataset.identity()).collect();
        let words = identities.iter().map(|identity| {
            hash_words(&[identity.samples, identity.classes, hash_bytes(identity.fingerprint.as_bytes())])
        });
        let fingerprint = format!("&{:016x}", hash_words(&words.collect::<Vec<_>>()));
        let classes = identities.iter().map(|identity| identity.classes).max().unwrap_or(0);
        DatasetIdentity { samples: self.len(), classes, fingerprint }
    }

    fn root_of(&self, sample: SampleId) -> Option<PathBuf> {
        let (dataset, place) = self.of(sample);
        dataset.root_of(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Labelled, Selection};
    use std::path::Path;

    struct Numbers {
        root: &'static str,
        len: u64,
        fields: u32,
    }

    impl Dataset for Numbers {
        fn len(&self) -> u64 {
            self.len
        }
        fn field_count(&self) -> u32 {
            self.fields
        }
        fn locate(&self, sample: SampleId, _field: Field, locator: &mut Locator) {
            *locator = Locator::whole(Path::new(self.root).join(sample.to_string()));
        }
        fn identity(&self) -> DatasetIdentity {
            DatasetIdentity { samples: self.len, classes: 0, fingerprint: self.root.to_owned() }
        }
        fn root(&self) -> Option<PathBuf> {
            Some(self.root.into())
        }
    }

    fn labelled(root: &'static str, labels: Vec<i64>, fields: u32) -> Arc<dyn Dataset> {
        let base = Arc::new(Numbers { root, len: labels.len() as u64, fields });
        Arc::new(Labelled::new(base, vec![ScalarColumn::labels(labels)]).unwrap())
    }

    fn concat(datasets: Vec<Arc<dyn Dataset>>) -> Arc<dyn Dataset> {
        Arc::new(Concat::new(datasets).unwrap())
    }

    #[test]
    fn each_sample_is_one_of_its_own_dataset() {
        let (a, b, c) = (labelled("/a", vec![1, 2], 1), labelled("/b", vec![3], 2), labelled("/c", vec![4, 5], 1));
        let nested = concat(vec![concat(vec![a, b]), c]);
        // Every second one, backwards, and one of them twice.
        let selected = Selection::new(nested, vec![4, 2, 0, 2, 3, 1]).unwrap();
        let all: Vec<_> = (0..6).map(SampleId).collect();
        let paths: Vec<_> = all.iter().map(|sample| selected.path(*sample)).collect();
        assert_eq!(paths, ["/c/1", "/b/0", "/a/0", "/b/0", "/c/0", "/a/1"].map(PathBuf::from));
        assert_eq!(all.iter().map(|sample| selected.part_of(*sample)).collect::<Vec<_>>(), [2, 1, 0, 1, 2, 0]);
        assert_eq!(all.iter().map(|sample| selected.field_count_of(*sample)).collect::<Vec<_>>(), [1, 2, 1, 2, 1, 1]);
        assert_eq!(selected.fields_by_part(), [1, 2, 1]);
        assert_eq!(selected.scalars(&all), [ScalarColumn::labels(vec![5, 3, 1, 3, 4, 2])]);
        assert_eq!(selected.scalars(&[]), [ScalarColumn::labels(vec![])]);
        assert_eq!(selected.root_of(SampleId(1)), Some(PathBuf::from("/b")));
    }

    #[test]
    fn the_identity_is_that_of_all_datasets_in_order() {
        let of = |datasets: &[(&'static str, u64)]| {
            let datasets = datasets.iter().map(|(root, len)| labelled(root, vec![0; *len as usize], 1));
            concat(datasets.collect()).identity()
        };
        let identity = of(&[("/a", 2), ("/b", 3)]);
        assert_eq!((identity.samples, identity.clone()), (5, of(&[("/a", 2), ("/b", 3)])));
        assert_ne!(identity, of(&[("/b", 3), ("/a", 2)]));
        assert_ne!(identity, of(&[("/a", 3), ("/b", 2)]));
    }

    #[test]
    fn other_labels_and_datasets_without_samples_are_refused() {
        let refused = |datasets| Concat::new(datasets).map(|_| ()).unwrap_err().to_string();
        let plain: Arc<dyn Dataset> = Arc::new(Numbers { root: "/p", len: 1, fields: 1 });
        let floats = |name| ScalarColumn::new(name, Scalars::F64(vec![0.5]));
        let scored =
            |name| Arc::new(Labelled::new(Arc::clone(&plain), vec![floats(name)]).unwrap()) as Arc<dyn Dataset>;
        let message = refused(vec![labelled("/a", vec![1], 1), Arc::clone(&plain)]);
        assert!(message.contains(r#"got "label" (whole numbers) in dataset 0 and none in dataset 1"#), "{message}");
        assert!(refused(vec![labelled("/a", vec![1], 1), scored("label")]).contains("(floats) in dataset 1"));
        assert!(refused(vec![scored("a"), scored("b")]).contains(r#""b" (floats) in dataset 1"#));
        assert!(refused(vec![scored("a"), labelled("/e", vec![], 1)]).contains("got none in dataset 1"));
        assert!(refused(vec![]).contains("expected at least one dataset"));
    }
}
