//! What samples are called in shards: keys by the paths of files, such that every reader of WebDataset finds the same key and field.
//!
//! Readers cut names at the first dot of their last component, leave out those that begin with a component like `__meta__`, and some
//! unpack. So what a file's name may not have is written as `%2E`: dots, percent signs, backslashes, control characters, bytes that
//! are no UTF-8, and components that lead elsewhere. No two names become one.

use std::fmt::Write as _;

/// Longer names, and longer fields, are not read as samples.
pub(crate) const MAX_NAME_BYTES: usize = 4096;
/// The field of a file whose name has no usual ending.
pub(crate) const BARE_FIELD: &str = "bin";
/// Endings are shorter, and of letters and digits; anything else is a part of the name.
const MAX_ENDING_BYTES: usize = 16;
/// Endings of shards whose records have no keys; the first that fits is cut off.
const SHARD_ENDINGS: [&str; 7] = [".mds", ".bin", ".tfrecord", ".tfrecords", ".tfrec", ".arrow", ".parquet"];
/// Numbers of records have this many, so that they are sorted as the records are.
const MIN_DIGITS: usize = 6;
/// Stands in place of nothing. Behind the percent sign of an escape are two digits.
const NOTHING: &str = "%";
/// Parts a key from what tells it from another one. No escape begins so.
const APART: &str = "%%";

/// A file's path below the root, in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileName<'a> {
    /// With its last slash.
    directory: &'a [u8],
    stem: &'a [u8],
    /// Without its dot; empty where there is none.
    ending: &'a [u8],
}

impl<'a> FileName<'a> {
    pub(crate) fn new(path: &'a [u8]) -> Self {
        let last = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let (directory, name) = path.split_at(last);
        let dot = name.iter().rposition(|byte| *byte == b'.');
        let is_ending = |ending: &[u8]| {
            (1..=MAX_ENDING_BYTES).contains(&ending.len())
                && ending.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
        };
        match dot {
            Some(dot) if is_ending(&name[dot + 1..]) => {
                Self { directory, stem: &name[..dot], ending: &name[dot + 1..] }
            }
            _ => Self { directory, stem: name, ending: &[] },
        }
    }

    /// The name of its field.
    pub(crate) fn field(&self) -> String {
        match std::str::from_utf8(self.ending) {
            Ok(ending) if !ending.is_empty() => ending.to_ascii_lowercase(),
            _ => BARE_FIELD.to_owned(),
        }
    }

    /// Its key; one that is `long` has the ending in it, because other files differ in that alone.
    pub(crate) fn key(&self, is_long: bool) -> String {
        let mut key = String::new();
        if let Some(directories) = self.directory.strip_suffix(b"/") {
            for component in directories.split(|byte| *byte == b'/') {
                escape(component, false, &mut key);
                key.push('/');
            }
        }
        escape(self.stem, true, &mut key);
        if is_long {
            key.push_str(APART);
            escape(self.ending, true, &mut key);
        }
        if key.starts_with("__") {
            key.replace_range(..1, "%5F");
        }
        key
    }
}

/// Writes one component of a key.
fn escape(component: &[u8], is_last: bool, key: &mut String) {
    if component.is_empty() {
        key.push_str(NOTHING);
    }
    let leads_elsewhere = matches!(component, b"." | b"..");
    // Writing to a string does not fail.
    let byte = |byte: u8, key: &mut String| _ = write!(key, "%{byte:02X}");
    for chunk in component.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '.' if is_last || leads_elsewhere => byte(b'.', key),
                '%' | '\\' | '\0'..='\x1F' | '\x7F' => byte(letter as u8, key),
                _ => key.push(letter),
            }
        }
        chunk.invalid().iter().for_each(|invalid| byte(*invalid, key));
    }
}

