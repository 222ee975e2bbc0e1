//! Builds an index from rows: checks each row, and stores directories and classes once.

use std::collections::HashMap;

use forebay_core::{ScalarColumn, Version};

use super::labels::{Cell, LabelColumn};
use super::{Content, Facts, Keeps, Labels, shown};
use crate::index::FolderIndex;
use std::path::Path;

/// Longer than any path that Linux opens, and than any object name.
const MAX_PATH_BYTES: usize = 4096;

/// One sample of a manifest.
#[derive(Debug, Default)]
pub(super) struct Row<'a> {
    pub(super) path: &'a str,
    pub(super) class: Option<&'a str>,
    pub(super) label: Option<i64>,
    pub(super) version: Version,
    pub(super) content: Option<Content>,
    /// One for each of [`Rows::label_columns`].
    pub(super) cells: Vec<Cell<'a>>,
}

/// An error about one cell.
#[derive(Debug)]
pub(super) struct CellError {
    pub(super) column: String,
    pub(super) message: String,
    pub(super) hint: Option<&'static str>,
}

impl CellError {
    pub(super) fn new(column: &str, message: impl Into<String>) -> Self {
        Self { column: column.to_owned(), message: message.into(), hint: None }
    }

    pub(super) fn with_hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }
}

/// Whether rows have classes, labels or both: the first row decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClassColumns {
    Class,
    Label,
    Both,
}

/// All rows.
pub(super) struct Finished {
    pub(super) index: FolderIndex,
    pub(super) facts: Vec<Facts>,
    pub(super) labels: Vec<ScalarColumn>,
}

/// The rows so far.
pub(super) struct Rows {
    index: FolderIndex,
    keeps: Keeps,
    labels: Labels,
    label_columns: Vec<LabelColumn>,
    facts: Option<Vec<Facts>>,
    class_columns: Option<ClassColumns>,
    directories: HashMap<Box<str>, u32>,
    last_directory: (String, u32),
    /// Classes in the order of their first rows: name, and label if given. The index holds their position until the
    /// end.
    classes: Vec<(String, Option<u32>)>,
    by_name: HashMap<String, u32>,
    by_label: HashMap<u32, u32>,
    last_class: u32,
    /// Bytes of all text that is kept: names, directories, classes, etags, formats.
    text_bytes: u64,
}

impl Rows {
    pub(super) fn new(keeps: Keeps, labels: &Labels) -> Self {
        Self {
            index: FolderIndex::default(),
            keeps,
            labels: labels.clone(),
            label_columns: labels.columns().iter().map(|name| LabelColumn::new(name)).collect(),
            facts: (keeps == Keeps::Facts).then(Vec::new),
            class_columns: None,
            directories: HashMap::new(),
            last_directory: (String::new(), u32::MAX),
            classes: Vec::new(),
            by_name: HashMap::new(),
            by_label: HashMap::new(),
            last_class: 0,
            text_bytes: 0,
        }
    }

    /// Bytes of the text that is kept.
    pub(super) fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// What is kept of each row.
    pub(super) fn keeps(&self) -> Keeps {
        self.keeps
    }

    /// Whether samples have classes, rather than user-defined label columns.
    pub(super) fn has_classes(&self) -> bool {
        self.labels == Labels::Class
    }

    /// The names of those columns.
    pub(super) fn label_columns(&self) -> &[String] {
        self.labels.columns()
    }

    pub(super) fn push(&mut self, row: Row<'_>) -> Result<(), CellError> {
        let path = checked(row.path)?;
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let class = if self.has_classes() { self.class_of(row.class, row.label)? } else { 0 };
        for (column, cell) in self.label_columns.iter_mut().zip(&row.cells) {
            column.push(*cell)?;
            self.text_bytes += if let Cell::Text(text) = cell { text.len() as u64 } else { 0 };
        }
        let directory = self.directory_of(directory);
        self.index.push_sample(directory, class, name.as_bytes(), &row.version);
        if self.keeps == Keeps::Checksums {
            self.index.push_checksum(row.content.as_ref().map(|content| content.xxh3));
        }
        let etag = row.version.etag.as_ref().map_or(0, |etag| etag.len());
        let picture = row.content.as_ref().and_then(|content| content.picture.as_ref());
        self.text_bytes += (name.len() + etag + picture.map_or(0, |picture| picture.format.len())) as u64;
        if let Some(facts) = &mut self.facts {
            facts.push(Facts { version: row.version, content: row.content.map(Box::new) });
        }
        Ok(())
    }

    fn directory_of(&mut self, directory: &str) -> u32 {
        if self.last_directory.1 != u32::MAX && self.last_directory.0 == directory {
            return self.last_directory.1;
        }
        let number = match self.directories.get(directory) {
            Some(number) => *number,
            None => {
                let number = self.index.push_path(Path::new(directory));
                self.directories.insert(directory.into(), number);
                self.text_bytes += directory.len() as u64;
                number
            }
        };
        self.last_directory.0.clear();
        self.last_directory.0.push_str(directory);
        self.last_directory.1 = number;
        number
    }

