//! Turns a folder of classes into an index, by torchvision's rules: each directory below the root is a class, files are
//! found at any depth below it, and everything is sorted.
//!
//! Links are followed, as in torchvision, except a link to a directory above itself, which is noted. A directory that
//! cannot be listed is an error: its samples would be missing silently.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_core::{Error, Kind, Listing, Result, Stage};

use crate::filter::has_ending;
use crate::index::FolderIndex;
use crate::scan::Scan;

/// The endings that count as images: torchvision's, and GIF.
pub const IMAGE_EXTENSIONS: &[&str] =
    &[".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif"];

/// Decides whether a file is a sample.
pub type Accept<'a> = dyn FnMut(&Path) -> Result<bool> + 'a;

/// Options of a scan.
#[derive(Clone, Debug, Default)]
pub struct ScanOptions {
    /// Endings of sample files, in lower case.
    pub extensions: Vec<String>,
    /// A class without samples is allowed.
    pub allow_empty: bool,
    /// The classes and their labels, instead of the directories below the root.
    pub classes: Option<Vec<(String, u32)>>,
    /// Files at any depth below the root are samples, and have no classes.
    pub is_flat: bool,
}

impl ScanOptions {
    /// Images, with every directory a class.
    pub fn images() -> Self {
        Self { extensions: IMAGE_EXTENSIONS.iter().map(|&text| text.to_owned()).collect(), ..Self::default() }
    }

    /// The classes, if they are not taken from the folder.
    pub fn known_classes(&self) -> Option<Vec<(String, u32)>> {
        // The root itself is the only class until the end of the scan.
        if self.is_flat { Some(vec![(String::new(), 0)]) } else { self.classes.clone() }
    }

    /// Whether a file's name has one of the endings, ignoring case.
    pub fn has_extension(&self, name: &OsStr) -> bool {
        self.extensions.iter().any(|ending| has_ending(name.as_bytes(), ending))
    }
}

