//! Splits: the samples of a dataset dealt to parts, the same way every time.

use std::path::{Path, PathBuf};

use forebay_core::{Epoch, Error, Problems, Result, SampleId, Shuffle, hash_bytes, hash_words};

use crate::source::Dataset;

const SPLIT: u64 = 0x0073_706C_6974; // "split"
/// How far from 1 fractions may sum up to.
const TOLERANCE: f64 = 1e-6;

/// What a sample's part depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitBy {
    /// Its name below the root. It keeps its part when other samples are added or removed, and when the root moves.
    Name,
    /// Its place in the dataset: parts are exactly as large as the fractions say.
    Index,
}

/// The samples of each part, in the dataset's order. `strata` is a number for each sample: those of one number are divided by
/// themselves, exactly as the fractions say. `roots` are those that names begin with.
pub fn split(
    dataset: &dyn Dataset,
    roots: &[PathBuf],
    fractions: &[f64],
    seed: u64,
    by: SplitBy,
    strata: Option<&[u32]>,
) -> Result<Vec<Vec<u64>>> {
    let ends = ends(fractions)?;
    let len = dataset.len();
    let part_of_fraction = |place: f64| ends.partition_point(|end| *end <= place).min(ends.len() - 1);
    let mut parts = vec![Vec::new(); fractions.len()];
    match (by, strata) {
        (SplitBy::Name, None) => {
            for sample in 0..len {
                let key = name_key(dataset, roots, seed, sample);
                parts[part_of_fraction(key as f64 / 2f64.powi(64))].push(sample);
            }
        }
        _ => {
            let shuffle = Shuffle::new(len.max(1), hash_words(&[SPLIT, seed]), Epoch(0));
            let key = |sample| match by {
                SplitBy::Name => name_key(dataset, roots, seed, sample),
                SplitBy::Index => shuffle.at(sample),
            };
            let stratum = |sample: u64| strata.map_or(0, |strata| strata[sample as usize]);
            let mut keyed: Vec<_> = (0..len).map(|sample| (stratum(sample), key(sample), sample)).collect();
            keyed.sort_unstable();
            for group in keyed.chunk_by(|one, other| one.0 == other.0) {
                // Where each part ends among them: rounded, so that all of them together are all samples.
                let ends: Vec<_> = ends.iter().map(|end| (end * group.len() as f64).round() as usize).collect();
                for (place, (_, _, sample)) in group.iter().enumerate() {
                    parts[ends.partition_point(|end| *end <= place).min(ends.len() - 1)].push(*sample);
                }
            }
            parts.iter_mut().for_each(|part| part.sort_unstable());
        }
    }
    match parts.iter().position(Vec::is_empty) {
        None => Ok(parts),
        Some(part) => {
            let message = format!("split: expected samples in every part, got none of {len} in part {part}");
            Err(Error::config(message).with_hint("a split by index divides a small dataset exactly"))
        }
    }
}

/// Where each part ends, as a fraction of all.
fn ends(fractions: &[f64]) -> Result<Vec<f64>> {
    let mut problems = Problems::default();
    problems.expect(fractions.len() > 1, || format!("fractions: expected at least two parts, got {}", fractions.len()));
    for fraction in fractions {
        problems.expect(fraction.is_finite() && *fraction > 0.0, || {
            format!("fractions: expected numbers above 0, got {fraction}")
        });
    }
    let sum: f64 = fractions.iter().sum();
    problems.expect((sum - 1.0).abs() <= TOLERANCE, || format!("fractions: expected a sum of 1, got {sum}"));
    problems.into_result()?;
    let mut end = 0.0;
    let ends = fractions.iter().map(|fraction| {
        end += fraction;
        end / sum
    });
    Ok(ends.collect())
}

