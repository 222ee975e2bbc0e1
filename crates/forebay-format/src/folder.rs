//! A folder of classes becomes an index, with torchvision's rules: each directory below the root is a class,
//! files are found at any depth below it, everything is sorted.
//!
//! Links are followed, as torchvision does; a link that leads back to a directory above itself is noted and not
//! followed. A directory that cannot be listed is an error: its samples would be missing silently.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_core::{Error, Kind, Listing, Result, Stage};

use crate::index::FolderIndex;

/// The endings that count as images: torchvision's, and GIF.
pub const IMAGE_EXTENSIONS: &[&str] =
    &[".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif"];

/// Decides whether a file is a sample.
pub type Accept<'a> = dyn FnMut(&Path) -> Result<bool> + 'a;

/// What a scan looks for.
#[derive(Clone, Debug, Default)]
pub struct ScanOptions {
    /// Endings that count, in lower case.
    pub extensions: Vec<String>,
    /// A class without samples is allowed.
    pub allow_empty: bool,
    /// The classes and their labels, instead of the directories below the root.
    pub classes: Option<Vec<(String, u32)>>,
}

impl ScanOptions {
    /// Images, with every directory a class.
    pub fn images() -> Self {
        Self { extensions: IMAGE_EXTENSIONS.iter().map(|&text| text.to_owned()).collect(), ..Self::default() }
    }

    /// Whether a file's name has one of the endings, whatever its case.
    pub fn has_extension(&self, name: &OsStr) -> bool {
        let name = name.as_bytes();
        self.extensions.iter().any(|ending| {
            let ending = ending.as_bytes();
            name.len() >= ending.len() && name[name.len() - ending.len()..].eq_ignore_ascii_case(ending)
        })
    }
}

/// Scans a folder. `list` gives the entries of a directory; `accept` replaces the test of the ending.
pub fn scan(
    root: &Path,
    options: &ScanOptions,
    list: &dyn Fn(&Path) -> Result<Listing>,
    accept: Option<&mut Accept<'_>>,
) -> Result<FolderIndex> {
    let classes = match &options.classes {
        Some(classes) => classes.clone(),
        None => find_classes(root, list)?.into_iter().zip(0..).collect(),
    };
    let (names, indices) = classes.iter().cloned().unzip();
    let mut scan = Scan { options, list, accept, index: FolderIndex::new(root, names, indices) };
    let mut empty = Vec::new();
    for (class, class_index) in &classes {
        let before = scan.index.len();
        scan.class(root, class, *class_index)?;
        if scan.index.len() == before {
            empty.push(class.as_str());
        }
    }
    let mut index = scan.index;
    if !empty.is_empty() && !options.allow_empty {
        return Err(no_samples(root, &empty, options));
    }
    for class in empty {
        index.push_note(root.join(class), "has no samples (allow_empty=True)");
    }
    index.finish();
    Ok(index)
}

/// The directories below a root, sorted: torchvision's classes.
pub fn find_classes(root: &Path, list: &dyn Fn(&Path) -> Result<Listing>) -> Result<Vec<String>> {
    let mut classes = Vec::new();
    let listing = list(root).map_err(|error| match error.kind() {
        Kind::NotFound => {
            error.with_hint("is it the right folder? expected one directory per class, as in `root/cat/1.jpg`")
        }
        _ => error,
    })?;
    for entry in listing.entries.into_iter().filter(|entry| entry.is_directory) {
        classes.push(entry.name.into_string().map_err(|name| {
            Error::config("has a name that is not UTF-8; a class name has to be")
                .at_path(&root.join(name))
                .at_stage(Stage::Scan)
        })?);
    }
    classes.sort_unstable();
    if classes.is_empty() {
        let error =
            Error::new(Kind::NotFound, "has no class folders (expected one directory per class, with images in it)");
        return Err(error
            .at_path(root)
            .at_stage(Stage::Scan)
            .with_hint("is it the right folder? `root/cat/1.jpg` is the layout"));
    }
    Ok(classes)
}