/// Scans a folder, one directory after the other. `list` returns the entries of a directory; `accept` replaces the test
/// of the ending. Use [`Scan`] to list several directories at a time.
pub fn scan(
    root: &Path,
    options: &ScanOptions,
    list: &dyn Fn(&Path) -> Result<Listing>,
    accept: Option<&mut Accept<'_>>,
) -> Result<FolderIndex> {
    let classes = match options.known_classes() {
        Some(classes) => classes,
        None => find_classes(root, list)?.into_iter().zip(0..).collect(),
    };
    let mut scan = Scan::new(root, &classes, options, accept);
    let filter = scan.filter();
    while let Some(job) = scan.next_job() {
        let listed = list(job.as_ref()).map(|listing| filter.apply(&listing));
        scan.give(job, listed);
    }
    scan.finish()
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
    for entry in listing.iter().filter(|entry| entry.is_directory) {
        let name = entry.name.to_str().ok_or_else(|| {
            Error::config("has a name that is not UTF-8; a class name has to be")
                .at_path(&root.join(entry.name))
                .at_stage(Stage::Scan)
        })?;
        classes.push(name.to_owned());
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

pub(crate) fn no_samples(root: &Path, empty: &[String], options: &ScanOptions) -> Error {
    const SHOWN: usize = 5;
    let names = empty.iter().take(SHOWN).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let more = if empty.len() > SHOWN { format!(" and {} more", empty.len() - SHOWN) } else { String::new() };
    let endings = match options.extensions.is_empty() {
        true => String::new(),
        false => format!(" (expected files ending in {})", options.extensions.join(", ")),
    };
    if options.is_flat {
        return Error::new(Kind::NotFound, format!("has no samples below it{endings}"))
            .at_path(root)
            .at_stage(Stage::Scan)
            .with_hint("is it the right folder? name other endings with `extensions`, or pass `allow_empty=true`");
    }
    Error::new(Kind::NotFound, format!("has no samples for class {names}{more}{endings}"))
        .at_path(root)
        .at_stage(Stage::Scan)
        .with_hint(
            "if those folders are not classes, move them elsewhere; pass `allow_empty=true` to accept empty classes",
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::SampleId;
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
            let identity = if directory.ends_with("back") { Path::new("r/cat") } else { directory };
            let mut listing = Listing::new((0, xxhash_rust::xxh3::xxh3_64(identity.as_os_str().as_bytes())));
            entries.into_iter().for_each(|(name, is_directory)| listing.push(&name, is_directory));
            Ok(listing)
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
        let mut written = std::path::PathBuf::from("what/was/there/before");
        (0..index.len())
            .map(|sample| {
                let path = index.path(SampleId(sample));
                index.write_path(SampleId(sample), &mut written);
                assert_eq!(written, path);
                (path.to_str().unwrap().to_owned(), index.label(SampleId(sample)))
            })
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
    fn files_at_any_depth_have_no_class_in_a_flat_folder() {
        let options = ScanOptions { is_flat: true, ..ScanOptions::images() };
        let index = scan(Path::new("r"), &options, &lister(TREE), None).unwrap();
        assert!(!index.has_classes() && index.identity().classes == 0);
        let names: Vec<_> = paths(&index).into_iter().map(|(path, _)| path).collect();
        let expected = [
            "r/top.jpg",
            "r/cat/0.jpeg",
            "r/cat/b/1.jpg",
            "r/cat/b-c/2.jpg",
            "r/cat/b/d/3.jpg",
            "r/dog/a.jpg",
            "r/dog/z.PNG",
        ];
        assert_eq!(names, expected);
        let error = scan(Path::new("r"), &options, &lister(&["r/cat/notes.txt"]), None).unwrap_err();
        assert!(error.to_string().contains("has no samples below it (expected files ending in .jpg"), "{error}");
    }

    #[test]
    fn files_named_one_by_one_keep_their_names_and_order() {
        for names in
            [&["/d/b/2.txt", "/d/a/1.txt", "/d/b/1.txt", "/d/b/2.txt"][..], &["x/1", "2", "y/z/3"], &["a", "/b"]]
        {
            let index = FolderIndex::of_paths(names.iter().map(Path::new)).unwrap();
            let found: Vec<_> = paths(&index).into_iter().map(|(path, _)| path).collect();
            assert_eq!(found, names);
            assert!(!index.has_classes());
        }
        let index = FolderIndex::of_paths(["/d/b/2.txt", "/d/a/1.txt"].iter().map(Path::new)).unwrap();
        assert_eq!(index.root(), Path::new("/d"));
        let moved = FolderIndex::of_paths(["/e/f/b/2.txt", "/e/f/a/1.txt"].iter().map(Path::new)).unwrap();
        assert_eq!(index.identity(), moved.identity(), "a dataset may move");
        let urls = FolderIndex::of_paths(["s3://bucket/a/1", "s3://bucket/2"].iter().map(Path::new)).unwrap();
        assert_eq!((urls.root(), urls.path(SampleId(0))), (Path::new("s3://bucket"), "s3://bucket/a/1".into()));
        for wrong in ["", "/", "..", "a/..", "a\0b"] {
            assert!(FolderIndex::of_paths([Path::new(wrong)].into_iter()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_loop_of_links_is_noted_and_left() {
        let tree = &["r/cat/1.jpg", "r/cat/back/1.jpg"];
        let index = scan(Path::new("r"), &ScanOptions::images(), &lister(tree), None).unwrap();
        assert_eq!(index.len(), 1);
        assert_eq!(index.notes()[0].path, Path::new("r/cat/back"));
    }

    #[test]
    fn names_that_no_path_can_hold_are_noted_wherever_they_are() {
        let list = lister(TREE);
        let list = |directory: &Path| {
            let mut listing = list(directory)?;
            if directory.ends_with("cat") {
                ["..", "/x.jpg"].iter().for_each(|name| listing.push_refused((*name).to_owned()));
            }
            Ok(listing)
        };
        let index = scan(Path::new("r"), &ScanOptions::images(), &list, None).unwrap();
        assert_eq!(index.len(), 6, "the others are all there");
        let noted: Vec<_> = index.notes().iter().map(|note| note.path.as_os_str()).collect();
        assert_eq!(noted, ["r/cat/..", "r/cat//x.jpg"]);
        assert!(index.notes()[0].message.starts_with("is skipped: paths cannot have this name"));
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
        assert_eq!(index.empty_classes(), ["dog", "eel"]);
    }

    #[test]
    fn the_users_own_test_and_classes_are_obeyed() {
        let options = ScanOptions { classes: Some(vec![("dog".into(), 7)]), ..ScanOptions::images() };
        let mut accept = |path: &Path| Ok(path.ends_with("a.jpg"));
        let index = scan(Path::new("r"), &options, &lister(TREE), Some(&mut accept)).unwrap();
        assert_eq!(paths(&index), [("r/dog/a.jpg".to_owned(), 7)]);
    }

    #[test]
    fn the_users_own_test_is_asked_in_the_order_of_the_index_and_ends_the_scan_when_it_fails() {
        let mut asked = Vec::new();
        let mut accept = |path: &Path| {
            asked.push(path.to_str().unwrap().to_owned());
            if path.ends_with("3.jpg") { Err(Error::internal("broken")) } else { Ok(true) }
        };
        let error = scan(Path::new("r"), &ScanOptions::images(), &lister(TREE), Some(&mut accept)).unwrap_err();
        assert_eq!(error.message(), "broken");
        let expected = ["r/cat/0.jpeg", "r/cat/notes.txt", "r/cat/b/1.jpg", "r/cat/b-c/2.jpg", "r/cat/b/d/3.jpg"];
        assert_eq!(asked, expected);
    }

    #[test]
    fn the_first_directory_that_fails_is_the_one_reported() {
        let broken = |names: &'static [&'static str]| {
            let list = lister(TREE);
            let list = move |directory: &Path| match names.iter().find(|name| directory.ends_with(name)) {
                Some(name) => Err(Error::internal(format!("{name} is broken"))),
                None => list(directory),
            };
            scan(Path::new("r"), &ScanOptions::images(), &list, None).unwrap_err().message().to_owned()
        };
        assert_eq!(broken(&["dog", "d"]), "d is broken");
        assert_eq!(broken(&["d", "b-c"]), "b-c is broken");
        assert_eq!(broken(&["dog"]), "dog is broken");
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
    fn the_fingerprint_is_that_of_all_paths_and_labels_in_one() {
        let index = scan(Path::new("r"), &ScanOptions::images(), &lister(TREE), None).unwrap();
        let mut text = Vec::new();
        for (path, label) in paths(&index) {
            text.extend_from_slice(path.strip_prefix("r/").unwrap().as_bytes());
            text.push(0);
            text.extend_from_slice(&(label as u32).to_le_bytes());
        }
        let expected = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&text));
        assert_eq!((index.identity().fingerprint, index.identity().samples), (expected, 6));
    }

    #[test]
    fn a_sample_takes_its_name_and_a_few_bytes() {
        let names: Vec<_> = (0..10_000).map(|number| format!("{number:08}.jpg")).collect();
        let list = |directory: &Path| {
            let mut listing = Listing::new((0, directory.components().count() as u64));
            match directory.ends_with("cat") {
                true => names.iter().for_each(|name| listing.push(OsStr::new(name), false)),
                false => listing.push(OsStr::new("cat"), true),
            }
            Ok(listing)
        };
        let index = scan(Path::new("r"), &ScanOptions::images(), &list, None).unwrap();
        let per_sample = index.memory_bytes() as f64 / index.len() as f64;
        assert!(per_sample < 12.0 + 4.1, "{per_sample} bytes for a name of 12");
    }
}
