//! Selects names to mirror with shell-like patterns.
//!
//! A pattern without a slash matches a file's or a directory's own name at any depth; a pattern with a slash matches
//! the whole name below the root. `*` and `?` match anything but a slash, `**` also slashes, `[a-z]` and `[!a-z]` one
//! character, `{a,b}` either alternative. A pattern that matches a directory matches everything in it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_core::{Error, Result};

/// Selects everything, or the names that match `include`, except those that match `exclude`.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

impl Filter {
    /// Parses patterns.
    pub fn new(include: &[String], exclude: &[String]) -> Result<Self> {
        let parse = |name: &str, texts: &[String]| -> Result<Vec<Pattern>> {
            let mut patterns = Vec::new();
            for text in texts {
                patterns.extend(Pattern::parse(text).map_err(|why| Error::config(format!("{name}: {why}")))?);
            }
            Ok(patterns)
        };
        Ok(Self { include: parse("--include", include)?, exclude: parse("--exclude", exclude)? })
    }

    /// Whether a file is to be mirrored.
    pub fn takes(&self, name: &Path) -> bool {
        (self.include.is_empty() || self.include.iter().any(|pattern| pattern.is_of(name)))
            && !self.exclude.iter().any(|pattern| pattern.is_of(name))
    }

    /// Whether a directory may contain files to mirror.
    pub fn enters(&self, directory: &Path) -> bool {
        !self.exclude.iter().any(|pattern| pattern.is_of(directory))
    }
}

#[derive(Clone, Debug)]
struct Pattern {
    text: Vec<u8>,
    has_slash: bool,
}

impl Pattern {
    /// One pattern for each combination of the alternatives in braces.
    fn parse(text: &str) -> std::result::Result<Vec<Self>, String> {
        let trimmed = text.trim_start_matches('/').trim_end_matches('/');
        if trimmed.is_empty() {
            return Err(format!("expected a pattern like \"*.jpg\", got {text:?}"));
        }
        let has_slash = text.trim_end_matches('/').contains('/');
        let mut patterns = Vec::new();
        for text in choices(trimmed)? {
            if text.bytes().enumerate().any(|(at, byte)| byte == b'[' && class(&text.as_bytes()[at..], 0).is_none()) {
                return Err(format!("expected a \"]\" for every \"[\", got {trimmed:?}"));
            }
            patterns.push(Self { text: text.into_bytes(), has_slash });
        }
        Ok(patterns)
    }

    /// Whether it matches a name, or a directory that the name is in.
    fn is_of(&self, name: &Path) -> bool {
        if self.has_slash {
            return name.ancestors().any(|part| matches(&self.text, part.as_os_str().as_bytes()));
        }
        name.iter().any(|part| matches(&self.text, part.as_bytes()))
    }
}

/// Expands `a{b,c}` to `ab` and `ac`.
fn choices(text: &str) -> std::result::Result<Vec<String>, String> {
    let Some((before, rest)) = text.split_once('{') else { return Ok(vec![text.to_owned()]) };
    let Some((inner, after)) = rest.split_once('}') else {
        return Err(format!("expected a \"}}\" for every \"{{\", got {text:?}"));
    };
    let tails = choices(after)?;
    let all = inner.split(',').flat_map(|choice| tails.iter().map(move |tail| format!("{before}{choice}{tail}")));
    Ok(all.collect())
}

/// Whether a byte is in the class that a pattern begins with, and the rest of the pattern.
fn class(pattern: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let inner = pattern.strip_prefix(b"[")?;
    let (is_negated, inner) = match inner.first()? {
        b'!' | b'^' => (true, &inner[1..]),
        _ => (false, inner),
    };
    // A leading bracket is one of the characters.
    let end = 1 + inner.iter().skip(1).position(|&byte| byte == b']')?;
    let (letters, mut is_in, mut at) = (&inner[..end], false, 0);
    while at < letters.len() {
        let is_range = letters.len() > at + 2 && letters[at + 1] == b'-';
        let last = if is_range { letters[at + 2] } else { letters[at] };
        is_in |= (letters[at]..=last).contains(&byte);
        at += if is_range { 3 } else { 1 };
    }
    Some((is_in != is_negated, &inner[end + 1..]))
}

