//! Hints in the words of no front end. A hint names a setting in backticks: `retries`, `allow_empty=true` or
//! `storage_options.profile=…`. Each front end has a [`Wording`], which gives a setting the form that its users type;
//! other words in backticks (`dmesg`) are the same everywhere.

/// Every setting that a hint may name. A wording has a form for each of them.
pub const SETTINGS: &[&str] = &[
    "allow_empty",
    "cache",
    "deadline_seconds",
    "decode",
    "documents",
    "dry_run",
    "dtype",
    "encoding",
    "eod",
    "errors",
    "extensions",
    "index",
    "io_threads",
    "is_valid_file",
    "isolate",
    "ledger",
    "loader",
    "manifest",
    "max_bytes",
    "max_delete",
    "max_failures",
    "max_lost_threads",
    "max_sample_bytes",
    "max_size",
    "memory_budget",
    "mmap",
    "num_workers",
    "pad_if_needed",
    "prefetch_factor",
    "ragged",
    "retries",
    "root",
    "storage_options",
    "vocab_size",
];

/// A setting as a hint names it: `name`, `name=value` or `name.key=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting<'a> {
    /// One of [`SETTINGS`].
    pub name: &'a str,
    /// The entry that is meant, of a setting that has several: `profile` of `storage_options`.
    pub key: Option<&'a str>,
    /// The value to give it: `true`, `false`, text in double quotes, or `…` where the user knows it.
    pub value: Option<&'a str>,
}

/// How a front end writes a setting.
pub type Wording = fn(Setting<'_>) -> String;

impl<'a> Setting<'a> {
    /// The setting that a word in backticks names, if it names one.
    fn parse(word: &'a str) -> Option<Self> {
        let (named, value) = word.split_once('=').map_or((word, None), |(named, value)| (named, Some(value)));
        let (name, key) = named.split_once('.').map_or((named, None), |(name, key)| (name, Some(key)));
        SETTINGS.contains(&name).then_some(Self { name, key, value })
    }
}

/// The wording of no front end, in which hints are written.
pub fn neutral(Setting { name, key, value }: Setting<'_>) -> String {
    let key = key.map_or(String::new(), |key| format!(".{key}"));
    let value = value.map_or(String::new(), |value| format!("={value}"));
    format!("`{name}{key}{value}`")
}

/// A hint with its settings in the words of a front end. One that is worded already stays as it is.
pub fn worded(hint: &str, wording: Wording) -> String {
    let mut pieces = hint.split('`');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    while let Some(word) = pieces.next() {
        match (Setting::parse(word), pieces.next()) {
            (Some(setting), Some(after)) => text += &(wording(setting) + after),
            (None, Some(after)) => text += &format!("`{word}`{after}"),
            (_, None) => text += &format!("`{word}"),
        }
    }
    text
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test reads the sources of the crates")]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    /// Words in backticks that are no settings.
    const OTHER_WORDS: &[&str] = &["class", "convmv", "dmesg", "lslocks", "retrans", "timeo"];
    /// What only Python's arguments look like.
    const PYTHON: &[&str] = &["=True", "=False", "=None", "=…", "storage_options="];

    #[test]
    fn settings_are_worded_and_everything_else_stays() {
        let shout = |setting: Setting<'_>| neutral(setting).to_uppercase();
        for (hint, expected) in [
            ("look at `dmesg`; raise `retries` if so", "look at `dmesg`; raise `RETRIES` if so"),
            ("`root=\"/a b\"`, `storage_options.anon=true`", "`ROOT=\"/A B\"`, `STORAGE_OPTIONS.ANON=TRUE`"),
            ("retries, or a ` alone, or `retries", "retries, or a ` alone, or `retries"),
            ("", ""),
        ] {
            assert_eq!(worded(hint, shout), expected);
            assert_eq!(worded(hint, neutral), hint);
        }
    }

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
    }

    /// Backticks and Python's syntax stand in texts only, so lines need not be parsed.
    #[test]
    fn texts_of_the_core_name_known_settings_and_have_no_pythons_syntax() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let cores = ["forebay-core", "forebay-store", "forebay-format", "forebay-decode", "forebay", "forebay-mirror"];
        let mut seen = std::collections::BTreeSet::new();
        for path in cores.iter().flat_map(|name| sources(&crates.join(name).join("src"))) {
            // Transforms have the names of torchvision in every front end.
            let is_left_out = ["tests", "testing", "ops/table.rs", "ops/tensors.rs"]
                .iter()
                .any(|part| path.to_string_lossy().contains(part));
            if is_left_out || path.extension().is_none_or(|ending| ending != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
                let pieces: Vec<_> = line.split('`').collect();
                for (at, piece) in pieces.iter().enumerate() {
                    let is_word = at % 2 == 1 && at + 1 < pieces.len();
                    let name = piece.split(['=', '.']).next().unwrap();
                    let is_name =
                        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
                    if is_word && is_name && !OTHER_WORDS.contains(&name) {
                        assert!(SETTINGS.contains(&name), "{path:?} names an unknown setting: {line}");
                        assert!(!piece.contains("True") && !piece.contains("False"), "{path:?}: {line}");
                        seen.insert(name.to_owned());
                    }
                    let python =
                        PYTHON.iter().find(|syntax| !is_word && piece.contains(**syntax) && line.contains('"'));
                    assert!(python.is_none(), "{path:?} speaks of {python:?}: {line}");
                }
            }
        }
        let never: Vec<_> = SETTINGS.iter().filter(|name| !seen.contains(**name)).collect();
        assert!(never.is_empty(), "no hint names {never:?}");
    }
}
