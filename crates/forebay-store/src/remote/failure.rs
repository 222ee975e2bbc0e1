//! Error messages for failed requests, from the response's status or from the reason why there was none. They contain
//! no URL and no secret.

use std::time::Duration;

use forebay_core::{Error, Kind};

use super::connector::{Cause, Note};
use super::location::Protocol;
use super::options::{Secret, scrub};
use super::pagination::{EndlessListing, MAX_IDLE_PAGES};

/// The server that a message is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server<'a> {
    pub(crate) protocol: Protocol,
    pub(crate) secrets: &'a [Secret],
    /// It has answered before, so credentials exist.
    pub(crate) has_answered: bool,
}

/// Addresses of cloud metadata services, which provide a machine's credentials.
const METADATA_HOSTS: [&str; 4] = ["169.254.169.254", "169.254.170.2", "fd00:ec2::254", "metadata.google.internal"];

fn is_metadata_host(host: &str) -> bool {
    METADATA_HOSTS.contains(&host.trim_matches(['[', ']']))
}

impl Server<'_> {
    /// A request failed. `doing` names it, as in "could not be {doing}"; `otherwise` is what the client said.
    pub(crate) fn failed(self, doing: &str, note: &Note, otherwise: &object_store::Error) -> Error {
        let is_error = note.status.is_some_and(|status| !status.is_success());
        match (&note.cause, note.status) {
            (Some(cause), _) => self.unanswered(doing, note, cause),
            (None, Some(_)) if is_error => self.answered(doing, note),
            _ => self.unclear(doing, note, otherwise),
        }
    }

    /// The machine's credentials could not be obtained: there are none, or the service is down.
    fn no_credentials(self, doing: &str, host: &str) -> Error {
        if self.has_answered {
            return Error::new(
                Kind::Unavailable,
                format!("could not be {doing}: this machine's credentials could not be renewed ({host})"),
            )
            .transient()
            .with_hint("the instance metadata service does not answer; this may be temporary");
        }
        Error::new(
            Kind::Denied,
            format!("could not be {doing}: no credentials are configured, and the instance metadata service ({host}) has none"),
        )
        .with_hint(credentials_hint(self.protocol))
    }

    fn answered(self, doing: &str, note: &Note) -> Error {
        if is_metadata_host(&note.host) {
            return self.no_credentials(doing, &note.host);
        }
        let status = note.status.map_or(0, |status| status.as_u16());
        let reason = note.status.and_then(|status| status.canonical_reason()).unwrap_or_default();
        // All of it is the server's own text, which may repeat secrets.
        let clean = |text: &str| scrub(text, self.secrets).chars().take(300).collect::<String>();
        let code = note.code.as_deref().map_or_else(|| reason.to_owned(), clean);
        let said = note.said.as_deref().map_or(String::new(), |said| format!(": {}", clean(said)));
        let id = note.request_id.as_deref().map_or(String::new(), |id| format!(" (request id {})", clean(id)));
        let message = format!("could not be {doing}: {} answered {status} {code}{said}{id}", self.protocol.name());
        let new = |kind| Error::new(kind, message.clone());
        if note.is_throttled() {
            return new(Kind::Unavailable).throttled(note.retry_after).with_hint(
                "the store is throttling: forebay sends fewer requests, and waits as long as the store asks",
            );
        }
        if let Some(server) = &note.redirects_to {
            let message = format!("{message}: it redirects to another server, {}", clean(server));
            return Error::new(Kind::Unavailable, message).with_hint(
                "redirects are followed within one scheme, host and port only, because the next server would get the \
                 credentials: check the endpoint, or use the server it redirects to as the root if you trust it",
            );
        }
        match (status, code.as_str()) {
            (_, "RequestTimeout" | "InternalError" | "OperationTimedOut") => new(Kind::Unavailable).transient(),
            (_, "ExpiredToken" | "TokenRefreshRequired" | "RequestTimeTooSkewed" | "InvalidToken") => {
                new(Kind::Denied).with_hint("the credentials have expired, or this machine's clock is wrong: renew them, or set the clock")
            }
            (404 | 410, _) => new(Kind::NotFound).with_hint(
                "if it was deleted after it was listed, construct the dataset again; otherwise check the bucket's name and \
                 the endpoint",
            ),
            (401 | 403 | 407, _) => new(Kind::Denied).with_hint(credentials_hint(self.protocol)),
            (412 | 416, _) => Error::new(
                Kind::Changed,
                format!("changed while it was read: {} answered {status}{id}", self.protocol.name()),
            ),
            (408 | 425 | 500 | 502 | 504 | 509, _) => new(Kind::Unavailable).transient().with_hint(SERVER_HINT),
            (301 | 302 | 307 | 308 | 400, _) => {
                new(Kind::Unavailable).with_hint("check the region, the endpoint and the name of the bucket")
            }
            _ => new(Kind::Unavailable).with_hint(SERVER_HINT),
        }
    }

    fn unanswered(self, doing: &str, note: &Note, cause: &Cause) -> Error {
        let host = &note.host;
        let failed = |what: String| Error::new(Kind::Unavailable, format!("could not be {doing}: {what}"));
        if is_metadata_host(host) {
            return self.no_credentials(doing, host);
        }
        match cause {
            Cause::Dns => failed(format!("the name {host:?} could not be resolved"))
                .transient()
                .with_hint("check the endpoint's name and this machine's DNS (`getent hosts NAME`)"),
            Cause::Tls(why) => failed(format!("no TLS connection to {host:?}: {}", scrub(why, self.secrets)))
                .with_hint(
                    "the server's certificate is not trusted here, or it does not use TLS: check the endpoint, or install \
                     its authority's certificate",
                ),
            Cause::Refused => failed(format!("{host:?} refused the connection"))
                .transient()
                .with_errno(libc::ECONNREFUSED)
                .with_hint("check that the server is running, and the port"),
            Cause::Reset => failed(format!("{host:?} closed the connection")).transient().with_errno(libc::ECONNRESET),
            Cause::Timeout => Error::new(
                Kind::Timeout,
                format!("could not be {doing}: connecting to {host:?} timed out"),
            )
            .transient()
            .with_hint(
                "check the endpoint and the firewall; raise `storage_options.connect_timeout` if the server is only slow",
            ),
            Cause::Other(why) => failed(format!("the request to {host:?} failed: {}", scrub(why, self.secrets))).transient(),
        }
    }

    /// An error without a failed response: the headers were not understood, or no request was sent.
    fn unclear(self, doing: &str, note: &Note, otherwise: &object_store::Error) -> Error {
        if let object_store::Error::InvalidPath { source } = otherwise {
            return Error::new(Kind::Unavailable, format!("could not be {doing}: {source}")).with_hint(
                "empty components and control characters in object names are not supported: rename the objects",
            );
        }
        let is_asked = note.status.is_some();
        let mut why = otherwise.to_string();
        let mut next = std::error::Error::source(otherwise);
        while let Some(error) = next {
            why = error.to_string();
            next = error.source();
        }
        // The client has no error type for this, only two messages.
        if is_asked && ["non-partial response", "Range request not supported"].iter().any(|said| why.contains(said)) {
            let message = format!("could not be {doing} in part: {} sent the whole object", self.protocol.name());
            return Error::new(Kind::Unavailable, message).transient().with_hint(
                "the server, or a proxy in front of it, ignores the header `Range`, without which samples cannot be read \
                 out of shards: use a server that supports it, or copy the dataset to a disk",
            );
        }
        let error = Error::new(
            Kind::Unavailable,
            format!("could not be {doing}: {}", scrub(&without_urls(&why), self.secrets)),
        );
        // The body broke off while the client itself read it, as for a listing.
        if is_asked { error.transient() } else { error.with_hint(credentials_hint(self.protocol)) }
    }

    /// The server was silent for too long.
    pub(crate) fn silent(self, within: Duration) -> Error {
        let message = format!("did not answer within {:.1} s ({})", within.as_secs_f64(), self.protocol.name());
        Error::new(Kind::Timeout, message).transient()
    }

    /// The body broke off, and could not be resumed.
    pub(crate) fn cut(self, cause: &Cause, have: u64, size: u64) -> Error {
        let why = match cause {
            Cause::Timeout => "no more data arrived in time".to_owned(),
            Cause::Reset => "the connection was closed".to_owned(),
            Cause::Other(why) => scrub(&without_urls(why), self.secrets),
            other => format!("{other:?}"),
        };
        Error::new(Kind::Unavailable, format!("ended early (expected {size} bytes, got {have}): {why}"))
            .transient()
            .with_hint(SERVER_HINT)
    }
}

