//! Parses the URL of a root: the store, the bucket, and the options in the URL.
//!
//! A path below a root is the root's text, a slash and the object's name, so that paths in messages can be pasted into
//! other tools. Names in a bucket are used as they are; those of HTTP are percent-decoded, because `%20` in a URL is a
//! space.

use std::path::{Path, PathBuf};

use forebay_core::{Error, Result};
use percent_encoding::percent_decode_str;
use url::Url;

use super::options::StorageOptions;

/// The protocol of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Amazon S3 and compatible servers.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
    /// Plain HTTP, with or without TLS.
    Http,
}

/// The schemes that a root may have, and their protocols; `None` for a local directory. Those that messages name come
/// first.
const SCHEMES: [(&str, Option<Protocol>); 13] = [
    ("s3", Some(Protocol::S3)),
    ("gs", Some(Protocol::Gcs)),
    ("az", Some(Protocol::Azure)),
    ("http", Some(Protocol::Http)),
    ("https", Some(Protocol::Http)),
    ("file", None),
    // Other tools' names for the same protocols.
    ("s3a", Some(Protocol::S3)),
    ("s3n", Some(Protocol::S3)),
    ("gcs", Some(Protocol::Gcs)),
    ("azure", Some(Protocol::Azure)),
    ("abfs", Some(Protocol::Azure)),
    ("abfss", Some(Protocol::Azure)),
    ("adl", Some(Protocol::Azure)),
];
const KNOWN: &str = "s3://, gs://, az://, http://, https:// or file://";

impl Protocol {
    fn of(scheme: &str) -> Option<Self> {
        SCHEMES.iter().find(|(name, _)| *name == scheme)?.1
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

/// Whether a root is a URL rather than a local directory. An unknown scheme is refused when the root is opened.
pub fn is_url(root: &Path) -> bool {
    root.to_str().and_then(scheme_of).is_some()
}

/// The protocol of a root; `None` for a local directory or an unknown scheme.
pub fn protocol_of(root: &Path) -> Option<Protocol> {
    let (scheme, _) = root.to_str().and_then(scheme_of)?;
    Protocol::of(scheme)
}

/// The directory of a `file://` URL; `None` for everything else.
pub fn file_path(root: &Path) -> Option<PathBuf> {
    let text = root.to_str().filter(|text| text.starts_with("file://"))?;
    Url::parse(text).ok()?.to_file_path().ok()
}

/// Whether both are local directories, or are on one server: for HTTP the same scheme, host and port; for a store the
/// same bucket, and for Azure the same account. Credentials for one may then be sent to the other.
pub fn is_same_origin(one: &Path, other: &Path) -> bool {
    match (is_url(one), is_url(other)) {
        (false, false) => true,
        (true, true) => match (Location::parse(one), Location::parse(other)) {
            (Ok((one, _)), Ok((other, _))) => one.origin() == other.origin(),
            _ => false,
        },
        _ => false,
    }
}

/// A bucket, container or server, with the options in the root's URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) protocol: Protocol,
    /// The prefix of every path in it: `s3://bucket`.
    pub(crate) base: String,
    /// Bucket or container; empty for HTTP.
    pub(crate) bucket: String,
    /// Options in the URL.
    pub(crate) options: StorageOptions,
}

impl Location {
    /// Parses a root. Returns its location, and the root without the parts that do not belong in a path: options, user
    /// and password.
    pub(crate) fn parse(root: &Path) -> Result<(Self, PathBuf)> {
        // The URL may contain a password, so these messages do not quote it.
        let text = root.to_str().ok_or_else(|| Error::config("root: expected a URL in UTF-8"))?;
        let (scheme, rest) = scheme_of(text).ok_or_else(|| Error::config(format!("root: expected {KNOWN}")))?;
        let protocol = Protocol::of(scheme)
            .ok_or_else(|| Error::config(format!("root: expected {KNOWN}, got \"{scheme}://\"")))?;
        if protocol == Protocol::Http {
            return Self::http(text);
        }
        // Object names may contain a `#`, and a `?` if no option follows it.
        let (place, query) = match rest.rsplit_once('?').filter(|(_, query)| query.contains('=')) {
            Some((place, query)) => (place, Some(query)),
            None => (rest, None),
        };
        let (authority, key) = place.split_once('/').unwrap_or((place, ""));
        let mut options = query.map_or_else(|| Ok(Vec::new()), |query| url_options(protocol, query))?;
        let bucket = match (protocol, authority.split_once('@')) {
            // abfss://container@account.dfs.core.windows.net/path
            (Protocol::Azure, Some((container, host))) => {
                let account = host.split('.').next().unwrap_or(host);
                options.push(checked("account_name".to_owned(), account.to_owned())?);
                container
            }
            (_, Some(_)) => {
                return Err(Error::config(format!("root: expected \"{scheme}://bucket/path\", got an \"@\" in it"))
                    .with_hint("set credentials in `storage_options`, in the environment or by profile"));
            }
            (_, None) => authority,
        };
        if bucket.is_empty() {
            return Err(Error::config(format!("root: expected \"{scheme}://bucket/path\", got no bucket")));
        }
        // It becomes part of a host name or a path: it must contain no URL delimiters.
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._$:".contains(&byte) || byte >= 0x80;
        if !bucket.bytes().all(is_allowed) {
            return Err(Error::config(format!(
                "root: expected \"{scheme}://bucket/path\", got a bucket with other characters than a-z, 0-9, \".\", \"-\""
            )));
        }
        let base = format!("{scheme}://{authority}");
        let root = join(&base, key);
        let options = StorageOptions::new(options);
        Ok((Self { protocol, base, bucket: bucket.to_owned(), options }, root))
    }

