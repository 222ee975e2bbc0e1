//! What has changed since a manifest was made.

use std::collections::HashMap;

use forebay_core::SampleId;
use xxhash_rust::xxh3::xxh3_128;

use super::{Facts, Manifest};
use crate::index::{FolderIndex, push_relative};

/// The samples that are new, gone or other ones, by their numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Samples of the new index that the earlier one lacks.
    pub added: Vec<SampleId>,
    /// Samples of the earlier index that the new one lacks.
    pub deleted: Vec<SampleId>,
    /// Samples of the new index that were something else before.
    pub changed: Vec<SampleId>,
}

impl Difference {
    /// Compares with an earlier manifest, which was read with its facts. What was known of the content of samples that
    /// are the same is taken over into `facts`.
    pub fn since(earlier: &Manifest, index: &FolderIndex, facts: &mut [Facts]) -> Self {
        let mut known: HashMap<u128, u64> = HashMap::with_capacity(earlier.facts.len());
        each_path(&earlier.index, |sample, hash| {
            known.insert(hash, sample);
        });
        let mut difference = Self::default();
        let mut is_met = vec![false; earlier.facts.len()];
        each_path(index, |sample, hash| {
            let (id, facts) = (SampleId(sample), &mut facts[sample as usize]);
            let Some(&before) = known.get(&hash) else { return difference.added.push(id) };
            is_met[before as usize] = true;
            let before = &earlier.facts[before as usize];
            match facts.version.is_same(&before.version) {
                true => facts.content.clone_from(&before.content),
                false => difference.changed.push(id),
            }
        });
        let gone = is_met.iter().enumerate().filter(|(_, is_met)| !**is_met);
        difference.deleted = gone.map(|(sample, _)| SampleId(sample as u64)).collect();
        difference
    }

    /// Whether nothing is different.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.deleted.is_empty() && self.changed.is_empty()
    }
}

/// A path takes too much memory to be kept a million times; two of the same hash will not be met.
fn each_path(index: &FolderIndex, mut see: impl FnMut(u64, u128)) {
    let (mut path, mut sample) = (Vec::new(), 0);
    for (directory, _, names) in index.runs() {
        for name in names {
            path.clear();
            push_relative(&mut path, directory, name);
            see(sample, xxh3_128(&path));
            sample += 1;
        }
    }
}
