//! Compares a manifest with the current state of the folder.

use std::collections::HashMap;

use forebay_core::SampleId;
use xxhash_rust::xxh3::xxh3_128;

use super::{Facts, Manifest};
use crate::index::{FolderIndex, push_relative};

/// How many consecutive samples may be missing before the following ones are looked up by hash.
const LOOK_AHEAD: usize = 64;

/// Samples that were added, deleted or changed, by their numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Samples of the new index that the earlier one lacks.
    pub added: Vec<SampleId>,
    /// Samples of the earlier index that the new one lacks.
    pub deleted: Vec<SampleId>,
    /// Samples of the new index whose version changed.
    pub changed: Vec<SampleId>,
}

impl Difference {
    /// Compares with an earlier manifest, which was read with its facts. Content facts of unchanged samples are copied
    /// into `facts`.
    pub fn since(earlier: &Manifest, index: &FolderIndex, facts: &mut [Facts]) -> Self {
        let before: Vec<u128> = hashes(&earlier.index);
        let mut difference = Self::default();
        let mut is_met = vec![false; before.len()];
        let mut found: Vec<(u64, usize)> = Vec::new();
        let mut missed = Vec::new();
        // Both are mostly in the same order, so hardly any sample needs a lookup.
        let mut next = 0;
        for (sample, hash) in (0..).zip(hashes(index)) {
            let ahead = before.iter().skip(next).take(LOOK_AHEAD).position(|known| *known == hash);
            match ahead {
                Some(ahead) => {
                    found.push((sample, next + ahead));
                    is_met[next + ahead] = true;
                    next += ahead + 1;
                }
                None => missed.push((sample, hash)),
            }
        }
        let rest: HashMap<u128, usize> = before
            .iter()
            .zip(0..)
            .filter(|(_, number)| !is_met[*number])
            .map(|(hash, number)| (*hash, number))
            .collect();
        for (sample, hash) in missed {
            match rest.get(&hash) {
                Some(&number) => {
                    found.push((sample, number));
                    is_met[number] = true;
                }
                None => difference.added.push(SampleId(sample)),
            }
        }
        for (sample, number) in found {
            let (facts, before) = (&mut facts[sample as usize], &earlier.facts[number]);
            match facts.version.is_same(&before.version) {
                true => facts.content.clone_from(&before.content),
                false => difference.changed.push(SampleId(sample)),
            }
        }
        difference.changed.sort_unstable();
        let gone = is_met.iter().enumerate().filter(|(_, is_met)| !**is_met);
        difference.deleted = gone.map(|(sample, _)| SampleId(sample as u64)).collect();
        difference
    }

    /// Whether nothing is different.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.deleted.is_empty() && self.changed.is_empty()
    }
}

/// A hash of each path: the paths themselves would take too much memory, and a collision is practically impossible.
fn hashes(index: &FolderIndex) -> Vec<u128> {
    let (mut path, mut hashes) = (Vec::new(), Vec::with_capacity(index.len() as usize));
    for (directory, _, names) in index.runs() {
        for name in names {
            path.clear();
            push_relative(&mut path, directory, name);
            hashes.push(xxh3_128(&path));
        }
    }
    hashes
}