    fn http(text: &str) -> Result<(Self, PathBuf)> {
        let mut url = Url::parse(text).map_err(|error| Error::config(format!("root: expected a URL ({error})")))?;
        if url.query().is_some() {
            return Err(Error::config("root: expected a URL without a query").with_hint(
                "a signed URL is for one object, not for a folder: use the store's own URL and credentials",
            ));
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

    fn origin(&self) -> (Protocol, &str, Option<&str>) {
        let account =
            self.options.iter().find(|(name, _)| *name == "account_name").map(|(_, account)| account.reveal());
        (self.protocol, if self.protocol == Protocol::Http { &self.base } else { &self.bucket }, account)
    }

    /// The name of an object, or of a directory without its slash.
    pub(crate) fn key<'a>(&self, path: &'a Path) -> Result<&'a str> {
        let text = path.to_str().ok_or_else(|| Error::config("is not UTF-8, which names of objects must be"))?;
        let key = text.strip_prefix(&self.base).filter(|key| key.is_empty() || key.starts_with('/'));
        let key = key.ok_or_else(|| Error::internal(format!("is not in {}", self.base)))?;
        Ok(key.trim_matches('/'))
    }
}

fn join(base: &str, key: &str) -> PathBuf {
    let key = key.trim_matches('/');
    PathBuf::from(if key.is_empty() { base.to_owned() } else { format!("{base}/{key}") })
}

/// Options allowed in a URL: credentials, and the bucket's location. Options that choose the server that gets the
/// credentials, a proxy, or how well the server is verified are not: URLs are copied from elsewhere more easily than
/// settings.
fn is_allowed(protocol: Protocol, name: &str, value: &str) -> bool {
    let prefix = match protocol {
        Protocol::S3 => "aws_",
        Protocol::Gcs => "google_",
        Protocol::Azure => "azure_storage_",
        Protocol::Http => return false,
    };
    if matches!(name, "anon" | "anonymous" | "no_sign_request" | "connect_timeout" | "read_timeout" | "timeout") {
        return true;
    }
    match (protocol, name.strip_prefix(prefix).unwrap_or(name)) {
        (_, "skip_signature") => true,
        (
            Protocol::S3,
            "key"
            | "access_key_id"
            | "secret"
            | "secret_access_key"
            | "token"
            | "session_token"
            | "profile"
            | "region"
            | "region_name"
            | "default_region"
            | "requester_pays"
            | "request_payer"
            | "path_style"
            | "addressing_style"
            | "virtual_hosted_style_request",
        ) => true,
        // Any other value is the name of a file.
        (Protocol::Gcs, "token") => value == "anon",
        (Protocol::Azure, "account_name" | "account_key" | "sas_token" | "sas_key") => true,
        _ => false,
    }
}

/// Checks an option of a URL. Some become part of a host name, and must not end it early.
fn checked(name: String, value: String) -> Result<(String, String)> {
    let is_part_of_host = name.contains("region") || name.contains("account_name");
    if is_part_of_host && !value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(Error::config(format!("root: expected letters, digits and \"-\" as {name:?} in the URL")));
    }
    Ok((name, value))
}

