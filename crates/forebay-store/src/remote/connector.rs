//! The HTTP layer: every request passes here and is counted, and response metadata is recorded for the call. Nothing is
//! retried here.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http::header::CONTENT_RANGE;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use parking_lot::{Mutex, MutexGuard};
use url::Url;

use super::invalid_names::remove_invalid;
use super::options::{Secret, scrub};
use super::transport;
use super::verify::Checksum;

/// How much of an error's body is read: longer ones are HTML pages for browsers.
const MAX_ERROR_BYTES: usize = 16 << 10;
/// Limit for a page of a listing: five thousand entries, Azure's maximum, with 12 KB each.
const MAX_PAGE_BYTES: usize = 64 << 20;

tokio::task_local! {
    /// The note of the call that the current task works for.
    pub(crate) static NOTE: SharedNote;
}

/// A note that the task writes and the calling thread reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedNote(Arc<Mutex<Note>>);

impl SharedNote {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Note> {
        self.0.lock()
    }
}

/// Metadata of a call's last request and its response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Note {
    /// Requests of the call so far.
    pub(crate) requests: u64,
    /// The host of the request.
    pub(crate) host: String,
    pub(crate) status: Option<StatusCode>,
    pub(crate) request_id: Option<String>,
    pub(crate) retry_after: Option<Duration>,
    /// The server's error code: `SlowDown`, `AccessDenied` …
    pub(crate) code: Option<String>,
    /// The server's error message.
    pub(crate) said: Option<String>,
    pub(crate) checksum: Option<Checksum>,
    /// The target of a redirect: scheme, host and port. The rest may be signed.
    pub(crate) redirects_to: Option<String>,
    /// Why there was no response.
    pub(crate) cause: Option<Cause>,
    /// Responses are pages from which invalid names are removed, and these are the names.
    pub(crate) filters_names: bool,
    /// The response is a page of a listing, which the client buffers as a whole.
    pub(crate) is_page: bool,
    pub(crate) invalid: Vec<String>,
}

/// Why there was no response, or why it broke off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Dns,
    Tls(String),
    Refused,
    Reset,
    Timeout,
    Other(String),
}

impl Cause {
    /// The first known cause in an error's chain of sources.
    pub(crate) fn of(error: &(dyn StdError + 'static)) -> Self {
        let mut last = String::new();
        let mut next = Some(error);
        let mut found = None;
        while let Some(error) = next {
            last = error.to_string();
            let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
            let lower = last.to_ascii_lowercase();
            let seen = match kind {
                Some(io::ErrorKind::ConnectionRefused) => Some(Self::Refused),
                Some(
                    io::ErrorKind::ConnectionReset
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::UnexpectedEof,
                ) => Some(Self::Reset),
                Some(io::ErrorKind::TimedOut) => Some(Self::Timeout),
                _ if lower.contains("dns error") || lower.contains("lookup address") => Some(Self::Dns),
                _ if lower.contains("certificate") || lower.contains("tls") || lower.contains("handshake") => {
                    Some(Self::Tls(last.clone()))
                }
                _ if lower.contains("connection closed before") || lower.contains("incomplete message") => {
                    Some(Self::Reset)
                }
                _ if lower.contains("timed out") => Some(Self::Timeout),
                _ => None,
            };
            found = match (seen, found) {
                // The innermost TLS error says why.
                (Some(Self::Tls(text)), _) => Some(Self::Tls(text)),
                (Some(seen), None) => Some(seen),
                (_, found) => found,
            };
            next = error.source();
        }
        found.unwrap_or(Self::Other(last))
    }
}

/// Creates clients whose requests pass through this module.
#[derive(Debug)]
pub(crate) struct Connector {
    /// Headers of signed requests are set by the signer; setting them here would add them to other requests as well.
    pub(crate) are_headers_signed: bool,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let headers = options.get_default_headers().filter(|_| !self.are_headers_signed).cloned().unwrap_or_default();
        Ok(HttpClient::new(RecordingService(HttpClient::new(transport::client(options, headers)?))))
    }
}

#[derive(Debug)]
struct RecordingService(HttpClient);

