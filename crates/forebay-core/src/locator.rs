//! Where the bytes of a sample are.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// An object, or a part of one: a member of an archive, a record of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Locator {
    /// The object that is read.
    pub path: PathBuf,
    /// Which of its bytes; `None` for all of them.
    pub range: Option<Range<u64>>,
    /// What the part is called inside of the object, where it has a name.
    pub member: Option<String>,
}

impl Locator {
    /// A whole object.
    pub fn whole(path: PathBuf) -> Self {
        Self { path, range: None, member: None }
    }

    /// What a person is shown, and what failures and quarantine are kept by: `shard-0007.tar#00042.jpg` for a member,
    /// `records.bin@4096` for a part without a name, the path itself for a whole object.
    pub fn name(&self) -> PathBuf {
        name_of(&self.path, self.member.as_deref(), self.range.as_ref().map(|range| range.start))
    }
}

/// The name of a part by its object, its own name and where it begins.
pub(crate) fn name_of(path: &Path, member: Option<&str>, offset: Option<u64>) -> PathBuf {
    let suffix = match (member, offset) {
        (Some(member), _) => format!("#{member}"),
        (None, Some(offset)) => format!("@{offset}"),
        (None, None) => return path.to_owned(),
    };
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_object_have_names_of_their_own() {
        let whole = Locator::whole("a/shard.tar".into());
        assert_eq!(whole.name(), Path::new("a/shard.tar"));
        let part = Locator { range: Some(512..600), ..whole.clone() };
        assert_eq!(part.name(), Path::new("a/shard.tar@512"));
        let member = Locator { member: Some("x/1.jpg".to_owned()), ..part };
        assert_eq!(member.name(), Path::new("a/shard.tar#x/1.jpg"));
    }
}
