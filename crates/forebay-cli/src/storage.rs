//! Locations in command arguments: a directory, or a store's URL and its options.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{Config, Error, Result, StorageOptions, Store, file_path, is_url, open_store, read_setting};

/// Arguments of every command that takes a URL.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct StorageArguments {
    /// An option of the URL's store: key, secret, endpoint_url, region and so on (docs/remote.md); can be repeated.
    /// NAME=@FILE reads the value from a file, so that it does not appear in the process list
    #[arg(long = "storage-option", value_name = "NAME=VALUE", value_parser = StorageOption::parse)]
    storage_options: Vec<StorageOption>,
}

/// One option. Its value may be a secret and is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StorageOption {
    name: String,
    /// `None` if there was no `=`; the error does not repeat the text.
    value: Option<String>,
}

impl StorageOption {
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, std::convert::Infallible> {
        Ok(match text.split_once('=') {
            Some((name, value)) => Self { name: name.to_owned(), value: Some(value.to_owned()) },
            None => Self { name: String::new(), value: None },
        })
    }
}

impl fmt::Debug for StorageOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=***", self.name)
    }
}

/// Names and values of the argument called `argument`.
pub(crate) fn options(argument: &str, given: &[StorageOption]) -> Result<StorageOptions> {
    let pairs = given.iter().map(|option| match &option.value {
        Some(value) if !option.name.is_empty() => Ok((option.name.clone(), value_of(argument, &option.name, value)?)),
        _ => Err(Error::config(format!("{argument}: expected NAME=VALUE, got no name or no \"=\""))),
    });
    Ok(StorageOptions::new(pairs.collect::<Result<Vec<_>>>()?))
}

/// The options of the store at `place`. A directory has none, and is given none.
pub(crate) fn options_of(place: &Path, given: &[StorageOption], argument: &str) -> Result<StorageOptions> {
    let options = options(argument, given)?;
    match given.is_empty() || is_url(place) {
        true => Ok(options),
        false => Err(Error::config(format!("{argument}: expected none for a directory, got {given:?} for {place:?}"))
            .with_hint("--storage-option is for the source's store, --target-option for the target's")),
    }
}

/// Whether an error is about something at `place`, a URL perhaps with options in it.
pub(crate) fn is_below(error: &Error, place: &Path) -> bool {
    let place = place.to_string_lossy();
    let place = Path::new(place.split('?').next().unwrap_or_default());
    error.path().is_some_and(|path| path.starts_with(place))
}

/// A value, or the content of the file after an `@`. The file name is not repeated in errors: it may be a key that
/// begins with `@`.
fn value_of(argument: &str, name: &str, value: &str) -> Result<String> {
    match value.strip_prefix('@') {
        None => Ok(value.to_owned()),
        Some(rest) if rest.starts_with('@') => Ok(rest.to_owned()),
        Some(path) => read_setting(Path::new(path)).map_err(|error| {
            Error::config(format!("{argument} {name}: the file after the \"@\" {}", error.message()))
                .with_hint("NAME=@FILE reads the value from a file; write \"@@\" for a value that begins with \"@\"")
        }),
    }
}

/// A directory, or the URL of one; `file://` is a directory.
pub(crate) fn place(text: &str) -> std::result::Result<PathBuf, String> {
    match text {
        "" => Err("expected a directory or a URL".to_owned()),
        text if text.starts_with("file://") => {
            file_path(Path::new(text)).ok_or_else(|| "expected file:///path, got a server in it".to_owned())
        }
        text => Ok(text.into()),
    }
}

impl StorageArguments {
    /// Names and values.
    pub(crate) fn options(&self) -> Result<StorageOptions> {
        options("--storage-option", &self.storage_options)
    }

    /// The store of a root, and the root as it appears in paths. Sends no request.
    pub(crate) fn open(&self, root: &Path) -> Result<(Arc<dyn Store>, PathBuf)> {
        /// Directories listed concurrently by reader processes.
        const MAX_READERS: usize = 8;
        let options = self.options()?;
        let root = file_path(root).unwrap_or_else(|| root.to_owned());
        if !self.storage_options.is_empty() && !is_url(&root) {
            return Err(Error::config(format!(
                "--storage-option: expected none for a directory, got some for {root:?}"
            ))
            .with_hint("a directory has no options: leave them out, or give the URL of a store"));
        }
        open_store(&root, &options, &Config { io_threads: MAX_READERS, ..Config::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(options: &[&str]) -> StorageArguments {
        let parse = |text: &&str| StorageOption::parse(text).unwrap();
        StorageArguments { storage_options: options.iter().map(parse).collect() }
    }

    #[test]
    fn values_are_taken_and_never_shown() {
        let given = arguments(&["key=a=b", "secret=hunter2hunter2"]);
        let expected = [("key", "a=b"), ("secret", "hunter2hunter2")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(given.options().unwrap(), StorageOptions::new(expected));
        assert!(!format!("{given:?}").contains("hunter2"));
        let error = arguments(&["hunter2hunter2"]).options().unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
        assert!(arguments(&["=x"]).options().is_err());
    }

    #[test]
    fn values_come_from_files_too() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file.as_file(), b"hunter2hunter2\n").unwrap();
        let from_file = format!("secret=@{}", file.path().display());
        let given = arguments(&[&from_file, "password=@@home"]);
        let expected = [("secret", "hunter2hunter2"), ("password", "@home")];
        assert_eq!(given.options().unwrap(), StorageOptions::new(expected.map(|(a, b)| (a.into(), b.into()))));
        for (value, why) in [("@hunter2hunter2", "No such file"), ("@/", "Is a directory")] {
            let error = arguments(&[&format!("secret={value}")]).options().unwrap_err();
            assert!(error.message().starts_with("--storage-option secret: the file after the \"@\" "), "{error}");
            assert!(error.message().contains(why), "{error}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn a_file_url_is_a_directory() {
        assert_eq!(place("file:///a%20b/%zz").unwrap(), PathBuf::from("/a b/%zz"));
        assert_eq!(place("file://localhost/a").unwrap(), PathBuf::from("/a"));
        assert_eq!(place("s3://b/a%20b").unwrap(), PathBuf::from("s3://b/a%20b"));
        assert!(place("file://server/a").is_err() && place("").is_err());
    }

    #[test]
    fn roots_are_directories_or_urls() {
        let (_, root) = arguments(&[]).open(Path::new("file:///tmp/a%20b")).unwrap();
        assert_eq!(root, Path::new("/tmp/a b"));
        let (store, root) = arguments(&["anon=true"]).open(Path::new("s3://bucket/x?region=eu")).unwrap();
        assert_eq!(root, Path::new("s3://bucket/x"));
        assert!(store.capabilities().is_remote);
        assert!(arguments(&["anon=true"]).open(Path::new("/tmp")).is_err());
    }
}