impl Server<'_> {
    /// The body is longer than announced: which of its bytes are right is unknown.
    pub(crate) fn surplus(self, size: usize) -> Error {
        let message = format!("is longer than announced by {} (expected {size} bytes, got more)", self.protocol.name());
        Error::new(Kind::Unavailable, message).transient().with_hint(SERVER_HINT)
    }

    /// A listing that would never end.
    pub(crate) fn endless(self, endless: EndlessListing) -> Error {
        let name = self.protocol.name();
        let why = match endless {
            EndlessListing::RepeatedToken => format!("{name} returned the same page again"),
            EndlessListing::NoProgress => {
                format!("{name} returned {MAX_IDLE_PAGES} pages in a row without a new name")
            }
        };
        Error::new(Kind::Unavailable, format!("could not be listed: {why}"))
            .with_hint("its listing does not end: list the names in a manifest, or ask the server's operator")
    }

    /// A listing with a name of another directory.
    pub(crate) fn outside_directory(self, key: &str) -> Error {
        let message = format!("could not be listed: {} returned a name outside the directory", self.protocol.name());
        Error::new(Kind::Unavailable, format!("{message}: {key:?}")).with_hint(
            "the server returns names of other directories than the requested one: list the names in a manifest, or ask \
             the server's operator",
        )
    }
}