/// The key of a sample in another archive: as it is, but for components that lead elsewhere. `apart` tells it from the same key in
/// another archive.
pub(crate) fn kept_key(key: &str, apart: Option<&str>) -> String {
    let leads = |separators: &[char]| key.split(separators).any(|part| part.is_empty() || matches!(part, "." | ".."));
    let mut made = match (leads(&['/']), key.contains('\\') && leads(&['/', '\\'])) {
        (false, false) => key.to_owned(),
        (_, has_backslashes) => {
            let component = |part: &str| match part {
                "" => NOTHING.to_owned(),
                "." | ".." => part.replace('.', "%2E"),
                part if has_backslashes => part.replace('\\', "%5C"),
                part => part.to_owned(),
            };
            key.split('/').map(component).collect::<Vec<_>>().join("/")
        }
    };
    if let Some(apart) = apart {
        made.push_str(APART);
        escape(apart.as_bytes(), true, &mut made);
    }
    made
}

/// The key of a record in a shard that has no keys: the shard's path below the root, without its ending, and the record's number, with
/// as many digits as the last one's has. One that is `long` has the ending in it, because other shards differ in that alone.
pub(crate) fn record_key(shard: &str, (number, count): (u64, u64), is_long: bool) -> String {
    let ending = SHARD_ENDINGS.iter().find(|ending| shard.len() > ending.len() && shard.ends_with(*ending));
    let ending = ending.copied().unwrap_or_default();
    let mut key = String::new();
    for (at, component) in shard[..shard.len() - ending.len()].split('/').enumerate() {
        if at > 0 {
            key.push('/');
        }
        escape(component.as_bytes(), false, &mut key);
    }
    if is_long {
        key.push_str(APART);
        key.push_str(ending.trim_start_matches('.'));
    }
    if key.starts_with("__") {
        key.replace_range(..1, "%5F");
    }
    let digits = count.saturating_sub(1).to_string().len().max(MIN_DIGITS);
    // Writing to a string does not fail.
    _ = write!(key, "/{number:0digits$}");
    key
}