fn no_samples(root: &Path, empty: &[&str], options: &ScanOptions) -> Error {
    const SHOWN: usize = 5;
    let names = empty.iter().take(SHOWN).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let more = if empty.len() > SHOWN { format!(" and {} more", empty.len() - SHOWN) } else { String::new() };
    let endings = match options.extensions.is_empty() {
        true => String::new(),
        false => format!(" (expected files ending in {})", options.extensions.join(", ")),
    };
    Error::new(Kind::NotFound, format!("has no samples for class {names}{more}{endings}"))
        .at_path(root)
        .at_stage(Stage::Scan)
        .with_hint("if those folders are no classes, move them out; pass allow_empty=True to accept empty classes")
}

struct Scan<'a, 'b> {
    options: &'a ScanOptions,
    list: &'a dyn Fn(&Path) -> Result<Listing>,
    accept: Option<&'a mut Accept<'b>>,
    index: FolderIndex,
}

impl Scan<'_, '_> {
    /// All samples of one class. Directories are visited in the order of their whole path as text, which is
    /// not that of a tree walk: "a-b" comes between "a" and "a/c".
    fn class(&mut self, root: &Path, class: &str, class_index: u32) -> Result<()> {
        let mut found = Vec::new();
        self.walk(root, Path::new(class), &mut Vec::new(), &mut found)?;
        found.sort_unstable_by(|a, b| a.0.as_os_str().as_bytes().cmp(b.0.as_os_str().as_bytes()));
        for (directory, names) in found {
            self.index.push_directory(directory, class_index);
            names.iter().for_each(|name| self.index.push_sample(name));
        }
        Ok(())
    }

    fn walk(
        &mut self,
        root: &Path,
        directory: &Path,
        above: &mut Vec<(u64, u64)>,
        found: &mut Vec<(PathBuf, Vec<std::ffi::OsString>)>,
    ) -> Result<()> {
        let whole = root.join(directory);
        let listing = (self.list)(&whole)?;
        if above.contains(&listing.identity) {
            self.index.push_note(whole, "is a link to a directory above it; not followed");
            return Ok(());
        }
        above.push(listing.identity);
        let mut names = Vec::new();
        for entry in listing.entries {
            if entry.is_directory {
                self.walk(root, &directory.join(&entry.name), above, found)?;
            } else if self.accepts(&whole, &entry.name)? {
                names.push(entry.name);
            }
        }
        above.pop();
        if !names.is_empty() {
            names.sort_unstable();
            found.push((directory.to_owned(), names));
        }
        Ok(())
    }

