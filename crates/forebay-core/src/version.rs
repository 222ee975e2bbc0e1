//! Which version of an object it is: what is known of it beside its name, and moves when it is written to.

use crate::hash_words;

const SECOND_NS: i64 = 1_000_000_000;

/// What a listing, an examination or a manifest says of an object. What is not known is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Its length.
    pub size_bytes: Option<u64>,
    /// When it was last changed, in nanoseconds since 1970.
    pub mtime_ns: Option<i64>,
    /// What an object store calls this version, without quotes.
    pub etag: Option<Box<str>>,
}

impl Version {
    /// Whether it is surely the same as another one. Where both have an etag, it decides and not the time: what is
    /// written again with the same bytes is the same.
    pub fn is_same(&self, other: &Self) -> bool {
        let is_same = match (&self.etag, &other.etag) {
            (Some(own), Some(other)) => own == other,
            _ => self.mtime_ns.is_some() && self.mtime_ns == other.mtime_ns,
        };
        is_same && self.size_bytes.is_some() && self.size_bytes == other.size_bytes
    }
}

/// An etag as all sources of it have it: some of them quote it, and some mark it as weak.
pub fn plain_etag(etag: &str) -> &str {
    let etag = etag.strip_prefix("W/").unwrap_or(etag);
    etag.strip_prefix('"').and_then(|etag| etag.strip_suffix('"')).unwrap_or(etag)
}

/// Time and etag in one number. Servers tell the time of a change in seconds; what stands in for the rest is made of the
/// etag, so that two versions of one second are two.
pub fn stamp_ns(mtime_ns: i64, etag: Option<&str>) -> i64 {
    let Some(etag) = etag.map(plain_etag).filter(|etag| !etag.is_empty()) else { return mtime_ns };
    let words: Vec<_> = etag.bytes().map(u64::from).collect();
    // Never 0, which stands for "no etag".
    let fraction = (hash_words(&words) % (SECOND_NS as u64 - 1)) as i64 + 1;
    mtime_ns.div_euclid(SECOND_NS).saturating_mul(SECOND_NS).saturating_add(fraction)
}

/// What an object has to be, as far as that was written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Its length.
    pub size_bytes: Option<u64>,
    /// Its [`stamp_ns`].
    pub stamp_ns: Option<i64>,
    /// The stamp was made of an etag, which decides; its seconds are only for those that have none.
    pub by_etag: bool,
}

impl Expected {
    /// In what an object is another one, in words; `None` if it is the one.
    pub fn differs(&self, size_bytes: u64, stamp_ns: i64) -> Option<String> {
        if let Some(expected) = self.size_bytes.filter(|expected| *expected != size_bytes) {
            return Some(format!("expected {expected} bytes, got {size_bytes}"));
        }
        let expected = self.stamp_ns.filter(|expected| *expected != stamp_ns)?;
        let (seconds, fraction) = (|stamp: i64| stamp.div_euclid(SECOND_NS), |stamp: i64| stamp.rem_euclid(SECOND_NS));
        match (fraction(expected), fraction(stamp_ns)) {
            (expected, got) if self.by_etag && expected != 0 && got != 0 => {
                return (expected != got).then(|| "its etag changed".to_owned());
            }
            // Nothing but the etag was known, and there is none now.
            (_, 0) if self.by_etag && seconds(expected) == 0 => return None,
            // One of the two knows whole seconds only.
            (0, _) | (_, 0) if seconds(expected) == seconds(stamp_ns) => return None,
            _ => {}
        }
        let moved = stamp_ns.saturating_sub(expected) as f64 / SECOND_NS as f64;
        Some(format!("its modification time moved by {moved:.6} s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_are_the_same_however_they_are_quoted() {
        for etag in ["\"0x8D\"", "W/\"0x8D\"", "0x8D"] {
            assert_eq!(plain_etag(etag), "0x8D");
            assert_eq!(stamp_ns(5 * SECOND_NS + 17, Some(etag)), stamp_ns(5 * SECOND_NS, Some("0x8D")));
        }
        assert_ne!(stamp_ns(0, Some("a")), stamp_ns(0, Some("b")));
        assert_eq!([stamp_ns(17, None), stamp_ns(17, Some("\"\""))], [17, 17]);
        assert_eq!(stamp_ns(-1, Some("a")).div_euclid(SECOND_NS), -1, "before 1970");
    }

    #[test]
    fn size_time_and_etag_tell_versions_apart() {
        let version =
            |size, mtime_ns, etag: Option<&str>| Version { size_bytes: size, mtime_ns, etag: etag.map(Box::from) };
        let base = version(Some(1), Some(2), Some("a"));
        assert!(base.is_same(&version(Some(1), Some(99), Some("a"))), "written again with the same bytes");
        assert!(base.is_same(&version(Some(1), Some(2), None)));
        for other in [
            version(Some(2), Some(2), Some("a")),
            version(Some(1), Some(2), Some("b")),
            version(Some(1), Some(3), None),
            version(None, Some(2), Some("a")),
            Version::default(),
        ] {
            assert!(!base.is_same(&other), "{other:?}");
        }
        assert!(!Version::default().is_same(&Version::default()), "nothing is known of either");
    }

    #[test]
    fn what_is_expected_is_compared_as_far_as_it_is_known() {
        let local = Expected { size_bytes: Some(5), stamp_ns: Some(7_000_000_001), by_etag: false };
        assert_eq!(local.differs(5, 7_000_000_001), None);
        assert_eq!(local.differs(6, 7_000_000_001).unwrap(), "expected 5 bytes, got 6");
        assert_eq!(local.differs(5, 8_000_000_001).unwrap(), "its modification time moved by 1.000000 s");
        assert_eq!(local.differs(5, 7_000_000_000), None, "a file system that keeps seconds");
        assert_eq!(Expected::default().differs(9, 9), None);
        let (one, other) = (stamp_ns(7_000_000_000, Some("a")), stamp_ns(9_000_000_000, Some("a")));
        let remote = Expected { size_bytes: None, stamp_ns: Some(one), by_etag: true };
        assert_eq!(remote.differs(1, other), None, "the same bytes, written later");
        assert_eq!(remote.differs(1, stamp_ns(7_000_000_000, Some("b"))).unwrap(), "its etag changed");
        assert_eq!(remote.differs(1, 7_000_000_000), None, "an answer without an etag");
        assert!(remote.differs(1, 9_000_000_000).is_some());
        let timeless = Expected { stamp_ns: Some(stamp_ns(0, Some("a"))), ..remote };
        assert_eq!([timeless.differs(1, other), timeless.differs(1, 9_000_000_000)], [None, None]);
        assert!(timeless.differs(1, stamp_ns(9_000_000_000, Some("b"))).is_some());
    }
}
