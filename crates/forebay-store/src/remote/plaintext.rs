//! Warnings about connections without encryption.

use url::{Host, Url};

/// The warning for a user whose credentials would go to `server` unencrypted; `None` if they do not, or stay on this
/// machine.
pub(super) fn warning(server: &str, has_credentials: bool) -> Option<String> {
    let url = Url::parse(server).ok().filter(|url| has_credentials && url.scheme() == "http")?;
    let is_loopback = match url.host()? {
        Host::Domain(name) => name == "localhost" || name.ends_with(".localhost"),
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.is_loopback(),
    };
    let server = url.origin().ascii_serialization();
    (!is_loopback).then(|| {
        format!(
            "connection to {server} is not encrypted: credentials and data are sent in plain text; use https:// if possible"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_credentials_that_leave_the_machine_in_the_clear_are_warned_of() {
        let said = warning("http://me:hunter2hunter2@store.example:9000/x", true).unwrap();
        assert!(said.starts_with("connection to http://store.example:9000 is not encrypted"), "{said}");
        assert_eq!(warning("http://store.example:9000", false), None);
        for server in ["https://store.example", "http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:9", ""] {
            assert_eq!(warning(server, true), None, "{server}");
        }
        assert_eq!(warning("http://localhost:9000", true), None);
        assert!(warning("http://127.0.0.1.evil.example", true).is_some());
        assert!(warning("http://10.0.0.1", true).is_some());
    }
}