/// Whether a pattern matches the whole text. Keeps the set of positions in the text where the pattern so far may end,
/// so that the time is at most the pattern's length times the text's.
fn matches(mut pattern: &[u8], text: &[u8]) -> bool {
    let mut places = vec![false; text.len() + 1];
    places[0] = true;
    let is_slash = |at: usize| text[at] == b'/';
    while let Some(&first) = pattern.first() {
        let (mut next, mut is_open) = (vec![false; places.len()], false);
        if let Some(rest) = pattern.strip_prefix(b"**/") {
            // `**/` also matches no directory at all.
            for at in 0..places.len() {
                next[at] = places[at] || is_open && is_slash(at - 1);
                is_open |= places[at];
            }
            pattern = rest;
        } else if first == b'*' {
            let crosses = pattern.starts_with(b"**");
            for at in 0..places.len() {
                is_open = places[at] || is_open && (crosses || !is_slash(at - 1));
                next[at] = is_open;
            }
            pattern = &pattern[if crosses { 2 } else { 1 }..];
        } else {
            let mut rest = &pattern[1..];
            for at in (0..text.len()).filter(|&at| places[at]) {
                next[at + 1] = match first {
                    b'?' => !is_slash(at),
                    b'[' => !is_slash(at) && class(pattern, text[at]).is_some_and(|(is_in, _)| is_in),
                    byte => text[at] == byte,
                };
            }
            if first == b'[' {
                rest = class(pattern, 0).map_or(rest, |(_, rest)| rest);
            }
            pattern = rest;
        }
        places = next;
    }
    places[text.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(include: &[&str], exclude: &[&str], name: &str) -> bool {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        Filter::new(&texts(include), &texts(exclude)).unwrap().takes(Path::new(name))
    }

    #[test]
    fn patterns_are_those_of_shells() {
        for (pattern, name, is_of) in [
            ("*.jpg", "cat/1.jpg", true),
            ("*.jpg", "cat/1.jpg.txt", false),
            ("*.{jpg,png}", "a/b/c.png", true),
            ("*.{jpg,png}", "a/b/c.gif", false),
            ("cat/*.jpg", "cat/1.jpg", true),
            ("cat/*.jpg", "cat/deep/1.jpg", false),
            ("cat/**/*.jpg", "cat/1.jpg", true),
            ("cat/**/*.jpg", "cat/a/b/1.jpg", true),
            ("cat/**", "cat/a/b", true),
            ("cat", "cat/a/b", true),
            ("cat", "dog/cat/b", true),
            ("/cat", "cat/b", true),
            ("/cat", "dog/cat", false),
            ("cat/", "cat/b", true),
            ("dog/cat", "dog/cat/b", true),
            ("?.jpg", "1.jpg", true),
            ("?.jpg", "12.jpg", false),
            ("[0-3]*", "2.jpg", true),
            ("[!0-3]*", "2.jpg", false),
            ("[]a]x", "]x", true),
            ("a?b", "a/b", false),
            ("**", "a/b/c", true),
            ("\u{fc}*", "\u{fc}x", true),
        ] {
            assert_eq!(takes(&[pattern], &[], name), is_of, "{pattern} of {name}");
            assert_eq!(takes(&[], &[pattern], name), !is_of, "but for {pattern}: {name}");
        }
    }

    #[test]
    fn what_is_excluded_goes_before_what_is_included() {
        assert!(takes(&["*.jpg"], &["tmp"], "cat/1.jpg"));
        assert!(!takes(&["*.jpg"], &["tmp"], "tmp/1.jpg"));
        assert!(takes(&[], &[], "anything"));
        let filter = Filter::new(&["*.jpg".to_owned()], &["tmp".to_owned()]).unwrap();
        assert!(filter.enters(Path::new("cat")) && !filter.enters(Path::new("tmp")));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in ["", "/", "[a", "{a,b", "x[!"] {
            let error = Filter::new(&[text.to_owned()], &[]).unwrap_err();
            assert!(error.message().starts_with("--include: expected"), "{error}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let (name, pattern) = ("a".repeat(200), format!("{}b", "*a".repeat(60)));
        assert!(!takes(&[&pattern], &[], &name) && takes(&[&pattern], &[], &format!("{name}b")));
    }
}