#[async_trait]
impl HttpService for RecordingService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let host = request.uri().host().unwrap_or_default().to_owned();
        let asked = request.uri().to_string();
        let sent = Sent::of(request.headers());
        let is_whole = [Method::GET, Method::HEAD, Method::PUT].contains(request.method());
        note(|note| {
            let (filters_names, is_page) = (note.filters_names, note.is_page);
            *note = Note { requests: note.requests + 1, host, filters_names, is_page, ..Note::default() };
        });
        let response = self.0.execute(request).await.inspect_err(|error| {
            note(|note| note.cause = Some(Cause::of(error)));
        })?;
        let status = response.status();
        note(|note| note.head(status, response.headers(), is_whole));
        if status.is_redirection() {
            note(|note| note.redirects_to = redirects_to(&asked, response.headers()));
        }
        note(|note| sent.clear(note));
        let (filters_names, is_page) = NOTE.try_with(|note| note.lock().kind()).unwrap_or_default();
        if status.is_success() && !is_page {
            return Ok(with_sane_range(response));
        }
        let (parts, body) = response.into_parts();
        if !status.is_success() {
            let (body, _) = beginning(body, MAX_ERROR_BYTES).await?;
            note(|note| {
                note.body(&body);
                sent.clear(note);
            });
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)));
        }
        let (mut body, is_whole) = beginning(body, MAX_PAGE_BYTES).await?;
        if !is_whole {
            let what = format!("a page of the listing is larger than {} MiB", MAX_PAGE_BYTES >> 20);
            note(|note| note.cause = Some(Cause::Other(what.clone())));
            return Err(HttpError::new(HttpErrorKind::Decode, io::Error::other(what)));
        }
        if filters_names && let Some((page, invalid)) = remove_invalid(&body) {
            body = page.into();
            note(|note| note.invalid = invalid);
        }
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)))
    }
}

/// Drops a `Content-Range` that no object can have: the client adds to its end, which would overflow.
fn with_sane_range(mut response: HttpResponse) -> HttpResponse {
    let end = |value: &HeaderValue| value.to_str().ok()?.split(['-', '/']).nth(1)?.trim().parse().ok();
    if response.headers().get(CONTENT_RANGE).is_some_and(|value| end(value).is_none_or(|end: u64| end == u64::MAX)) {
        response.headers_mut().remove(CONTENT_RANGE);
    }
    response
}

/// The credentials in a request's headers. Some are known only here: the client fetches tokens by itself.
struct Sent(Vec<HeaderValue>);

impl Sent {
    fn of(headers: &HeaderMap) -> Self {
        let names = ["authorization", "x-amz-security-token", "x-amz-server-side-encryption-customer-key"];
        Self(names.iter().filter_map(|name| headers.get(*name).cloned()).collect())
    }

    /// Removes them from the server's messages, which may repeat them.
    fn clear(&self, note: &mut Note) {
        // A header has several words; the short ones are not secrets.
        let texts = self.0.iter().filter_map(|value| value.to_str().ok());
        let words = texts.flat_map(|text| text.split([' ', ',', '='])).filter(|word| word.len() >= 12);
        let secrets: Vec<_> = words.map(Secret::new).collect();
        for text in [&mut note.code, &mut note.said, &mut note.request_id, &mut note.redirects_to].into_iter().flatten()
        {
            *text = scrub(text, &secrets);
        }
    }
}

/// The server that a response redirects to, if it is another one.
fn redirects_to(asked: &str, headers: &HeaderMap) -> Option<String> {
    let asked = Url::parse(asked).ok()?;
    let next = asked.join(headers.get(http::header::LOCATION)?.to_str().ok()?).ok()?;
    (!transport::is_same_origin(&asked, &next)).then(|| next.origin().ascii_serialization())
}

/// The first `max_bytes` of a body, and whether that is all of it: a body may never end.
async fn beginning(body: HttpResponseBody, max_bytes: usize) -> Result<(Bytes, bool), HttpError> {
    let mut stream = body.bytes_stream();
    let mut begun = BytesMut::new();
    while begun.len() <= max_bytes
        && let Some(piece) = stream.next().await
    {
        begun.extend_from_slice(&piece?);
    }
    let is_whole = begun.len() <= max_bytes;
    begun.truncate(max_bytes);
    Ok((begun.freeze(), is_whole))
}