/// A column's name as the beginning of a field's, in lower case, as readers have it. What ends a name, or is cut off where fields are
/// asked for, is escaped.
pub(crate) fn field_name(column: &str) -> String {
    let mut name = String::new();
    for letter in column.chars() {
        let is_first = name.is_empty();
        match letter {
            '/' | '%' | '\\' | ';' | ',' | '\0'..='\x1F' | '\x7F' => _ = write!(name, "%{:02x}", u32::from(letter)),
            '.' if is_first => name.push_str("%2e"),
            _ if is_first && letter.is_whitespace() => {
                letter.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| _ = write!(name, "%{byte:02x}"));
            }
            _ => name.extend(letter.to_lowercase()),
        }
    }
    if name.is_empty() { NOTHING.to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn key(path: &str) -> (String, String) {
        let name = FileName::new(path.as_bytes());
        (name.key(false), name.field())
    }

    #[test]
    fn keys_have_no_dots_where_readers_cut_them() {
        for (path, expected, field) in [
            ("n01440764/ILSVRC_0001.JPEG", "n01440764/ILSVRC_0001", "jpeg"),
            ("a/x.y.jpg", "a/x%2Ey", "jpg"),
            ("v1.2/x.jpg", "v1.2/x", "jpg"),
            ("a/100%.jpg", "a/100%25", "jpg"),
            ("a/.jpg", "a/%", "jpg"),
            ("README", "README", "bin"),
            ("a/x.", "a/x%2E", "bin"),
            ("a/x.what is this", "a/x%2Ewhat is this", "bin"),
            ("a/x.tar.gz", "a/x%2Etar", "gz"),
            ("__init__/x.jpg", "%5F_init__/x", "jpg"),
            ("..a/..b.jpg", "..a/%2E%2Eb", "jpg"),
            ("a\\..\\b/c\n.jpg", "a%5C..%5Cb/c%0A", "jpg"),
            ("../../x.jpg", "%2E%2E/%2E%2E/x", "jpg"),
            ("/etc/x.jpg", "%/etc/x", "jpg"),
            ("Bild_\u{fc}/\u{732b}.png", "Bild_\u{fc}/\u{732b}", "png"),
        ] {
            assert_eq!(key(path), (expected.to_owned(), field.to_owned()), "{path}");
        }
        assert_eq!(FileName::new(b"a/\xFF\xFE.jpg").key(false), "a/%FF%FE");
        assert_eq!(FileName::new(b"a/x.jpg").key(true), "a/x%%jpg");
    }

    #[test]
    fn no_two_files_have_one_key() {
        let letters = ["a", ".", "%", "%2E", "\\", "2E", "jpg", "__", "_"];
        let mut names = vec![String::new()];
        for _ in 0..4 {
            let longer =
                names.iter().flat_map(|name| letters.map(|letter| format!("{name}{letter}"))).collect::<Vec<_>>();
            names.extend(longer);
        }
        names.retain(|name| !name.is_empty() && name != "." && name != "..");
        let names: HashSet<_> = names.into_iter().collect();
        for name in &names {
            let key = FileName::new(name.as_bytes()).key(false);
            assert!(!key.contains('.') && !key.is_empty() && !key.contains('\\'), "{key}");
        }
        let short: HashSet<_> = names
            .iter()
            .map(|name| {
                let FileName { directory, stem, .. } = FileName::new(name.as_bytes());
                (directory, stem)
            })
            .collect();
        let keys: HashSet<_> = names.iter().map(|name| FileName::new(name.as_bytes()).key(false)).collect();
        assert_eq!(keys.len(), short.len());
        let long: HashSet<_> = names.iter().map(|name| FileName::new(name.as_bytes()).key(true)).collect();
        assert_eq!(long.len(), names.len());
        assert!(long.is_disjoint(&keys));
    }

    #[test]
    fn records_go_by_their_shard_and_their_number() {
        for (shard, of, is_long, expected) in [
            ("shard.00012.mds", (417, 418), false, "shard.00012/000417"),
            ("train/chunk-0-1.bin", (0, 1), false, "train/chunk-0-1/000000"),
            ("train.tfrecord-00000-of-00002", (3, 9), false, "train.tfrecord-00000-of-00002/000003"),
            ("x.tfrec", (1, 2), true, "x%%tfrec/000001"),
            ("x.arrow", (99, 10_000_001), false, "x/00000099"),
            (".mds", (1, 2), false, ".mds/000001"),
            ("__a\\b.parquet", (1, 2), false, "%5F_a%5Cb/000001"),
            ("../x.parquet", (1, 2), false, "%2E%2E/x/000001"),
        ] {
            assert_eq!(record_key(shard, of, is_long), expected);
            assert!(!expected.rsplit('/').next().unwrap().contains('.'));
        }
    }

    #[test]
    fn columns_keep_what_readers_of_fields_keep() {
        for (column, expected) in [
            ("image", "image"),
            ("meta.source", "meta.source"),
            ("Image/Encoded", "image%2fencoded"),
            ("GR\u{dc}N", "gr\u{fc}n"),
            (".x", "%2ex"),
            (" x y", "%20x y"),
            ("a;b%,\n", "a%3bb%25%2c%0a"),
            ("", "%"),
        ] {
            assert_eq!(field_name(column), expected);
        }
    }

    #[test]
    fn keys_of_archives_stay_unless_they_lead_elsewhere() {
        for (key, expected) in [
            ("a/00042", "a/00042"),
            ("a%2Eb", "a%2Eb"),
            ("v1.2/x", "v1.2/x"),
            ("c\\d", "c\\d"),
            ("../../x", "%2E%2E/%2E%2E/x"),
            ("./x", "%2E/x"),
            ("/x", "%/x"),
            ("a//x", "a/%/x"),
            ("..\\x", "..%5Cx"),
            ("a/..\\..\\x", "a/..%5C..%5Cx"),
        ] {
            assert_eq!(kept_key(key, None), expected);
        }
        assert_eq!(kept_key("a/1", Some("train-0.tar")), "a/1%%train-0%2Etar");
    }
}