fn name_key(dataset: &dyn Dataset, roots: &[PathBuf], seed: u64, sample: u64) -> u64 {
    let name = dataset.path(SampleId(sample));
    let below = roots.iter().filter_map(|root| name.strip_prefix(root).ok());
    let name = below.min_by_key(|below| below.as_os_str().len()).unwrap_or(Path::new(&name));
    hash_words(&[SPLIT, seed, hash_bytes(name.as_os_str().as_encoded_bytes())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::{DatasetIdentity, Field, Locator};

    /// Names with gaps.
    struct Names(&'static str, Vec<u64>);

    impl Dataset for Names {
        fn len(&self) -> u64 {
            self.1.len() as u64
        }
        fn locate(&self, sample: SampleId, _field: Field, locator: &mut Locator) {
            *locator = Locator::whole(Path::new(self.0).join(self.1[sample.0 as usize].to_string()));
        }
        fn identity(&self) -> DatasetIdentity {
            unreachable!("nothing here resumes")
        }
    }

    fn names(dataset: &Names, parts: &[Vec<u64>]) -> Vec<Vec<u64>> {
        parts.iter().map(|part| part.iter().map(|sample| dataset.1[*sample as usize]).collect()).collect()
    }

    fn by_name(dataset: &Names, seed: u64) -> Vec<Vec<u64>> {
        let parts = split(dataset, &[dataset.0.into()], &[0.8, 0.2], seed, SplitBy::Name, None).unwrap();
        names(dataset, &parts)
    }

    #[test]
    fn a_sample_keeps_its_part_when_others_come_and_the_root_moves() {
        let all = by_name(&Names("/data", (0..1000).collect()), 3);
        assert!((160..240).contains(&all[1].len()), "{}", all[1].len());
        let fewer = by_name(&Names("/moved/to", (0..1000).step_by(3).collect()), 3);
        for (all, fewer) in all.iter().zip(&fewer) {
            assert!(fewer.iter().all(|name| all.contains(name)));
        }
        assert_ne!(all, by_name(&Names("/data", (0..1000).collect()), 4));
    }

    #[test]
    fn by_index_and_by_stratum_parts_are_exact() {
        let dataset = Names("/data", (0..100).collect());
        let sizes = |parts: &[Vec<u64>]| parts.iter().map(Vec::len).collect::<Vec<_>>();
        let parts = split(&dataset, &[], &[0.7, 0.2, 0.1], 1, SplitBy::Index, None).unwrap();
        assert_eq!(sizes(&parts), [70, 20, 10]);
        let mut all = parts.concat();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        // 90 of one kind and 10 of the other.
        let strata: Vec<_> = (0..100).map(|sample| u32::from(sample % 10 == 0)).collect();
        for by in [SplitBy::Index, SplitBy::Name] {
            let parts = split(&dataset, &[], &[0.8, 0.2], 1, by, Some(&strata)).unwrap();
            let rare: Vec<_> =
                parts.iter().map(|part| part.iter().filter(|sample| *sample % 10 == 0).count()).collect();
            assert_eq!((sizes(&parts), rare), (vec![80, 20], vec![8, 2]));
        }
    }

    #[test]
    fn golden_splits_never_change() {
        let dataset = Names("/data", (0..12).collect());
        assert_eq!(by_name(&dataset, 0)[1], [1, 7, 11]);
        let parts = split(&dataset, &[], &[0.75, 0.25], 0, SplitBy::Index, None).unwrap();
        assert_eq!(parts[1], [1, 7, 8]);
    }

    #[test]
    fn wrong_fractions_are_refused() {
        let dataset = Names("/data", (0..3).collect());
        for (fractions, message) in [
            (&[1.0][..], "fractions: expected at least two parts, got 1"),
            (&[0.5, 0.6], "fractions: expected a sum of 1, got 1.1"),
            (&[1.5, -0.5], "fractions: expected numbers above 0, got -0.5"),
            (&[0.5, f64::NAN], "got NaN"),
            (&[0.99, 0.01], "expected samples in every part, got none of 3 in part 1"),
        ] {
            let error = split(&dataset, &[], fractions, 0, SplitBy::Index, None).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
