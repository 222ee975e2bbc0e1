//! The HTTP client for all requests.
//!
//! object_store's own client follows redirects to any host, with the session token of S3 in the headers and the
//! signature of Azure in `Referer`, and has no setting for it. This one is made from the same options, and follows
//! redirects within one origin only.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use object_store::{ClientConfigKey, ClientOptions, HeaderMap};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{NoProxy, Proxy};
use url::Url;

/// Limit of redirects for one request.
const MAX_REDIRECTS: usize = 10;

pub(super) fn client(options: &ClientOptions, headers: HeaderMap) -> object_store::Result<reqwest::Client> {
    use ClientConfigKey as Key;
    let get = |key: Key| options.get_config_value(&key);
    let flag = |key: Key| get(key).map_or(Ok(false), |text| parse_flag(key, &text));
    let duration = |key: Key| get(key).map(|text| parse_duration(key, &text)).transpose();
    let agent = get(Key::UserAgent).unwrap_or_else(|| concat!("forebay/", env!("CARGO_PKG_VERSION")).to_owned());
    let mut builder =
        reqwest::Client::builder().redirect(within_origin()).referer(false).user_agent(agent).default_headers(headers);
    if let Some(url) = get(Key::ProxyUrl) {
        let mut proxy = Proxy::all(url).map_err(refused)?;
        if let Some(hosts) = get(Key::ProxyExcludes) {
            proxy = proxy.no_proxy(NoProxy::from_string(&hosts));
        }
        if let Some(text) = get(Key::ProxyCaCertificate) {
            let certificate = reqwest::tls::Certificate::from_pem(text.as_bytes()).map_err(refused)?;
            builder = builder.tls_certs_merge([certificate]);
        }
        builder = builder.proxy(proxy);
    }
    if flag(Key::NoSystemCertificates)? {
        builder = builder.tls_certs_only([]);
    }
    if let Some(wait) = duration(Key::Timeout)? {
        builder = builder.timeout(wait);
    }
    if let Some(wait) = duration(Key::ConnectTimeout)? {
        builder = builder.connect_timeout(wait);
    }
    if let Some(wait) = duration(Key::ReadTimeout)? {
        builder = builder.read_timeout(wait);
    }
    if let Some(wait) = duration(Key::PoolIdleTimeout)? {
        builder = builder.pool_idle_timeout(wait);
    }
    if let Some(text) = get(Key::PoolMaxIdlePerHost) {
        builder = builder.pool_max_idle_per_host(parse_number(Key::PoolMaxIdlePerHost, &text)?);
    }
    if let Some(interval) = duration(Key::Http2KeepAliveInterval)? {
        builder = builder.http2_keep_alive_interval(interval);
    }
    if let Some(wait) = duration(Key::Http2KeepAliveTimeout)? {
        builder = builder.http2_keep_alive_timeout(wait);
    }
    if let Some(text) = get(Key::Http2MaxFrameSize) {
        builder = builder.http2_max_frame_size(Some(parse_number(Key::Http2MaxFrameSize, &text)?));
    }
    if flag(Key::Http2KeepAliveWhileIdle)? {
        builder = builder.http2_keep_alive_while_idle(true);
    }
    if flag(Key::Http1Only)? {
        builder = builder.http1_only();
    }
    if flag(Key::Http2Only)? {
        builder = builder.http2_prior_knowledge();
    }
    if flag(Key::AllowInvalidCertificates)? {
        builder = builder.danger_accept_invalid_certs(true);
    }
    if flag(Key::RandomizeAddresses)? {
        builder = builder.dns_resolver(Arc::new(Shuffled));
    }
    builder.https_only(!flag(Key::AllowHttp)?).build().map_err(refused)
}

