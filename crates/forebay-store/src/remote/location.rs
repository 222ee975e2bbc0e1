//! Where a root lies: the store, the bucket in it, and what its URL says beside that.
//!
//! A path below a root is the root's text, a slash and the object's name: what is shown is what can be copied into other
//! tools. A bucket's names are taken as they are; those of HTTP are unescaped, because `%20` in a URL is a space.

use std::path::{Path, PathBuf};

use forebay_core::{Error, Result};
use percent_encoding::percent_decode_str;
use url::Url;

use super::options::StorageOptions;

/// What is spoken at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    S3,
    Gcs,
    Azure,
    Http,
}

impl Protocol {
    fn of(scheme: &str) -> Option<Self> {
        Some(match scheme {
            "s3" | "s3a" | "s3n" => Self::S3,
            "gs" | "gcs" => Self::Gcs,
            "az" | "azure" | "abfs" | "abfss" | "adl" => Self::Azure,
            "http" | "https" => Self::Http,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::S3 => "S3",
            Self::Gcs => "Google Cloud Storage",
            Self::Azure => "Azure Blob Storage",
            Self::Http => "HTTP",
        }
    }
}

fn scheme_of(root: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = root.split_once("://")?;
    let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    (scheme.len() > 1 && scheme.bytes().all(is_scheme)).then_some((scheme, rest))
}

/// Whether a root is a URL of a store, and not the name of a local directory.
pub fn is_url(root: &Path) -> bool {
    root.to_str().and_then(scheme_of).is_some()
}

/// The directory that a `file://` URL names; `None` for everything else.
pub fn file_path(root: &Path) -> Option<PathBuf> {
    let text = root.to_str().filter(|text| text.starts_with("file://"))?;
    Url::parse(text).ok()?.to_file_path().ok()
}

/// A bucket, container or server, and what the URL of a root said about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) protocol: Protocol,
    /// What every path in it begins with: `s3://bucket`.
    pub(crate) base: String,
    /// Bucket or container; empty for HTTP.
    pub(crate) bucket: String,
    /// Options that stood in the URL.
    pub(crate) options: StorageOptions,
}

impl Location {
    /// The location of a root, and the root without what does not belong into a path: options, user and password.
    pub(crate) fn parse(root: &Path) -> Result<(Self, PathBuf)> {
        // The URL itself may hold a password, so that none of these messages quotes it.
        let text = root.to_str().ok_or_else(|| Error::config("root: expected a URL in UTF-8"))?;
        let known = "s3://, gs://, az://, http://, https:// or file://";
        let (scheme, rest) = scheme_of(text).ok_or_else(|| Error::config(format!("root: expected {known}")))?;
        let protocol = Protocol::of(scheme)
            .ok_or_else(|| Error::config(format!("root: expected {known}, got \"{scheme}://\"")))?;
        if protocol == Protocol::Http {
            return Self::http(text);
        }
        // Object names may hold a `#`, and a `?` only if no option follows it.
        let (place, query) = match rest.rsplit_once('?').filter(|(_, query)| query.contains('=')) {
            Some((place, query)) => (place, Some(query)),
            None => (rest, None),
        };
        let (authority, key) = place.split_once('/').unwrap_or((place, ""));
        let mut options = query.map_or_else(Vec::new, |query| url_options(protocol, query));
        let bucket = match (protocol, authority.split_once('@')) {
            // abfss://container@account.dfs.core.windows.net/path
            (Protocol::Azure, Some((container, host))) => {
                let account = host.split('.').next().unwrap_or(host);
                options.push(("account_name".to_owned(), account.to_owned()));
                container
            }
            (_, Some(_)) => {
                return Err(Error::config(format!("root: expected \"{scheme}://bucket/path\", got an \"@\" in it"))
                    .with_hint("give keys in storage_options, in the environment or by profile"));
            }
            (_, None) => authority,
        };
        if bucket.is_empty() {
            return Err(Error::config(format!("root: expected \"{scheme}://bucket/path\", got no bucket")));
        }
        let base = format!("{scheme}://{authority}");
        let root = join(&base, key);
        let options = StorageOptions::new(options);
        Ok((Self { protocol, base, bucket: bucket.to_owned(), options }, root))
    }