    fn accepts(&mut self, directory: &Path, name: &OsStr) -> Result<bool> {
        match &mut self.accept {
            Some(accept) => accept(&directory.join(name)),
            None => Ok(self.options.has_extension(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::{Entry, SampleId};
    use std::collections::BTreeSet;

    /// A tree of paths, listed like a disk would.
    fn lister(files: &'static [&'static str]) -> impl Fn(&Path) -> Result<Listing> {
        move |directory| {
            let below = files.iter().filter_map(|file| Path::new(file).strip_prefix(directory).ok());
            let entries: BTreeSet<_> = below
                .filter_map(|rest| {
                    let mut parts = rest.components();
                    Some((parts.next()?.as_os_str().to_owned(), parts.next().is_some()))
                })
                .collect();
            let entries = entries.into_iter().map(|(name, is_directory)| Entry { name, is_directory }).collect();
            let identity = if directory.ends_with("back") { Path::new("r/cat") } else { directory };
            Ok(Listing { entries, identity: (0, xxhash_rust::xxh3::xxh3_64(identity.as_os_str().as_bytes())) })
        }
    }

    const TREE: &[&str] = &[
        "r/dog/z.PNG",
        "r/dog/a.jpg",
        "r/cat/b/1.jpg",
        "r/cat/b-c/2.jpg",
        "r/cat/b/d/3.jpg",
        "r/cat/0.jpeg",
        "r/cat/notes.txt",
        "r/top.jpg",
    ];

    fn paths(index: &FolderIndex) -> Vec<(String, i64)> {
        (0..index.len())
            .map(|sample| (index.path(SampleId(sample)).to_str().unwrap().to_owned(), index.label(SampleId(sample))))
            .collect()
    }

    #[test]
    fn order_and_labels_are_torchvisions() {
        let index = scan(Path::new("r"), &ScanOptions::images(), &lister(TREE), None).unwrap();
        assert_eq!(index.classes(), ["cat", "dog"]);
        let expected = [
            ("r/cat/0.jpeg", 0),
            ("r/cat/b/1.jpg", 0),
            ("r/cat/b-c/2.jpg", 0),
            ("r/cat/b/d/3.jpg", 0),
            ("r/dog/a.jpg", 1),
            ("r/dog/z.PNG", 1),
        ];
        assert_eq!(paths(&index), expected.map(|(path, label)| (path.to_owned(), label)));
    }

    #[test]
    fn a_loop_of_links_is_noted_and_left() {
        let tree = &["r/cat/1.jpg", "r/cat/back/1.jpg"];
        let index = scan(Path::new("r"), &ScanOptions::images(), &lister(tree), None).unwrap();
        assert_eq!(index.len(), 1);
        assert_eq!(index.notes()[0].path, Path::new("r/cat/back"));
    }

    #[test]
    fn empty_classes_are_named_unless_allowed() {
        let tree = &["r/cat/1.jpg", "r/dog/readme.txt", "r/eel/readme.txt"];
        let error = scan(Path::new("r"), &ScanOptions::images(), &lister(tree), None).unwrap_err();
        assert!(
            error.to_string().contains("no samples for class \"dog\", \"eel\" (expected files ending in .jpg"),
            "{error}"
        );
        let options = ScanOptions { allow_empty: true, ..ScanOptions::images() };
        let index = scan(Path::new("r"), &options, &lister(tree), None).unwrap();
        assert_eq!((index.len(), index.notes().len()), (1, 2));
    }

    #[test]
    fn the_users_own_test_and_classes_are_obeyed() {
        let options = ScanOptions { classes: Some(vec![("dog".into(), 7)]), ..ScanOptions::images() };
        let mut accept = |path: &Path| Ok(path.ends_with("a.jpg"));
        let index = scan(Path::new("r"), &options, &lister(TREE), Some(&mut accept)).unwrap();
        assert_eq!(paths(&index), [("r/dog/a.jpg".to_owned(), 7)]);
    }

    #[test]
    fn the_fingerprint_sees_every_name_and_label_and_not_the_root() {
        let identity = |tree| scan(Path::new("r"), &ScanOptions::images(), &lister(tree), None).unwrap().identity();
        let base = identity(&["r/cat/1.jpg", "r/dog/1.jpg"]);
        assert_ne!(base, identity(&["r/cat/2.jpg", "r/dog/1.jpg"]));
        assert_ne!(base, identity(&["r/cat/1.jpg", "r/eel/1.jpg"]));
        let moved = &["elsewhere/cat/1.jpg", "elsewhere/dog/1.jpg"];
        let moved = scan(Path::new("elsewhere"), &ScanOptions::images(), &lister(moved), None).unwrap();
        assert_eq!(base, moved.identity());
    }

    #[test]
    fn a_sample_takes_its_name_and_a_few_bytes() {
        let names: Vec<_> = (0..10_000).map(|number| format!("{number:08}.jpg")).collect();
        let list = |directory: &Path| {
            let files = names.iter().map(|name| Entry { name: name.into(), is_directory: false });
            let entries = match directory.ends_with("cat") {
                true => files.collect(),
                false => vec![Entry { name: "cat".into(), is_directory: true }],
            };
            Ok(Listing { entries, identity: (0, directory.components().count() as u64) })
        };
        let index = scan(Path::new("r"), &ScanOptions::images(), &list, None).unwrap();
        let per_sample = index.memory_bytes() as f64 / index.len() as f64;
        assert!(per_sample < 12.0 + 4.1, "{per_sample} bytes for a name of 12");
    }
}