/// Redirects within the server are followed. Any other redirect is returned as the response: its target would get the
/// request's credentials, and may be a server that only this machine can reach.
fn within_origin() -> Policy {
    Policy::custom(|attempt| {
        let is_same = attempt.previous().first().is_some_and(|first| is_same_origin(first, attempt.url()));
        match is_same && attempt.previous().len() <= MAX_REDIRECTS {
            true => attempt.follow(),
            false => attempt.stop(),
        }
    })
}

/// Same scheme, host and port.
pub(super) fn is_same_origin(one: &Url, other: &Url) -> bool {
    one.origin() == other.origin()
}

fn invalid(key: ClientConfigKey, expected: &str, text: &str) -> object_store::Error {
    let source = format!("{}: expected {expected}, got {text:?}", key.as_ref()).into();
    object_store::Error::Generic { store: "client", source }
}

fn parse_flag(key: ClientConfigKey, text: &str) -> object_store::Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" | "y" => Ok(true),
        "0" | "false" | "off" | "no" | "n" => Ok(false),
        _ => Err(invalid(key, "true or false", text)),
    }
}

fn parse_duration(key: ClientConfigKey, text: &str) -> object_store::Result<Duration> {
    humantime::parse_duration(text).map_err(|_| invalid(key, "a time like \"30s\"", text))
}

fn parse_number<T: std::str::FromStr>(key: ClientConfigKey, text: &str) -> object_store::Result<T> {
    text.parse().map_err(|_| invalid(key, "a whole number", text))
}

/// Without the URL, which may contain a proxy's password.
fn refused(error: reqwest::Error) -> object_store::Error {
    object_store::Error::Generic { store: "client", source: Box::new(error.without_url()) }
}

/// Resolves a name to its addresses in random order, so that connections spread over the servers behind it.
struct Shuffled;

impl Resolve for Shuffled {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let mut addresses: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let order = RandomState::new();
            addresses.sort_by_cached_key(|address| order.hash_one(address));
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let is_same = |one: &str, other: &str| is_same_origin(&one.parse().unwrap(), &other.parse().unwrap());
        assert!(is_same("https://host/a", "https://HOST:443/b?c"));
        assert!(is_same("http://127.0.0.1:80/", "http://127.0.0.1/"));
        for (one, other) in [
            ("https://host/", "http://host/"),
            ("http://host/", "https://host/"),
            ("https://host/", "https://host:8443/"),
            ("https://host/", "https://sub.host/"),
            ("http://localhost/", "http://127.0.0.1/"),
            ("http://host/", "file:///etc/passwd"),
        ] {
            assert!(!is_same(one, other), "{one} {other}");
        }
    }

    #[test]
    fn settings_of_the_client_are_taken_over_or_refused() {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let with = |key: &str, value: &str| {
            client(&ClientOptions::new().with_config(key.parse().unwrap(), value), HeaderMap::new())
        };
        for (key, value) in [
            ("allow_http", "yes"),
            ("allow_invalid_certificates", "true"),
            ("disable_system_certificates", "true"),
            ("connect_timeout", "3s"),
            ("http1_only", "true"),
            ("http2_only", "true"),
            ("http2_keep_alive_interval", "1 min"),
            ("http2_keep_alive_timeout", "10s"),
            ("http2_keep_alive_while_idle", "true"),
            ("http2_max_frame_size", "16384"),
            ("pool_idle_timeout", "90s"),
            ("pool_max_idle_per_host", "4"),
            ("proxy_url", "http://me:hunter2hunter2@127.0.0.1:1"),
            ("proxy_excludes", "localhost"),
            ("randomize_addresses", "false"),
            ("user_agent", "mine/1"),
        ] {
            assert!(with(key, value).is_ok(), "{key}");
        }
        for (key, value) in [("allow_http", "perhaps"), ("connect_timeout", "soon"), ("pool_max_idle_per_host", "-1")] {
            assert!(with(key, value).unwrap_err().to_string().contains(key), "{key}");
        }
        let error = with("proxy_url", "http://me:hunter2hunter2@").unwrap_err();
        assert!(!format!("{error:?} {error}").contains("hunter2"), "{error:?}");
    }
}
