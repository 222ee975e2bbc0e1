//! The profiles of the AWS command line: `~/.aws/credentials` and `~/.aws/config`, static keys and region only.

use std::path::PathBuf;

use forebay_core::{Error, Result};

/// The files' current content: credentials and configuration. An unreadable file counts as empty.
pub(crate) fn texts() -> [String; 2] {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    [("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")].map(|(variable, name)| {
        let path = std::env::var_os(variable).map_or_else(|| home.join(".aws").join(name), PathBuf::from);
        std::fs::read_to_string(path).unwrap_or_default()
    })
}

/// Settings of a profile, under object_store's names. A profile that is in neither file is an error.
pub(crate) fn settings(profile: &str) -> Result<Vec<(&'static str, String)>> {
    let [credentials, config] = texts();
    let section = if profile == "default" { profile.to_owned() } else { format!("profile {profile}") };
    let (keys, rest) = (read(&credentials, profile), read(&config, &section));
    if keys.is_none() && rest.is_none() {
        return Err(Error::config(format!(
            "profile: expected one of ~/.aws/credentials or ~/.aws/config, got {profile:?}"
        )));
    }
    Ok(rest.into_iter().chain(keys).flatten().collect())
}

fn read(text: &str, section: &str) -> Option<Vec<(&'static str, String)>> {
    let (mut is_inside, mut found) = (false, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_inside = name.trim() == section;
            if is_inside {
                found.get_or_insert_with(Vec::new);
            }
        } else if let (true, Some((name, value))) = (is_inside, line.split_once('=')) {
            let name = match name.trim() {
                "aws_access_key_id" => "access_key_id",
                "aws_secret_access_key" => "secret_access_key",
                "aws_session_token" => "session_token",
                "region" => "region",
                "endpoint_url" => "endpoint",
                _ => continue,
            };
            found.get_or_insert_with(Vec::new).push((name, value.trim().to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_ends_where_the_next_begins() {
        let text =
            "[default]\naws_access_key_id = A\n# x = y\n[ lab ]\naws_secret_access_key=S\noutput = json\n[x]\nregion=r";
        assert_eq!(read(text, "default"), Some(vec![("access_key_id", "A".to_owned())]));
        assert_eq!(read(text, "lab"), Some(vec![("secret_access_key", "S".to_owned())]));
        assert_eq!(read(text, "nobody"), None);
    }
}