/// Writes to the note of the current call. Requests outside a call, such as background credential renewal, have none.
pub(crate) fn note(write: impl FnOnce(&mut Note)) {
    let _noted = NOTE.try_with(|note| write(&mut note.lock()));
}

impl Note {
    /// Whether names are filtered out of the response, and whether it is a page.
    fn kind(&self) -> (bool, bool) {
        (self.filters_names, self.is_page)
    }

    fn head(&mut self, status: StatusCode, headers: &HeaderMap, is_whole: bool) {
        let get = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let ids = ["x-amz-request-id", "x-ms-request-id", "x-guploader-uploadid", "x-request-id"];
        self.status = Some(status);
        self.request_id = ids.iter().find_map(|name| get(name)).map(str::to_owned);
        self.retry_after = get("retry-after").and_then(|text| retry_after(text, SystemTime::now()));
        // A checksum applies only to a whole object.
        let is_whole = is_whole && status.is_success() && status != StatusCode::PARTIAL_CONTENT;
        self.checksum = is_whole.then(|| Checksum::of(headers)).flatten();
    }

    fn body(&mut self, body: &[u8]) {
        let text = String::from_utf8_lossy(body);
        let between = |start: &str, end: &str| {
            let found = text.split_once(start)?.1.split_once(end)?.0;
            // Azure puts time and request id into further lines; S3 has the signed string in other elements.
            let line = found.lines().next().unwrap_or_default().trim();
            // Not truncated yet: a truncated secret would not be recognised.
            (!line.is_empty()).then(|| line.to_owned())
        };
        self.code = between("<Code>", "</Code>");
        self.said = between("<Message>", "</Message>").or_else(|| between("\"message\": \"", "\""));
    }

    /// Whether the server asks for fewer requests.
    pub(crate) fn is_throttled(&self) -> bool {
        let codes = ["SlowDown", "RequestLimitExceeded", "ServerBusy", "TooManyRequests", "Throttling"];
        matches!(self.status.map(|status| status.as_u16()), Some(429 | 503))
            || self.code.as_deref().is_some_and(|code| codes.iter().any(|known| code.starts_with(known)))
    }
}

/// Parses seconds, or a date.
fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    // Wed, 21 Oct 2015 07:28:00 GMT
    let mut fields = text.split([' ', ':']).skip(1);
    let day: i64 = fields.next()?.parse().ok()?;
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = fields.next().and_then(|name| months.iter().position(|month| *month == name))? as i64 + 1;
    let mut number = || fields.next()?.parse::<i64>().ok();
    let (year, hour, minute, second) = (number()?, number()?, number()?, number()?);
    // Days since 1970 in the proleptic Gregorian calendar, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (153 * month + 2) / 5 + day
            - 719_469;
    let at = Duration::from_secs(u64::try_from(((days * 24 + hour) * 60 + minute) * 60 + second).ok()?);
    Some((SystemTime::UNIX_EPOCH + at).duration_since(now).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_470);
        let after = |text| retry_after(text, now);
        assert_eq!(after("120"), Some(Duration::from_secs(120)));
        assert_eq!(after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::from_secs(10)));
        assert_eq!(after("Wed, 21 Oct 2015 07:27:00 GMT"), Some(Duration::ZERO), "over already");
        assert_eq!(after("Thu, 29 Feb 2024 00:00:00 GMT"), Some(Duration::from_secs(1_709_164_800 - 1_445_412_470)));
        assert_eq!([after("soon"), after("-1"), after("")], [None, None, None]);
    }

    #[test]
    fn of_a_servers_page_only_its_code_and_sentence_are_kept() {
        let mut note = Note { status: Some(StatusCode::FORBIDDEN), ..Note::default() };
        note.body(
            b"<Error><Code>SignatureDoesNotMatch</Code><Message>no\nx</Message><StringToSign>secret</StringToSign>",
        );
        assert_eq!((note.code.as_deref(), note.said.as_deref()), (Some("SignatureDoesNotMatch"), Some("no")));
        assert!(!note.is_throttled());
        note.body(b"<Error><Code>SlowDown</Code></Error>");
        assert!(note.is_throttled());
    }
}
