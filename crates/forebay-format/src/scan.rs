//! The state of a scan: which directories have to be listed, and the samples found so far. It lists nothing and starts
//! no thread; the caller may list several directories at a time, and finish them in any order. The index does not
//! depend on that order, nor does the error: it is that of the first failed directory, by class and path.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, Kind, Result, Version};

use crate::filter::{FilteredDirectory, SampleFilter};
use crate::folder::{Accept, ScanOptions, no_samples};
use crate::index::{FolderIndex, Note};

/// A scan in progress.
pub struct Scan<'a, 'b> {
    options: &'a ScanOptions,
    accept: Option<&'a mut Accept<'b>>,
    /// The classes that are complete and whose predecessors are.
    index: FolderIndex,
    /// The other classes; `classes[0]` has the number `first`.
    classes: VecDeque<Class>,
    first: usize,
    empty: Vec<usize>,
    queue: BinaryHeap<Reverse<ListJob>>,
    failed: Option<(Place, Error)>,
    /// Metadata from the listings for each sample of the index; `None` if it is not kept.
    versions: Option<Vec<Version>>,
}

/// A directory to list.
#[derive(Clone, Debug)]
pub struct ListJob {
    place: Place,
    path: PathBuf,
    above: Option<Arc<Ancestors>>,
}

/// The directory, below the root as the root was given.
impl AsRef<Path> for ListJob {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// The position of a directory in the order of a scan: by class, then by the bytes of its path below the root. This is
/// torchvision's order, not that of a tree walk: "a-b" comes between "a" and "a/c".
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    class: usize,
    directory: OsString,
}

impl PartialEq for ListJob {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

impl Eq for ListJob {}

impl PartialOrd for ListJob {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ListJob {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place.cmp(&other.place)
    }
}

/// The ancestors of a directory up to its class: following a link to one of them would never end.
#[derive(Debug)]
struct Ancestors {
    identity: (u64, u64),
    above: Option<Arc<Self>>,
}

/// The state of a class.
#[derive(Default)]
struct Class {
    /// Directories that are still to be listed.
    missing: usize,
    found: Vec<(OsString, FilteredDirectory)>,
    notes: Vec<(OsString, Note)>,
}

impl<'a, 'b> Scan<'a, 'b> {
    /// A scan of these classes below `root`. `accept` replaces the test of the ending; `give` calls it for each sample
    /// in the order of the index.
    pub fn new(
        root: &Path,
        classes: &[(String, u32)],
        options: &'a ScanOptions,
        accept: Option<&'a mut Accept<'b>>,
    ) -> Self {
        let (names, indices) = classes.iter().cloned().unzip();
        let job = |(class, (name, _)): (usize, &(String, u32))| {
            Reverse(ListJob { place: Place { class, directory: name.into() }, path: below(root, name), above: None })
        };
        Self {
            options,
            accept,
            index: FolderIndex::new(root, names, indices),
            classes: classes.iter().map(|_| Class { missing: 1, ..Class::default() }).collect(),
            first: 0,
            empty: Vec::new(),
            queue: classes.iter().enumerate().map(job).collect(),
            failed: None,
            versions: None,
        }
    }

    /// Notes names in the root that paths cannot represent.
    pub fn refusing(mut self, names: &[String]) -> Self {
        let root = self.index.root().to_owned();
        names.iter().for_each(|name| self.index.push_note(Note::refused(&root, name)));
        self
    }

    /// Keeps the metadata that listings give for each sample.
    pub fn keeping_versions(mut self) -> Self {
        self.versions = Some(Vec::new());
        self
    }

    /// The filter for the entries of each listed directory.
    pub fn filter(&self) -> SampleFilter {
        let endings = self.accept.is_none().then(|| self.options.extensions.clone());
        SampleFilter::new(endings, self.versions.is_some())
    }

    /// The next directory to list; `None` if there is none now, though a later `give` may add some.
    pub fn next_job(&mut self) -> Option<ListJob> {
        self.queue.pop().map(|Reverse(job)| job)
    }

    /// Takes the result of listing a directory.
    pub fn give(&mut self, job: ListJob, listed: Result<FilteredDirectory>) {
        match listed {
            Ok(filtered) => self.found(job, filtered),
            // The first listing of a flat folder is that of its root.
            Err(error) if job.path == self.index.root() && error.kind() == Kind::NotFound => {
                let hint = "is it the right folder? its files are the samples, at any depth below it";
                self.fail(job.place, error.with_hint(hint));
            }
            Err(error) => self.fail(job.place, error),
        }
    }

    /// Whether the scan will fail: then only directories that it still [`Scan::needs`] have to be listed.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Whether the result depends on this directory.
    pub fn needs(&self, job: &ListJob) -> bool {
        self.comes_before_failure(&job.place)
    }

