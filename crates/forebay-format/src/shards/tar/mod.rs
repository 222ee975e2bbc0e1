//! Tar archives with samples in them, as WebDataset has them: consecutive members whose names are alike up to the first dot of
//! their last component are the fields of one sample. (WebDataset's own rule, for names that have something before that dot.)
//!
//! An archive has no table of its members, so all of it is read once. What is damaged costs the members that it is in: the
//! headers after it are found again, and what lies in between is said.

mod header;
mod members;
mod scanner;
mod search;
#[cfg(test)]
mod tests;

pub use scanner::TarScanner;

/// Key and field of a member by its name; `None` where it has none, and is no part of a sample.
pub(super) fn split_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let last = name.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let dot = last + name[last..].iter().position(|byte| *byte == b'.').filter(|at| *at > 0)?;
    // Names like `__meta__` are WebDataset's own.
    let is_meta = name.starts_with(b"__") && {
        let first = &name[2..name.iter().position(|byte| *byte == b'/').unwrap_or(name.len())];
        first.len() >= 2 && first.ends_with(b"__")
    };
    (!is_meta && dot + 1 < name.len()).then(|| (&name[..dot], &name[dot + 1..]))
}

/// A name as text. Bytes that are no UTF-8 are written as `\xFF`, so that names that differ still do.
fn text_of(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) => text.to_owned(),
        Err(_) => name.escape_ascii().to_string(),
    }
}
