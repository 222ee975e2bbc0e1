//! Places and their settings, as arguments of a command.

use std::path::PathBuf;

use forebay::StorageOptions;

/// `name=value`. What is wrong with it is said without its value, which may be a key.
pub(crate) fn option(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected name=value".to_owned()),
    }
}

/// The settings of a store.
pub(crate) fn options(given: &[(String, String)]) -> StorageOptions {
    StorageOptions::new(given.iter().cloned())
}

/// A directory, or the URL of one; `file://` is a directory.
pub(crate) fn place(text: &str) -> Result<PathBuf, String> {
    let Some(rest) = text.strip_prefix("file://") else {
        return if text.is_empty() { Err("expected a directory or a URL".to_owned()) } else { Ok(text.into()) };
    };
    match rest.strip_prefix("localhost").unwrap_or(rest) {
        path if path.starts_with('/') => Ok(unescaped(path)),
        _ => Err("expected file:///path, got a server in it".to_owned()),
    }
}

/// `%20` is a space.
fn unescaped(path: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let (bytes, mut plain, mut at) = (path.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let code = path.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                plain.push(byte);
                at += 3;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    std::ffi::OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_a_name_and_a_value_that_may_have_anything_in_it() {
        assert_eq!(option("secret=a=b"), Ok(("secret".to_owned(), "a=b".to_owned())));
        assert_eq!(option("key="), Ok(("key".to_owned(), String::new())));
        for text in ["hunter2", "=hunter2"] {
            assert!(!option(text).unwrap_err().contains("hunter2"));
        }
    }

    #[test]
    fn a_file_url_is_a_directory() {
        assert_eq!(place("file:///a%20b/%zz").unwrap(), PathBuf::from("/a b/%zz"));
        assert_eq!(place("file://localhost/a").unwrap(), PathBuf::from("/a"));
        assert_eq!(place("s3://b/a%20b").unwrap(), PathBuf::from("s3://b/a%20b"));
        assert!(place("file://server/a").is_err() && place("").is_err());
    }
}