    fn class_of(&mut self, class: Option<&str>, label: Option<i64>) -> Result<u32, CellError> {
        let class_columns = match (class, label) {
            (Some(_), Some(_)) => ClassColumns::Both,
            (Some(_), None) => ClassColumns::Class,
            (None, Some(_)) => ClassColumns::Label,
            (None, None) => return Err(CellError::new("class", "expected a class or a label, got neither")),
        };
        if *self.class_columns.get_or_insert(class_columns) != class_columns {
            let (column, what) = if class.is_some() { ("label", "a label") } else { ("class", "a class") };
            return Err(CellError::new(column, format!("expected {what} in every row or in none")));
        }
        let label = label.map(checked_label).transpose()?;
        let found = match (class, label) {
            (Some(class), _) if self.classes.get(self.last_class as usize).is_some_and(|last| last.0 == class) => {
                Some(self.last_class)
            }
            (Some(class), _) => self.by_name.get(class).copied(),
            (None, Some(label)) => self.by_label.get(&label).copied(),
            (None, None) => None,
        };
        let Some(number) = found else { return self.add_class(class, label) };
        let known = &self.classes[number as usize];
        if known.1 != label {
            let (class, expected) = (shown(&known.0), known.1.unwrap_or_default());
            let message =
                format!("expected {expected} as in earlier rows of class {class}, got {}", label.unwrap_or_default());
            return Err(CellError::new("label", message));
        }
        self.last_class = number;
        Ok(number)
    }

    fn add_class(&mut self, class: Option<&str>, label: Option<u32>) -> Result<u32, CellError> {
        let number = u32::try_from(self.classes.len())
            .map_err(|_| CellError::new("class", "expected fewer than 2^32 classes"))?;
        match (class, label) {
            (Some(class), _) => {
                self.by_name.insert(class.to_owned(), number);
                self.text_bytes += class.len() as u64;
                self.classes.push((class.to_owned(), label));
            }
            (None, Some(label)) => {
                self.by_label.insert(label, number);
                self.classes.push((label.to_string(), Some(label)));
            }
            (None, None) => return Err(CellError::new("class", "expected a class or a label, got neither")),
        }
        self.last_class = number;
        Ok(number)
    }

    /// The index, without a root yet, and the rest. Classes are sorted; without labels, they are numbered in that
    /// order.
    pub(super) fn finish(mut self, empty_classes: Vec<(String, u32)>) -> Result<Finished, CellError> {
        let empty_classes = if self.has_classes() { empty_classes } else { Vec::new() };
        for (name, label) in empty_classes {
            if self.by_name.contains_key(&name) {
                return Err(CellError::new(
                    "class",
                    format!("expected no rows of class {}, which the metadata lists as empty", shown(&name)),
                ));
            }
            self.classes.push((name, Some(label)));
        }
        let mut order: Vec<_> = (0..self.classes.len()).collect();
        match self.class_columns {
            Some(ClassColumns::Label) => order.sort_by_key(|&number| self.classes[number].1),
            _ => order.sort_by(|&one, &other| self.classes[one].0.cmp(&self.classes[other].0)),
        }
        let mut labels = vec![0; self.classes.len()];
        let mut named = Vec::with_capacity(order.len());
        for (position, number) in order.into_iter().enumerate() {
            let (name, label) = &mut self.classes[number];
            labels[number] = label.unwrap_or(position as u32);
            named.push((std::mem::take(name), labels[number]));
        }
        if self.has_classes() {
            self.index.set_classes(named, &labels);
        }
        self.index.finish();
        let labels = self.label_columns.into_iter().map(LabelColumn::finish).collect();
        Ok(Finished { index: self.index, facts: self.facts.unwrap_or_default(), labels })
    }
}

/// Checks a path: it must stay below the root.
fn checked(path: &str) -> Result<&str, CellError> {
    let wrong = |what: &str| {
        CellError::new("path", format!("expected a path below the root, got {what}: {}", shown(path)))
            .with_hint("paths are relative to the root: pass their common directory as `root`")
    };
    // `find .` writes paths like this.
    let below = path.strip_prefix("./").unwrap_or(path);
    if below.is_empty() {
        return Err(wrong("nothing"));
    }
    if below.starts_with('/') {
        return Err(wrong("an absolute one"));
    }
    if below.len() > MAX_PATH_BYTES {
        return Err(wrong(&format!("one of {} bytes (at most {MAX_PATH_BYTES})", below.len())));
    }
    // This runs for every row: one pass over its bytes, and further checks only for unusual ones.
    let (mut start, bytes) = (0, below.as_bytes());
    for end in 0..=bytes.len() {
        match bytes.get(end) {
            Some(0) => return Err(wrong("one with a NUL in it")),
            None | Some(b'/') => match &bytes[start..end] {
                b".." => return Err(wrong("one that leads out of it (..)")),
                b"" if below.contains("://") => return Err(wrong("a URL")),
                b"." | b"" => return Err(wrong("one with an empty component")),
                _ => start = end + 1,
            },
            Some(_) => {}
        }
    }
    Ok(below)
}

/// A size that was written as a signed integer.
pub(super) fn checked_size(size: i64) -> Result<u64, CellError> {
    u64::try_from(size).map_err(|_| CellError::new("size_bytes", format!("expected at least 0, got {size}")))
}

fn checked_label(label: i64) -> Result<u32, CellError> {
    u32::try_from(label)
        .map_err(|_| CellError::new("label", format!("expected a whole number from 0 to {}, got {label}", u32::MAX)))
}
