//! The demo's data: a folder of labelled pictures, some of them damaged in ways that stop training runs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use forebay::{Error, Kind, Result};

/// Files in the folder, before any is deleted.
pub(crate) const FILES: u64 = 600;

/// A class, and its pictures, which are used in turn. `assets/generate.py` draws them.
struct Class {
    name: &'static str,
    pictures: &'static [(&'static str, &'static [u8])],
}

macro_rules! class {
    ($name:literal: $($number:literal $extension:literal),*) => {
        Class {
            name: $name,
            pictures: &[$((
                $extension,
                include_bytes!(concat!("../../assets/", $name, "-", $number, ".", $extension)),
            )),*],
        }
    };
}

const CLASSES: &[Class] = &[
    class!("checks": 0 "jpg", 1 "jpg", 2 "jpg", 3 "png", 4 "bmp"),
    class!("dots": 0 "jpg", 1 "jpg", 2 "jpg", 3 "png", 4 "gif"),
    class!("rings": 0 "jpg", 1 "jpg", 2 "jpg", 3 "webp", 4 "tif"),
    class!("stripes": 0 "jpg", 1 "jpg", 2 "jpg", 3 "png", 4 "webp"),
];

/// The damage of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    Truncated,
    Empty,
    Text,
    Unreadable,
    Deleted,
}

impl Damage {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Empty => "empty",
            Self::Text => "text named as a picture",
            Self::Unreadable => "unreadable",
            Self::Deleted => "deleted after the scan",
        }
    }

    /// The kind of error that loading it has to give.
    pub(crate) const fn kind(self) -> Kind {
        match self {
            Self::Truncated | Self::Empty => Kind::Corrupt,
            Self::Text => Kind::Undecodable,
            Self::Unreadable => Kind::Denied,
            Self::Deleted => Kind::NotFound,
        }
    }
}

const DAMAGE: &[(&str, Damage)] = &[
    ("checks/0020.jpg", Damage::Truncated),
    ("checks/0033.png", Damage::Text),
    ("checks/0112.jpg", Damage::Deleted),
    ("dots/0005.jpg", Damage::Empty),
    ("dots/0078.png", Damage::Text),
    ("dots/0090.jpg", Damage::Unreadable),
    ("rings/0008.webp", Damage::Deleted),
    ("rings/0041.jpg", Damage::Truncated),
    ("rings/0139.tif", Damage::Empty),
    ("stripes/0066.jpg", Damage::Unreadable),
    ("stripes/0102.jpg", Damage::Truncated),
    ("stripes/0123.png", Damage::Text),
];

/// What a web server may send in place of a missing picture.
const TEXT: &[u8] = b"<!DOCTYPE html>\n<title>404 Not Found</title>\n";

/// The folder as written.
pub(crate) struct Planted {
    root: PathBuf,
    /// Every damaged file, by its path below the root.
    pub(crate) damaged: Vec<(&'static str, Damage)>,
    /// Whether this user can read a file without permissions (root can), so that no unreadable file was made.
    pub(crate) reads_everything: bool,
}

impl Planted {
    /// Writes the folder. Files to be deleted after the scan are still there.
    pub(crate) fn new(root: &Path) -> Result<Self> {
        for class in CLASSES {
            let folder = root.join(class.name);
            fs::create_dir_all(&folder).map_err(|error| Error::io("created", error).at_path(&folder))?;
            for number in 0..FILES as usize / CLASSES.len() {
                let (extension, picture) = class.pictures[number % class.pictures.len()];
                let name = format!("{}/{number:04}.{extension}", class.name);
                let damage = DAMAGE.iter().find(|(path, _)| *path == name).map(|(_, damage)| *damage);
                write(&root.join(name), content(picture, damage))?;
            }
        }
        let mut planted = Self { root: root.to_owned(), damaged: DAMAGE.to_vec(), reads_everything: false };
        planted.forbid()?;
        Ok(planted)
    }

    /// Removes the permission to read. If this user can read it nevertheless (root), the file is not part of the demo.
    fn forbid(&mut self) -> Result<()> {
        for path in self.paths(Damage::Unreadable) {
            set_mode(&path, 0o000)?;
            if is_readable(&path) {
                self.reads_everything = true;
                set_mode(&path, 0o644)?;
            }
        }
        if self.reads_everything {
            self.damaged.retain(|(_, damage)| *damage != Damage::Unreadable);
        }
        Ok(())
    }

    /// Deletes files that the scan has listed.
    pub(crate) fn delete(&self) -> Result<()> {
        for path in self.paths(Damage::Deleted) {
            fs::remove_file(&path).map_err(|error| Error::io("deleted", error).at_path(&path))?;
        }
        Ok(())
    }

    fn paths(&self, wanted: Damage) -> Vec<PathBuf> {
        self.damaged.iter().filter(|(_, damage)| *damage == wanted).map(|(path, _)| self.root.join(path)).collect()
    }

    /// How many classes there are.
    pub(crate) const fn classes() -> usize {
        CLASSES.len()
    }
}

fn content(picture: &'static [u8], damage: Option<Damage>) -> &'static [u8] {
    match damage {
        Some(Damage::Truncated) => &picture[..picture.len() * 3 / 5],
        Some(Damage::Empty) => &[],
        Some(Damage::Text) => TEXT,
        Some(Damage::Unreadable | Damage::Deleted) | None => picture,
    }
}

#[expect(clippy::disallowed_methods, reason = "the demo makes its own data; loading it goes through the store")]
fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).map_err(|error| Error::io("written", error).at_path(path))
}

#[expect(clippy::disallowed_methods, reason = "only opening a file tells whether this user may read it")]
fn is_readable(path: &Path) -> bool {
    fs::File::open(path).is_ok()
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    let changed = fs::set_permissions(path, Permissions::from_mode(mode));
    changed.map_err(|error| Error::io("given another mode", error).at_path(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_damaged_file_is_one_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let planted = Planted::new(folder.path()).unwrap();
        for (path, _) in DAMAGE {
            assert!(folder.path().join(path).is_file(), "{path} was not written");
        }
        planted.delete().unwrap();
        assert!(!folder.path().join("checks/0112.jpg").exists());
    }

    #[test]
    fn the_pictures_stay_small() {
        let bytes: usize = CLASSES.iter().flat_map(|class| class.pictures).map(|(_, picture)| picture.len()).sum();
        assert!(bytes < 150_000, "{bytes} bytes are embedded into every binary and wheel");
    }
}
