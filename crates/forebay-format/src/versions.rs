//! Expected versions of samples, in twelve bytes each: a size and a stamp.

use std::collections::BTreeMap;

use forebay_core::{Expected, Version, stamp_ns};

/// Larger sizes are kept separately; the same value with no separate entry means "unknown".
const LARGE: u32 = u32::MAX;
const UNKNOWN: i64 = i64::MIN;

/// Versions by sample; none at all for folders that were scanned.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    /// Empty if no size is known.
    sizes: Vec<u32>,
    /// Of objects of 4 GiB and more.
    large: BTreeMap<u64, u64>,
    /// Empty if no time is known.
    stamps: Vec<i64>,
    /// Stamps are made from etags.
    by_etag: bool,
}

impl Versions {
    /// Adds the version of sample number `sample`; called for each sample in order.
    pub(crate) fn push(&mut self, sample: u64, version: &Version) {
        if let Some(size) = version.size_bytes {
            let small = u32::try_from(size).ok().filter(|small| *small != LARGE);
            if small.is_none() {
                self.large.insert(sample, size);
            }
            self.sizes.resize(sample as usize, LARGE);
            self.sizes.push(small.unwrap_or(LARGE));
        }
        if version.mtime_ns.is_some() || version.etag.is_some() {
            self.by_etag |= version.etag.is_some();
            self.stamps.resize(sample as usize, UNKNOWN);
            // If there is an etag, the time is ignored.
            self.stamps.push(stamp_ns(version.mtime_ns.unwrap_or_default(), version.etag.as_deref()));
        }
    }

    /// Removes times and etags: those of a copy differ.
    pub(crate) fn forget_stamps(&mut self) {
        (self.stamps, self.by_etag) = (Vec::new(), false);
    }

    /// The expected version of a sample; `None` if no version is known at all.
    pub(crate) fn get(&self, sample: u64) -> Option<Expected> {
        if self.sizes.is_empty() && self.stamps.is_empty() {
            return None;
        }
        let at = sample as usize;
        let size_bytes = match self.sizes.get(at) {
            None => None,
            Some(&LARGE) => self.large.get(&sample).copied(),
            Some(&size) => Some(u64::from(size)),
        };
        let stamp_ns = self.stamps.get(at).copied().filter(|stamp| *stamp != UNKNOWN);
        Some(Expected { size_bytes, stamp_ns, by_etag: self.by_etag })
    }

    pub(crate) fn shrink(&mut self) {
        self.sizes.shrink_to_fit();
        self.stamps.shrink_to_fit();
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let large = self.large.len() * 2 * size_of::<u64>();
        self.sizes.capacity() * size_of::<u32>() + self.stamps.capacity() * size_of::<i64>() + large
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_what_was_added_whatever_its_size() {
        let mut versions = Versions::default();
        assert_eq!(versions.get(0), None);
        let sizes = [None, Some(0), Some(u64::from(LARGE) - 1), Some(u64::from(LARGE)), Some(1 << 40), None, Some(7)];
        for (sample, &size_bytes) in sizes.iter().enumerate() {
            let mtime_ns = (sample % 2 == 1).then_some(sample as i64);
            versions.push(sample as u64, &Version { size_bytes, mtime_ns, etag: None });
        }
        versions.push(sizes.len() as u64, &Version::default());
        for (sample, &size_bytes) in sizes.iter().enumerate() {
            let expected = versions.get(sample as u64).unwrap();
            assert_eq!(expected.size_bytes, size_bytes, "{sample}");
            assert_eq!(expected.stamp_ns, (sample % 2 == 1).then_some(sample as i64), "{sample}");
        }
        assert_eq!(versions.get(sizes.len() as u64), Some(Expected::default()));
        versions.forget_stamps();
        assert_eq!(versions.get(1).unwrap(), Expected { size_bytes: Some(0), ..Expected::default() });
    }
}