const SERVER_HINT: &str = "the store is failing: look at its own log; raise `retries` if it recovers by itself";

fn credentials_hint(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::S3 => {
            "give keys by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, by `storage_options.profile=…`, or \
             `storage_options.anon=true` for a public bucket; a missing object looks like this too where listing is not allowed"
        }
        Protocol::Gcs => {
            "give a key by GOOGLE_APPLICATION_CREDENTIALS or `storage_options.service_account_path=…`, or \
             `storage_options.anon=true` for a public bucket"
        }
        Protocol::Azure => {
            "give AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or `storage_options.sas_token=…`, or \
             `storage_options.anon=true` for a public container"
        }
        Protocol::Http => {
            "give `storage_options.username=…` and `storage_options.password=…`, or `storage_options.token=…`"
        }
    }
}

/// A URL may be signed: of text that others wrote, none is kept.
fn without_urls(text: &str) -> String {
    let words = text.split(' ').map(|word| if word.contains("://") { "(URL)" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    fn answered(status: u16, code: &str) -> Error {
        let secrets = [Secret::new("hunter2hunter2")];
        let note = Note {
            status: Some(StatusCode::from_u16(status).unwrap()),
            code: Some(code.to_owned()),
            said: Some("no hunter2hunter2".to_owned()),
            request_id: Some("ID7".to_owned()),
            retry_after: Some(Duration::from_secs(3)),
            ..Note::default()
        };
        let server = Server { protocol: Protocol::S3, secrets: &secrets, has_answered: false };
        server.failed(
            "read",
            &note,
            &object_store::Error::NotImplemented { operation: String::new(), implementer: String::new() },
        )
    }

    #[test]
    fn every_status_has_its_kind() {
        for (status, code, kind, is_transient) in [
            (404, "NoSuchKey", Kind::NotFound, false),
            (403, "AccessDenied", Kind::Denied, false),
            (401, "", Kind::Denied, false),
            (400, "ExpiredToken", Kind::Denied, false),
            (400, "RequestTimeout", Kind::Unavailable, true),
            (412, "PreconditionFailed", Kind::Changed, false),
            (416, "InvalidRange", Kind::Changed, false),
            (429, "", Kind::Unavailable, true),
            (503, "SlowDown", Kind::Unavailable, true),
            (500, "InternalError", Kind::Unavailable, true),
            (400, "Weird", Kind::Unavailable, false),
        ] {
            let error = answered(status, code);
            assert_eq!((error.kind(), error.is_transient()), (kind, is_transient), "{status} {code}");
            assert!(!format!("{error} {} {error:?}", error.hint()).contains("hunter2"), "{error:?}");
            assert_eq!(error.is_throttled(), matches!(status, 429 | 503));
        }
        let error = answered(503, "SlowDown");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(3)));
        assert_eq!(error.message(), "could not be read: S3 answered 503 SlowDown: no *** (request id ID7)");
    }

    #[test]
    fn keys_that_cannot_be_renewed_may_come_yet_and_an_answer_about_them_is_not_about_the_object() {
        for (has_answered, kind, is_transient) in [(false, Kind::Denied, false), (true, Kind::Unavailable, true)] {
            let server = Server { protocol: Protocol::S3, secrets: &[], has_answered };
            let asked = |host: &str, cause: Option<Cause>| {
                let status = cause.is_none().then_some(StatusCode::NOT_FOUND);
                let note = Note { host: host.to_owned(), status, cause, ..Note::default() };
                let otherwise =
                    object_store::Error::NotImplemented { operation: String::new(), implementer: String::new() };
                server.failed("read", &note, &otherwise)
            };
            for error in [asked("169.254.169.254", None), asked("169.254.169.254", Some(Cause::Timeout))] {
                assert_eq!((error.kind(), error.is_transient()), (kind, is_transient), "{error}");
            }
            assert_eq!(asked("metadata.example", None).kind(), Kind::NotFound, "a server of that name");
        }
    }

    #[test]
    fn why_there_was_no_answer_is_said() {
        let server = Server { protocol: Protocol::S3, secrets: &[], has_answered: false };
        let said = |cause| {
            let note = Note { host: "s3.example".to_owned(), cause: Some(cause), ..Note::default() };
            let error = server.failed(
                "read",
                &note,
                &object_store::Error::NotImplemented { operation: String::new(), implementer: String::new() },
            );
            (error.kind(), error.is_transient(), error.message().to_owned())
        };
        assert_eq!(
            said(Cause::Dns),
            (Kind::Unavailable, true, "could not be read: the name \"s3.example\" could not be resolved".into())
        );
        assert!(!said(Cause::Tls("invalid peer certificate: UnknownIssuer".into())).1);
        assert_eq!(said(Cause::Timeout).0, Kind::Timeout);
        assert!(said(Cause::Refused).1 && said(Cause::Reset).1);
        assert_eq!(without_urls("Error performing GET http://h/x?sig=1 in 1s"), "Error performing GET (URL) in 1s");
    }
}
