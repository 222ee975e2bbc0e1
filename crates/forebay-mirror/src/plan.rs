//! The plan of a mirror: which files to copy, which to keep, which to remove. Computation only.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use forebay_store::{Age, Held, Stat};

use super::filter::Filter;
use super::walk::{Found, Target};

/// Whether the file at the target is a copy of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Same,
    Other,
    /// The listing does not tell: an extra request is needed.
    Ask,
}

/// Compares size and time. File systems and tools with coarser times truncate them: then only the kept digits are
/// compared.
pub(super) fn judge(stat: Stat, held: Held, is_asked: bool) -> Verdict {
    /// NTFS and CIFS, tools with microseconds and milliseconds, exFAT, many others, and FAT.
    const GRAINS_NS: [i64; 6] = [100, 1_000, 1_000_000, 10_000_000, 1_000_000_000, 2_000_000_000];
    if held.size_bytes != stat.size_bytes {
        return Verdict::Other;
    }
    let is_same = match held.age {
        Age::SourceTime(time) => {
            let is_cut = |grain: &i64| time == stat.mtime_ns.div_euclid(*grain) * grain;
            time == stat.mtime_ns || GRAINS_NS.iter().any(is_cut)
        }
        Age::WrittenAt(time) => time >= stat.mtime_ns,
        Age::Unknown if is_asked => false,
        Age::Unknown => return Verdict::Ask,
    };
    if is_same { Verdict::Same } else { Verdict::Other }
}

/// Files at the target that are not in the source, and directories that may be empty after their removal, innermost
/// first. Files that the filter does not select are kept.
pub(super) fn surplus(found: &[Found], target: &Target, filter: &Filter) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let names: HashSet<&Path> = found.iter().map(|file| &*file.name).collect();
    let is_surplus = |name: &&PathBuf| !names.contains(name.as_path()) && filter.takes(name);
    let mut files: Vec<_> = target.files.keys().chain(&target.others).filter(is_surplus).cloned().collect();
    let wanted: HashSet<&Path> = found.iter().flat_map(|file| file.name.ancestors().skip(1)).collect();
    let mut directories: Vec<_> =
        target.directories.iter().filter(|name| !wanted.contains(name.as_path())).cloned().collect();
    files.sort();
    directories.sort_by(|one, other| other.cmp(one));
    (files, directories)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_and_time_decide() {
        let stat = Stat { size_bytes: 5, mtime_ns: 1_700_000_000_123_456_789 };
        let of = |size_bytes, time| judge(stat, Held { size_bytes, age: Age::SourceTime(time) }, false);
        assert_eq!(of(5, stat.mtime_ns), Verdict::Same);
        assert_eq!(of(5, 1_700_000_000_000_000_000), Verdict::Same, "whole seconds");
        assert_eq!(of(5, 1_700_000_000_123_456_700), Verdict::Same, "a tenth of a microsecond");
        assert_eq!(of(5, 1_700_000_000_123_456_800), Verdict::Other);
        assert_eq!(of(5, 1_700_000_001_000_000_000), Verdict::Other);
        assert_eq!(of(5, stat.mtime_ns + 1), Verdict::Other);
        assert_eq!(of(6, stat.mtime_ns), Verdict::Other);
        let unknown = |size_bytes, is_asked| judge(stat, Held { size_bytes, age: Age::Unknown }, is_asked);
        assert_eq!(
            [unknown(5, false), unknown(5, true), unknown(6, false)],
            [Verdict::Ask, Verdict::Other, Verdict::Other]
        );
        let since = |time| judge(stat, Held { size_bytes: 5, age: Age::WrittenAt(time) }, true);
        assert_eq!([since(stat.mtime_ns - 1), since(stat.mtime_ns)], [Verdict::Other, Verdict::Same]);
    }

    #[test]
    fn what_the_source_has_not_is_surplus_unless_it_is_left_out() {
        let stat = Stat { size_bytes: 1, mtime_ns: 1 };
        let found = [Found { name: "cat/1.jpg".into(), stat }];
        let mut target =
            Target { directories: ["cat", "dog", "dog/deep"].map(PathBuf::from).into(), ..Target::default() };
        for name in ["cat/1.jpg", "cat/2.jpg", "dog/deep/3.jpg", "dog/notes.txt"] {
            target.files.insert(name.into(), Held { size_bytes: 1, age: Age::SourceTime(1) });
        }
        target.others.push("cat/link".into());
        let all = surplus(&found, &target, &Filter::default());
        assert_eq!(all.0, ["cat/2.jpg", "cat/link", "dog/deep/3.jpg", "dog/notes.txt"].map(PathBuf::from));
        assert_eq!(all.1, ["dog/deep", "dog"].map(PathBuf::from));
        let filter = Filter::new(&["*.jpg".to_owned()], &[]).unwrap();
        assert_eq!(surplus(&found, &target, &filter).0, ["cat/2.jpg", "dog/deep/3.jpg"].map(PathBuf::from));
    }
}
