//! Pagination of a listing: detects listings that never end, and names that repeat.
//!
//! A server may return the token of an earlier page again, or new tokens with empty pages. Neither shows in a single
//! page, and both would be requested for ever.

use std::collections::HashSet;

use forebay_core::Listing;

/// Consecutive pages without a new name. Stores return empty pages where many objects were deleted, but not this many.
/// Not measured.
pub(super) const MAX_IDLE_PAGES: u64 = 1_000;

/// Why a listing never ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndlessListing {
    /// A token repeated.
    RepeatedToken,
    /// Too many pages without a new name.
    NoProgress,
}

/// State of the pages so far: one token, and as many names as needed.
#[derive(Debug, Default)]
pub(super) struct Pagination {
    pub(super) objects: Names,
    pub(super) directories: Names,
    pages: u64,
    idle_pages: u64,
    /// The token of page `remembered_at`, a power of two (Brent's algorithm): a cycle of any length is found before it
    /// is passed three times, with a single token kept.
    remembered: Option<String>,
    remembered_at: u64,
}

impl Pagination {
    /// Records a page with the `token` of the next one; `is_idle` if it had no new name.
    pub(super) fn next(&mut self, token: &str, is_idle: bool) -> Result<(), EndlessListing> {
        self.pages += 1;
        self.idle_pages = if is_idle { self.idle_pages + 1 } else { 0 };
        if self.remembered.as_deref() == Some(token) {
            return Err(EndlessListing::RepeatedToken);
        }
        if self.idle_pages >= MAX_IDLE_PAGES {
            return Err(EndlessListing::NoProgress);
        }
        if self.pages >= 2 * self.remembered_at {
            self.remembered = Some(token.to_owned());
            self.remembered_at = self.pages;
        }
        Ok(())
    }
}

/// Filters repeated names, so that each counts once.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// The last name: while names arrive in order, as stores send them, no other has to be kept.
    last: String,
    /// All names, from the first one that was out of order.
    all: Option<HashSet<String>>,
}

impl Names {
    /// Whether this name is not in the listing yet. Directories are ordered by their names with a slash appended.
    pub(super) fn is_new(&mut self, name: &str, is_directory: bool, listing: &Listing) -> bool {
        if let Some(all) = &mut self.all {
            return all.insert(name.to_owned());
        }
        let slash = if is_directory { "/" } else { "" };
        if self.last.bytes().lt(name.bytes().chain(slash.bytes())) {
            self.last.clear();
            self.last.extend([name, slash]);
            return true;
        }
        let known = listing.iter().filter(|entry| entry.is_directory == is_directory);
        let all = self.all.insert(known.map(|entry| entry.name.to_string_lossy().into_owned()).collect());
        all.insert(name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn a_circle_of_tokens_is_found_and_a_long_way_is_none() {
        for (start, length) in [(0, 1), (0, 2), (1, 3), (7, 5), (100, 64), (3, 1000)] {
            let mut pagination = Pagination::default();
            let token = |page: u64| if page < start { page } else { start + (page - start) % length };
            let pages =
                (0..).take_while(|&page| pagination.next(&token(page).to_string(), false).is_ok()).count() as u64;
            assert!(pages <= 4 * (start + length + 1), "{pages} pages for {start} and {length}");
        }
        let mut pagination = Pagination::default();
        assert!((0..100_000).all(|page| pagination.next(&page.to_string(), false).is_ok()));
    }

    #[test]
    fn only_names_out_of_order_are_kept() {
        let mut names = Names::default();
        let mut listing = Listing::default();
        for name in ["a-b", "a", "b"] {
            assert!(names.is_new(name, true, &listing), "{name}");
            listing.push(OsStr::new(name), true);
        }
        listing.push(OsStr::new("x"), false);
        assert!(names.all.is_none(), "a-b/ comes before a/");
        for (name, is_new) in [("a", false), ("x", true), ("x", false), ("b", false), ("0", true)] {
            assert_eq!(names.is_new(name, true, &listing), is_new, "{name}");
        }
    }
}