    /// Directories before the first failure are still listed: they may fail as well, and would come first.
    fn fail(&mut self, place: Place, error: Error) {
        if self.comes_before_failure(&place) {
            self.queue.retain(|Reverse(job)| job.place < place);
            self.failed = Some((place, error));
        }
    }

    fn comes_before_failure(&self, place: &Place) -> bool {
        self.failed.as_ref().is_none_or(|(failed, _)| place < failed)
    }

    fn found(&mut self, job: ListJob, mut filtered: FilteredDirectory) {
        let ListJob { place, path, above } = job;
        let class = &mut self.classes[place.class - self.first];
        class.missing -= 1;
        let notes = filtered.refused.iter().map(|name| (place.directory.clone(), Note::refused(&path, name)));
        class.notes.extend(notes);
        if is_cycle(above.as_deref(), filtered.identity) {
            let message = "is a link to a directory above it; not followed".to_owned();
            class.notes.push((place.directory, Note { path, message }));
        } else {
            let names = std::mem::take(&mut filtered.directories);
            if !names.is_empty() {
                class.missing += names.len();
                let above = Some(Arc::new(Ancestors { identity: filtered.identity, above }));
                for name in names {
                    let directory = Path::new(&place.directory).join(&name).into_os_string();
                    let place = Place { class: place.class, directory };
                    if self.comes_before_failure(&place) {
                        let path = path.join(name);
                        self.queue.push(Reverse(ListJob { place, path, above: above.clone() }));
                    }
                }
            }
            if !filtered.ends.is_empty() {
                self.classes[place.class - self.first].found.push((place.directory, filtered));
            }
        }
        self.assemble();
    }

    /// Moves complete classes into the index, in order.
    fn assemble(&mut self) {
        while self.failed.is_none() && self.classes.front().is_some_and(|class| class.missing == 0) {
            let Some(class) = self.classes.pop_front() else { return };
            let number = self.first;
            self.first += 1;
            if let Err(error) = self.add(number, class) {
                self.queue.clear();
                self.failed = Some((Place { class: number, directory: OsString::new() }, error));
            }
        }
    }

    fn add(&mut self, number: usize, mut class: Class) -> Result<()> {
        let before = self.index.len();
        let class_index = self.index.class_indices()[number];
        class.notes.sort_unstable_by(|a, b| (&a.0, a.1.path.as_os_str()).cmp(&(&b.0, b.1.path.as_os_str())));
        class.notes.into_iter().for_each(|(_, note)| self.index.push_note(note));
        class.found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (directory, mut filtered) in class.found {
            if let Some(accept) = &mut self.accept {
                filtered = accepted(*accept, &self.index.root().join(&directory), &filtered)?;
            }
            if !filtered.ends.is_empty() {
                self.index.push_directory(directory.as_ref(), class_index, &filtered.names, &filtered.ends);
            }
            if let Some(versions) = &mut self.versions {
                versions.append(&mut filtered.versions);
                versions.resize(self.index.len() as usize, Version::default());
            }
        }
        if self.index.len() == before {
            self.empty.push(number);
        }
        Ok(())
    }

    /// The index, once every directory was given.
    pub fn finish(self) -> Result<FolderIndex> {
        self.finish_with_versions().map(|(index, _)| index)
    }

    /// The index, and the metadata from listings for each sample if it was kept.
    pub fn finish_with_versions(mut self) -> Result<(FolderIndex, Vec<Version>)> {
        if let Some((_, error)) = self.failed {
            return Err(error);
        }
        if !self.classes.is_empty() {
            return Err(Error::internal("a scan ended before every directory was listed"));
        }
        let empty: Vec<_> = self.empty.iter().map(|&number| self.index.classes()[number].clone()).collect();
        if !empty.is_empty() && !self.options.allow_empty {
            return Err(no_samples(self.index.root(), &empty, self.options));
        }
        for class in &empty {
            let path = below(self.index.root(), class);
            self.index.push_note(Note { path, message: "has no samples".to_owned() });
        }
        self.index.set_empty_classes(empty);
        if self.options.is_flat {
            self.index.forget_classes();
        }
        self.index.finish();
        Ok((self.index, self.versions.unwrap_or_default()))
    }
}

/// The path of a class; the root itself if the root is the only class.
fn below(root: &Path, class: &str) -> PathBuf {
    if class.is_empty() { root.to_owned() } else { root.join(class) }
}

fn is_cycle(mut above: Option<&Ancestors>, identity: (u64, u64)) -> bool {
    while let Some(directory) = above {
        if directory.identity == identity {
            return true;
        }
        above = directory.above.as_deref();
    }
    false
}

fn accepted(accept: &mut Accept<'_>, directory: &Path, filtered: &FilteredDirectory) -> Result<FilteredDirectory> {
    let mut accepted = FilteredDirectory::default();
    for (position, name) in filtered.names().enumerate() {
        if accept(&directory.join(name))? {
            accepted.push(name);
            accepted.versions.extend(filtered.versions.get(position).cloned());
        }
    }
    Ok(accepted)
}