fn url_options(protocol: Protocol, query: &str) -> Result<Vec<(String, String)>> {
    // A container's shared access signature is a query string of its own.
    if protocol == Protocol::Azure && query.contains("sig=") {
        return Ok(vec![("sas_token".to_owned(), query.to_owned())]);
    }
    let option = |(name, value): (String, String)| {
        let name = name.to_ascii_lowercase();
        if is_allowed(protocol, &name, &value) {
            return checked(name, value);
        }
        // An unknown name may be part of a key.
        let shown = if name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') { &name } else { "…" };
        Err(Error::config(format!("root: expected no option {shown:?} in the query of the URL")).with_hint(format!(
            "a URL may have keys, a region and timeouts; give this one as `storage_options.{shown}=…`, or by \
             the store's variable of the environment"
        )))
    };
    url::form_urlencoded::parse(query.as_bytes()).into_owned().map(option).collect()
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
        let (location, root) = parse("s3://bucket/a%20b/train/?region=eu-1&secret=x");
        assert_eq!((location.base.as_str(), root.as_str()), ("s3://bucket", "s3://bucket/a%20b/train"));
        assert_eq!(location.key(Path::new(&root)).unwrap(), "a%20b/train");
        assert_eq!(location.key(Path::new("s3://bucket/what?.jpg")).unwrap(), "what?.jpg");
        assert_eq!(options(&location), [("region", "eu-1"), ("secret", "x")]);
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
    fn an_origin_is_a_server_a_bucket_or_this_machine() {
        let is_same = |one: &str, other: &str| is_same_origin(Path::new(one), Path::new(other));
        for (one, other) in [
            ("/a/m.parquet", "/b"),
            ("s3://bucket/m.parquet", "s3a://bucket/train"),
            ("https://host/m.parquet", "https://HOST:443/train"),
            ("https://me:secret@host/m.parquet", "https://host/train"),
            ("abfss://box@me.dfs.core.windows.net/m", "abfss://box@me.dfs.core.windows.net/train"),
        ] {
            assert!(is_same(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("/a/m.parquet", "s3://bucket/train"),
            ("s3://bucket/m.parquet", "/data"),
            ("s3://bucket/m.parquet", "s3://bucket2/train"),
            ("s3://bucket/m.parquet", "gs://bucket/train"),
            ("https://host/m.parquet", "http://host/train"),
            ("https://host/m.parquet", "https://host:8443/train"),
            ("https://host/m.parquet", "https://host.evil/train"),
            ("https://host/m.parquet", "https://host@evil/train"),
            ("abfss://box@me.dfs.core.windows.net/m", "abfss://box@you.dfs.core.windows.net/train"),
            ("abfss://box@me.dfs.core.windows.net/m", "abfss://bin@me.dfs.core.windows.net/train"),
            ("s3://bucket/m.parquet", "ftp://bucket/train"),
        ] {
            assert!(!is_same(one, other), "{one} {other}");
        }
    }

    #[test]
    fn a_url_does_not_choose_the_server_or_weaken_the_client() {
        for name in [
            "endpoint",
            "endpoint_url",
            "AWS_ENDPOINT_URL",
            "aws_endpoint_url_s3",
            "endpoint_url_sts",
            "use_ssl",
            "allow_http",
            "allow_invalid_certificates",
            "aws_allow_invalid_certificates",
            "disable_system_certificates",
            "proxy_url",
            "proxy_ca_certificate",
            "metadata_endpoint",
            "container_credentials_full_uri",
            "web_identity_token_file",
            "verify_checksums",
            "base_url",
            "service_account_path",
            "authority_host",
            "msi_endpoint",
            "account_host",
            "use_emulator",
            "bucket",
            "user_agent",
        ] {
            for root in ["s3://bucket/x", "gs://bucket/x", "az://box/x"] {
                let error = Location::parse(Path::new(&format!("{root}?{name}=hunter2"))).unwrap_err();
                assert!(error.hint().contains("storage_options"), "{error} {}", error.hint());
                assert!(!format!("{error} {}", error.hint()).contains("hunter2"), "{error}");
            }
        }
        let error = Location::parse(Path::new("s3://bucket/x?endpoint_url=http://h")).unwrap_err();
        assert_eq!(error.message(), "root: expected no option \"endpoint_url\" in the query of the URL");
        assert!(error.hint().contains("`storage_options.endpoint_url=…`"), "{}", error.hint());
    }

    #[test]
    fn no_part_of_a_root_makes_another_host_of_the_stores_own() {
        for root in [
            "s3://evil.example%23/x",
            "s3://evil.example#/x",
            "s3://evil.example:80%2f/x",
            "s3://b\\c/x",
            "s3://b c/x",
            "s3://bucket/x?region=evil.example/",
            "s3://bucket/x?aws_default_region=a.b",
            "az://box/x?account_name=evil.example%23",
            "abfss://box@evil#.dfs.core.windows.net/x",
        ] {
            assert!(Location::parse(Path::new(root)).is_err(), "{root}");
        }
        for root in ["s3://my-bucket.v1_x/x", "az://$web/x", "gs://example.com:bucket/x"] {
            assert!(Location::parse(Path::new(root)).is_ok(), "{root}");
        }
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

    #[test]
    fn a_scheme_is_known_by_one_list() {
        let all: Vec<_> = SCHEMES.iter().map(|(name, _)| format!("{name}://")).collect();
        assert_eq!(format!("{} or {}", all[..5].join(", "), all[5]), KNOWN);
        for (name, protocol) in SCHEMES {
            let root = PathBuf::from(format!("{name}://bucket/train"));
            assert!(is_url(&root) && protocol_of(&root) == protocol, "{name}");
            let opened = Location::parse(&root).map(|(location, _)| location.protocol);
            assert_eq!(opened.ok(), protocol, "{name}");
        }
        assert_eq!(["/s3", "ftp://host/x", "s3:/b"].map(|root| protocol_of(Path::new(root))), [None; 3]);
    }
}