    fn http(text: &str) -> Result<(Self, PathBuf)> {
        let mut url = Url::parse(text).map_err(|error| Error::config(format!("root: expected a URL ({error})")))?;
        if url.query().is_some() {
            return Err(Error::config("root: expected a URL without a query")
                .with_hint("a signed URL is of one object and not of a folder: use the store's own URL and keys"));
        }
        let mut options = Vec::new();
        if !url.username().is_empty() {
            let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
            options.push(("username".to_owned(), plain(url.username())));
            options.push(("password".to_owned(), plain(url.password().unwrap_or_default())));
        }
        let host = url.host_str().unwrap_or_default().to_owned();
        let port = url.port().map_or(String::new(), |port| format!(":{port}"));
        url.set_fragment(None);
        let key = percent_decode_str(url.path()).decode_utf8_lossy().into_owned();
        let base = format!("{}://{host}{port}", url.scheme());
        let root = join(&base, &key);
        let options = StorageOptions::new(options);
        Ok((Self { protocol: Protocol::Http, base, bucket: String::new(), options }, root))
    }

    /// The name of an object, or of a directory without its slash.
    pub(crate) fn key<'a>(&self, path: &'a Path) -> Result<&'a str> {
        let text = path.to_str().ok_or_else(|| Error::config("is not a name in UTF-8, as all names of a store are"))?;
        let key = text.strip_prefix(&self.base).filter(|key| key.is_empty() || key.starts_with('/'));
        let key = key.ok_or_else(|| Error::internal(format!("does not lie in {}", self.base)))?;
        Ok(key.trim_matches('/'))
    }
}

fn join(base: &str, key: &str) -> PathBuf {
    let key = key.trim_matches('/');
    PathBuf::from(if key.is_empty() { base.to_owned() } else { format!("{base}/{key}") })
}

fn url_options(protocol: Protocol, query: &str) -> Vec<(String, String)> {
    // A container's shared access signature is a query by itself.
    if protocol == Protocol::Azure && query.contains("sig=") {
        return vec![("sas_token".to_owned(), query.to_owned())];
    }
    url::form_urlencoded::parse(query.as_bytes()).into_owned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(root: &str) -> (Location, String) {
        let (location, root) = Location::parse(Path::new(root)).unwrap();
        (location, root.to_str().unwrap().to_owned())
    }

    fn options(location: &Location) -> Vec<(&str, &str)> {
        location.options.iter().map(|(name, value)| (name, value.reveal())).collect()
    }

    #[test]
    fn a_root_has_a_bucket_and_a_path_without_options() {
        let (location, root) = parse("s3://bucket/a%20b/train/?endpoint=http://localhost:9000&secret=x");
        assert_eq!((location.base.as_str(), root.as_str()), ("s3://bucket", "s3://bucket/a%20b/train"));
        assert_eq!(location.key(Path::new(&root)).unwrap(), "a%20b/train");
        assert_eq!(location.key(Path::new("s3://bucket/what?.jpg")).unwrap(), "what?.jpg");
        assert_eq!(options(&location)[0], ("endpoint", "http://localhost:9000"));
        assert!(location.key(Path::new("s3://bucket2/x")).is_err());
        assert_eq!(parse("gs://b").1, "gs://b");
    }

    #[test]
    fn containers_name_their_account_and_servers_their_password() {
        let (location, root) = parse("abfss://box@me.dfs.core.windows.net/train");
        assert_eq!((location.bucket.as_str(), root.as_str()), ("box", "abfss://box@me.dfs.core.windows.net/train"));
        assert_eq!(options(&location), [("account_name", "me")]);
        let (location, root) = parse("az://box/train?sv=1&sig=ab%3D");
        assert_eq!((options(&location)[0].1, root.as_str()), ("sv=1&sig=ab%3D", "az://box/train"));
        let (location, root) = parse("https://me:s%40cret@host:8443/my%20data/");
        assert_eq!((location.base.as_str(), root.as_str()), ("https://host:8443", "https://host:8443/my data"));
        assert_eq!(options(&location)[0], ("password", "s@cret"));
        assert!(!format!("{location:?}").contains("s@cret"));
    }

    #[test]
    fn what_is_no_root_is_refused_without_repeating_it() {
        for root in ["s3://", "s3:///x", "ftp://host/x", "https://host/x?X-Amz-Signature=secret", "s3://key:secret@b/x"]
        {
            let error = Location::parse(Path::new(root)).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert_eq!(file_path(Path::new("file:///a%20b/c")), Some(PathBuf::from("/a b/c")));
        assert_eq!([file_path(Path::new("/a")), file_path(Path::new("s3://b/x"))], [None, None]);
        assert!(is_url(Path::new("s3://b")) && !is_url(Path::new("/s3://b")) && !is_url(Path::new("c:/x")));
    }
}
