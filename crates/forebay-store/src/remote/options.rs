//! Settings of a store, under their fsspec and object_store names, and which of them are secret.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use forebay_core::{Error, Result};

use super::location::Protocol;

/// A value that is never shown.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Settings of a store as the user gave them: names and values. `Debug` shows the names only.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct StorageOptions(Vec<(String, Secret)>);

impl StorageOptions {
    /// From names and values.
    pub fn new(options: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut options: Vec<_> =
            options.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), Secret::new(value))).collect();
        options.sort_by(|one, other| one.0.cmp(&other.0));
        Self(options)
    }

    /// These settings, and those of `weaker` that are not among them.
    pub(crate) fn over(&self, weaker: &Self) -> Self {
        let mut options = weaker.clone();
        options.0.retain(|(name, _)| !self.0.iter().any(|(own, _)| own == name));
        options.0.extend(self.0.iter().cloned());
        options
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Secret)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Secret> {
        let position = self.0.iter().position(|(own, _)| own == name)?;
        Some(self.0.remove(position).1)
    }

    pub(crate) fn take_bool(&mut self, name: &str) -> Result<Option<bool>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        parse_bool(name, value.reveal()).map(Some)
    }

    pub(crate) fn take_seconds(&mut self, name: &str) -> Result<Option<Duration>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let text = value.reveal().trim().trim_end_matches('s');
        let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        match seconds.filter(|wait| !wait.is_zero()) {
            Some(wait) => Ok(Some(wait)),
            None => Err(Error::config(format!("storage_options[{name:?}]: expected seconds, got {text:?}"))),
        }
    }
}

impl fmt::Debug for StorageOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// The value of a setting that is kept in a file: its text without the final line break.
pub fn read_setting(path: &Path) -> Result<String> {
    /// Larger than any key or certificate.
    const MAX_BYTES: u64 = 1 << 20;
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
    let bytes = read.map_err(|error| Error::io("read", error))?;
    if bytes as u64 > MAX_BYTES {
        return Err(Error::config(format!("is too large for a setting (expected at most {MAX_BYTES} bytes)")));
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

pub(crate) fn parse_bool(name: &str, text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(Error::config(format!("storage_options[{name:?}]: expected true or false, got {text:?}"))),
    }
}

/// The object_store name and value of an option given under its fsspec name.
pub(crate) fn translate(protocol: Protocol, name: &str, value: &str) -> Result<Option<(&'static str, String)>> {
    let same = |name: &'static str| Ok(Some((name, value.to_owned())));
    let flag = |name: &'static str, is_set: bool| Ok(Some((name, is_set.to_string())));
    match (protocol, name) {
        (Protocol::S3 | Protocol::Gcs | Protocol::Azure, "anon" | "anonymous" | "no_sign_request") => {
            flag("skip_signature", parse_bool(name, value)?)
        }
        (_, "use_ssl") => flag("allow_http", !parse_bool(name, value)?),
        (Protocol::S3, "key") => same("access_key_id"),
        (Protocol::S3, "secret") => same("secret_access_key"),
        (Protocol::S3, "region_name") => same("region"),
        (Protocol::S3, "requester_pays") => flag("request_payer", parse_bool(name, value)?),
        (Protocol::S3, "path_style") => flag("virtual_hosted_style_request", !parse_bool(name, value)?),
        (Protocol::S3, "addressing_style") => flag("virtual_hosted_style_request", value == "virtual"),
        (Protocol::Gcs, "token") if value == "anon" => flag("skip_signature", true),
        (Protocol::Gcs, "token") => same("service_account_path"),
        (Protocol::Gcs, "endpoint_url" | "endpoint") => same("base_url"),
        (Protocol::Azure, "sas_token") => same("sas_key"),
        (Protocol::Azure, "account_host" | "endpoint_url") => same("endpoint"),
        _ => Ok(None),
    }
}

/// Whether the value of an option must never appear in output.
pub(crate) fn is_secret(name: &str) -> bool {
    ["secret", "token", "key", "password", "sas", "credential"].iter().any(|word| name.contains(word))
}

/// Replaces secrets in text from outside.
pub(crate) fn scrub(text: &str, secrets: &[Secret]) -> String {
    secrets
        .iter()
        .map(Secret::reveal)
        // A shorter one would match inside ordinary words; secrets are longer.
        .filter(|secret| secret.len() >= 6)
        .fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_shown_by_name_only() {
        let options = StorageOptions::new([("secret".to_owned(), "hunter2hunter2".to_owned())]);
        assert_eq!(format!("{options:?}"), "{\"secret\"}");
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "***");
        assert_eq!(scrub("key hunter2hunter2!", &[Secret::new("hunter2hunter2")]), "key ***!");
    }

    #[test]
    fn what_is_given_goes_before_what_the_url_says() {
        let given = StorageOptions::new([("region".to_owned(), "a".to_owned())]);
        let url = StorageOptions::new([("region", "b"), ("anon", "true")].map(|(a, b)| (a.to_owned(), b.to_owned())));
        let both = given.over(&url);
        let values: Vec<_> = both.iter().map(|(name, value)| (name, value.reveal())).collect();
        assert_eq!(values, [("anon", "true"), ("region", "a")]);
    }

    #[test]
    fn names_of_fsspec_are_understood() {
        let translated = |protocol, name, value| translate(protocol, name, value).unwrap();
        assert_eq!(translated(Protocol::S3, "anon", "True"), Some(("skip_signature", "true".to_owned())));
        assert_eq!(translated(Protocol::S3, "path_style", "1"), Some(("virtual_hosted_style_request", "false".into())));
        assert_eq!(translated(Protocol::Gcs, "token", "anon"), Some(("skip_signature", "true".to_owned())));
        assert_eq!(translated(Protocol::S3, "region", "x"), None);
        assert!(translate(Protocol::S3, "anon", "perhaps").is_err());
        let mut seconds = StorageOptions::new([("read_timeout".to_owned(), "1.5s".to_owned())]);
        assert_eq!(seconds.take_seconds("read_timeout").unwrap(), Some(Duration::from_millis(1500)));
    }
}
