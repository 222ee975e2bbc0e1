//! One async runtime per process, and one client per location and set of credentials, so that connections are reused.
//!
//! A forked child can use neither, because their threads do not exist there. It creates its own, and leaves the
//! inherited ones alone.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicPtr,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use forebay_core::{Error, Result};
use futures_util::future::{Either, select};
use http::{HeaderMap, HeaderName, HeaderValue};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::{Builder, Runtime};

use super::connector::Connector;
use super::failure::Server;
use super::location::{Location, Protocol};
use super::options::{Secret, StorageOptions, is_secret, parse_bool, scrub, translate};
use super::verify::basic;
use super::{plaintext, profile};
use crate::machine;
use crate::store::CancelSignals;

/// A connection that is silent for this long counts as dead. Not measured.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The key of a client: location and settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) location: Location,
    pub(crate) options: StorageOptions,
    /// A hash of the environment and profile files: when credentials there change, new clients are made.
    surroundings: u64,
}

impl Place {
    /// With the environment and the profiles as they are now.
    pub(crate) fn new(location: Location, options: StorageOptions) -> Self {
        let is_read = |name: &str| {
            ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|start| name.starts_with(start))
                || name.to_ascii_uppercase().ends_with("_PROXY")
        };
        let mut variables: Vec<_> =
            std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_read)).collect();
        variables.sort_unstable();
        // Without a profile the files are not read: a home directory may be on a mount that hangs.
        let has_profile = options.over(&location.options).iter().any(|(name, _)| name == "profile")
            || variables.iter().any(|(name, _)| name == "AWS_PROFILE");
        let profiles = (location.protocol == Protocol::S3 && has_profile).then(profile::texts);
        let surroundings = BuildHasherDefault::<DefaultHasher>::default().hash_one((variables, profiles));
        Self { location, options, surroundings }
    }
}

/// A client for one location and set of credentials.
pub(crate) struct Client {
    pub(crate) protocol: Protocol,
    /// The server, if it is not the protocol's default: buckets on two servers may have the same name.
    pub(crate) endpoint: String,
    pub(crate) store: Arc<dyn ObjectStore>,
    /// `None` if the protocol has no listing.
    pub(crate) lister: Option<Arc<dyn PaginatedListStore>>,
    /// For objects too large for one request; `None` if the protocol cannot write.
    pub(crate) parts: Option<Arc<dyn MultipartStore>>,
    pub(crate) secrets: Vec<Secret>,
    /// How long the connection may be silent.
    pub(crate) read_timeout: Duration,
    /// How long a whole read may take, in addition to the caller's deadline.
    pub(crate) timeout: Option<Duration>,
    pub(crate) verifies: bool,
    /// Objects whose checksum did not match, and the checksum received: two reads that agree are believed.
    pub(crate) doubted: Mutex<HashMap<String, String>>,
    /// One of the server's etags was an MD5 sum, so others are, too.
    pub(crate) has_md5_etags: AtomicBool,
    /// It has answered before: a problem with its credentials may now be temporary.
    pub(crate) has_answered: AtomicBool,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn server(&self) -> Server<'_> {
        let has_answered = self.has_answered.load(Relaxed);
        Server { protocol: self.protocol, secrets: &self.secrets, has_answered }
    }
}

/// The shared state of all remote stores of a process.
pub(crate) struct Pool {
    process: u32,
    runtime: Runtime,
    clients: Mutex<Vec<(Place, Arc<Client>)>>,
    warnings: Mutex<Warnings>,
}

/// Warnings about servers, each reported once.
#[derive(Default)]
struct Warnings {
    known: HashSet<String>,
    unsaid: Vec<String>,
}

static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());

impl Pool {
    /// The pool of this process.
    pub(crate) fn get() -> Result<&'static Self> {
        if let Some(pool) = Self::running() {
            return Ok(pool);
        }
        let current = POOL.load(SeqCst);
        let fresh = Box::into_raw(Box::new(Self::start()?));
        match POOL.compare_exchange(current, fresh, SeqCst, SeqCst) {
            // SAFETY: it was just leaked.
            Ok(_) => Ok(unsafe { &*fresh }),
            Err(_) => {
                // Another thread was first. SAFETY: nothing else has seen this one.
                drop(unsafe { Box::from_raw(fresh) });
                Self::get()
            }
        }
    }

    /// The pool of this process, if it exists yet.
    pub(crate) fn running() -> Option<&'static Self> {
        // SAFETY: the pointer was leaked by `get`, and is never freed.
        unsafe { POOL.load(SeqCst).as_ref() }.filter(|pool| pool.process == std::process::id())
    }

    fn start() -> Result<Self> {
        // Fails if a provider is installed already, which is as good.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        // They move bytes from sockets to buffers; decoding needs the CPUs more. Not measured.
        let threads = (machine::available_cpus() / 4).clamp(1, 4);
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .max_blocking_threads(8) // they resolve names
            .thread_name("forebay-remote")
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| Error::io("given the threads of its client", error))?;
        Ok(Self { process: std::process::id(), runtime, clients: Mutex::default(), warnings: Mutex::default() })
    }

    fn clients(&self) -> MutexGuard<'_, Vec<(Place, Arc<Client>)>> {
        self.clients.lock()
    }

    fn warnings(&self) -> MutexGuard<'_, Warnings> {
        self.warnings.lock()
    }

    /// The warnings since the last call.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings().unsaid)
    }

    /// The client for a location, created on first use.
    pub(crate) fn client(&self, place: &Place) -> Result<Arc<Client>> {
        /// Beyond this the oldest is dropped: credentials that change every hour would otherwise fill the memory.
        const MAX_CLIENTS: usize = 16;
        let mut clients = self.clients();
        if let Some((_, client)) = clients.iter().find(|(other, _)| other == place) {
            return Ok(Arc::clone(client));
        }
        let (client, warning) = {
            let _entered = self.runtime.enter();
            let (client, warning) = build(place)?;
            (Arc::new(client), warning)
        };
        if let Some(warning) = warning {
            let mut warnings = self.warnings();
            if warnings.known.insert(warning.clone()) {
                warnings.unsaid.push(warning);
            }
        }
        if clients.len() >= MAX_CLIENTS {
            clients.remove(0);
        }
        clients.push((place.clone(), Arc::clone(&client)));
        Ok(client)
    }

    /// Runs a task and waits until it ends, until `until`, or until a signal in `signals` is raised. After that the task
    /// is cancelled.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        until: Instant,
        signals: &CancelSignals,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<Option<T>> {
        let (give, take) = sync_channel(1);
        let ended = signals.wait();
        let task = self.runtime.spawn(async move {
            let done = match select(std::pin::pin!(task), std::pin::pin!(ended)).await {
                Either::Left((done, _)) => Some(done),
                Either::Right(_) => None,
            };
            // The caller may have given up.
            let _given = give.send(done);
        });
        match take.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Some(done)) => Ok(Some(done)),
            Ok(None) => Err(CancelSignals::error()),
            Err(RecvTimeoutError::Timeout) => {
                task.abort();
                Ok(None)
            }
            Err(RecvTimeoutError::Disconnected) => Err(Error::internal("made a task of the object store client panic")),
        }
    }
}

/// A client, and the warning about it, if any.
fn build(place: &Place) -> Result<(Client, Option<String>)> {
    let Place { location, options, .. } = place;
    let mut options = options.over(&location.options);
    let read_timeout = options.take_seconds("read_timeout")?.unwrap_or(READ_TIMEOUT);
    let timeout = options.take_seconds("timeout")?;
    let verifies = options.take_bool("verify_checksums")?.unwrap_or(true);
    let connect_timeout = options.take_seconds("connect_timeout")?.unwrap_or(CONNECT_TIMEOUT);
    let base = ClientOptions::new().with_timeout_disabled().with_connect_timeout(connect_timeout);
    let mut secrets: Vec<_> =
        options.iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value.clone()).collect();
    secrets.extend(options.iter().flat_map(|(_, value)| password_of(value.reveal())));
    let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let proxies = variables.filter(|(name, _)| name.to_ascii_uppercase().ends_with("_PROXY"));
    secrets.extend(proxies.flat_map(|(_, value)| password_of(&value.to_string_lossy())));
    let Built { store, lister, parts, secrets: found, endpoint, server, has_credentials } = match location.protocol {
        Protocol::S3 => s3(location, options, base)?,
        Protocol::Gcs => gcs(location, options, base)?,
        Protocol::Azure => azure(location, options, base)?,
        Protocol::Http => http(location, options, base)?,
    };
    secrets.extend(found);
    // In a shared access signature, the signing part is the secret, however the rest of it is written.
    let signatures: Vec<_> = secrets.iter().flat_map(|secret| signature_of(secret.reveal())).map(Secret::new).collect();
    secrets.extend(signatures);
    let doubted = Mutex::default();
    let warning = plaintext::warning(&server, has_credentials);
    let client = Client {
        has_md5_etags: AtomicBool::default(),
        has_answered: AtomicBool::default(),
        protocol: location.protocol,
        endpoint,
        store,
        lister,
        parts,
        secrets,
        read_timeout,
        timeout,
        verifies,
        doubted,
    };
    Ok((client, warning))
}

/// The secrets in the URL of a proxy or an endpoint: all of it, and its password in every encoding.
fn password_of(text: &str) -> Vec<Secret> {
    let Ok(url) = url::Url::parse(text) else { return Vec::new() };
    let Some(password) = url.password() else { return Vec::new() };
    let plain = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    let encoded = basic(&plain(url.username()), &plain(password));
    let encoded = encoded.split_once(' ').map(|(_, encoded)| encoded.to_owned());
    let written = [text.to_owned(), password.to_owned(), plain(password)];
    written.into_iter().chain(encoded).map(Secret::new).collect()
}

fn signature_of(text: &str) -> Vec<String> {
    let parts = text.trim_start_matches('?').split('&').filter_map(|part| part.strip_prefix("sig="));
    let plain = |part: &str| percent_encoding::percent_decode_str(part).decode_utf8_lossy().into_owned();
    parts.flat_map(|part| [part.to_owned(), plain(part)]).collect()
}

/// One client under each of its traits, its secret settings, and its server.
struct Built {
    store: Arc<dyn ObjectStore>,
    lister: Option<Arc<dyn PaginatedListStore>>,
    parts: Option<Arc<dyn MultipartStore>>,
    secrets: Vec<Secret>,
    endpoint: String,
    /// The URL of the server, if it is not the protocol's default.
    server: String,
    has_credentials: bool,
}

impl Built {
    fn of<S: ObjectStore + PaginatedListStore + MultipartStore>(
        store: Arc<S>,
        secrets: Vec<Secret>,
        server: String,
        has_credentials: bool,
    ) -> Self {
        let (lister, parts) = (Some(Arc::clone(&store) as _), Some(Arc::clone(&store) as _));
        Self { store, lister, parts, secrets, endpoint: server.clone(), server, has_credentials }
    }
}

/// Whether requests are signed, from a builder's `skip_signature`.
fn is_signed(skips: Option<String>) -> bool {
    !skips.is_some_and(|text| parse_bool("skip_signature", &text).unwrap_or(false))
}

/// The loader owns retries.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// Passes every option to a builder, under the builder's name for it.
fn configure<B, K: FromStr>(
    protocol: Protocol,
    options: &StorageOptions,
    mut builder: B,
    set: impl Fn(B, K, &str) -> B,
) -> Result<B> {
    for (name, value) in options.iter() {
        let (known, value) = match translate(protocol, name, value.reveal())? {
            Some((known, value)) => (known, value),
            None => (name, value.reveal().to_owned()),
        };
        let key = known.parse().map_err(|_| {
            Error::config(format!("storage_options[{name:?}]: expected an option of {}", protocol.name()))
                .with_hint("the names are those of fsspec and of object_store: see docs/remote.md")
        })?;
        builder = set(builder, key, &value);
    }
    Ok(builder)
}

fn built<S>(protocol: Protocol, result: object_store::Result<S>, secrets: &[Secret]) -> Result<Arc<S>> {
    result.map(Arc::new).map_err(|error| {
        let why = scrub(&error.to_string(), secrets);
        Error::config(format!("storage_options: {} does not accept them: {why}", protocol.name()))
    })
}

/// A builder from the environment; without its credentials if others are given, because a session token would be mixed
/// with them.
fn s3_environment(with_keys: bool) -> AmazonS3Builder {
    use AmazonS3ConfigKey::{AccessKeyId, SecretAccessKey, Token};
    let mut builder = AmazonS3Builder::new();
    for (name, value) in std::env::vars_os() {
        let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
        let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() else { continue };
        if name.starts_with("AWS_") && (with_keys || !matches!(key, AccessKeyId | SecretAccessKey | Token)) {
            builder = builder.with_config(key, value);
        }
    }
    builder
}

fn s3(location: &Location, mut options: StorageOptions, base: ClientOptions) -> Result<Built> {
    // Requests the checksum that was stored with an object.
    let header = (HeaderName::from_static("x-amz-checksum-mode"), HeaderValue::from_static("ENABLED"));
    let base = base.with_default_headers(HeaderMap::from_iter([header]));
    let profile = options.take("profile").map(|profile| profile.reveal().to_owned());
    let has_keys = options.iter().any(|(name, _)| matches!(name, "key" | "access_key_id" | "aws_access_key_id"));
    let mut builder = s3_environment(profile.is_none() && !has_keys).with_client_options(base);
    let has_keys = has_keys || builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_some();
    let from_environment = || std::env::var("AWS_PROFILE").ok().filter(|name| !name.is_empty() && !has_keys);
    if let Some(profile) = profile.or_else(from_environment) {
        for (name, value) in profile::settings(&profile)? {
            if let Ok(key) = name.parse() {
                builder = builder.with_config(key, value);
            }
        }
    }
    builder = configure(Protocol::S3, &options, builder, |builder, key: AmazonS3ConfigKey, value| {
        builder.with_config(key, value)
    })?;
    let get = |key| builder.get_config_value(&key);
    let secrets: Vec<_> =
        [AmazonS3ConfigKey::SecretAccessKey, AmazonS3ConfigKey::Token, AmazonS3ConfigKey::AccessKeyId]
            .into_iter()
            .filter_map(get)
            .map(Secret::new)
            .collect();
    let endpoint = get(AmazonS3ConfigKey::S3Endpoint).or_else(|| get(AmazonS3ConfigKey::Endpoint));
    let endpoint = endpoint.unwrap_or_default();
    let is_signed = is_signed(get(AmazonS3ConfigKey::SkipSignature));
    if endpoint.starts_with("http://") {
        builder = builder.with_allow_http(true);
    }
    let store = builder
        .with_bucket_name(&location.bucket)
        .with_retry(no_retries())
        .with_http_connector(Connector { are_headers_signed: true })
        .build();
    let store = built(Protocol::S3, store, &secrets)?;
    Ok(Built::of(store, secrets, endpoint, is_signed))
}

fn gcs(location: &Location, options: StorageOptions, base: ClientOptions) -> Result<Built> {
    let builder = GoogleCloudStorageBuilder::from_env().with_client_options(base);
    let mut builder = configure(Protocol::Gcs, &options, builder, |builder, key: GoogleConfigKey, value| {
        builder.with_config(key, value)
    })?;
    let get = |key| builder.get_config_value(&key);
    let secrets: Vec<_> = [GoogleConfigKey::ServiceAccountKey, GoogleConfigKey::BearerToken]
        .into_iter()
        .filter_map(get)
        .map(Secret::new)
        .collect();
    let endpoint = get(GoogleConfigKey::BaseUrl).unwrap_or_default();
    let is_signed = is_signed(get(GoogleConfigKey::SkipSignature));
    if endpoint.starts_with("http://") {
        builder = builder.with_config(GoogleConfigKey::Client(ClientConfigKey::AllowHttp), "true");
    }
    let store = builder
        .with_bucket_name(&location.bucket)
        .with_retry(no_retries())
        .with_http_connector(Connector { are_headers_signed: false })
        .build();
    let store = built(Protocol::Gcs, store, &secrets)?;
    Ok(Built::of(store, secrets, endpoint, is_signed))
}

fn azure(location: &Location, options: StorageOptions, base: ClientOptions) -> Result<Built> {
    let builder = MicrosoftAzureBuilder::from_env().with_client_options(base);
    let mut builder = configure(Protocol::Azure, &options, builder, |builder, key: AzureConfigKey, value| {
        builder.with_config(key, value)
    })?;
    let get = |key| builder.get_config_value(&key);
    let secrets: Vec<_> =
        [AzureConfigKey::AccessKey, AzureConfigKey::SasKey, AzureConfigKey::Token, AzureConfigKey::ClientSecret]
            .into_iter()
            .filter_map(get)
            .map(Secret::new)
            .collect();
    let endpoint = get(AzureConfigKey::Endpoint).unwrap_or_default();
    let account = get(AzureConfigKey::AccountName).unwrap_or_default();
    let is_signed = is_signed(get(AzureConfigKey::SkipSignature));
    if endpoint.starts_with("http://") {
        builder = builder.with_allow_http(true);
    }
    let store = builder
        .with_container_name(&location.bucket)
        .with_retry(no_retries())
        .with_http_connector(Connector { are_headers_signed: false })
        .build();
    let store = built(Protocol::Azure, store, &secrets)?;
    let identity = format!("{account}@{endpoint}");
    Ok(Built { endpoint: identity, ..Built::of(store, secrets, endpoint, is_signed) })
}

fn http(location: &Location, mut options: StorageOptions, base: ClientOptions) -> Result<Built> {
    let authorization = match (options.take("username"), options.take("password"), options.take("token")) {
        (_, _, Some(token)) => Some(format!("Bearer {}", token.reveal())),
        (Some(user), password, None) => {
            Some(basic(user.reveal(), password.as_ref().map(Secret::reveal).unwrap_or_default()))
        }
        (None, _, None) => None,
    };
    let mut base = base.with_allow_http(true);
    if let Some(authorization) = &authorization {
        let mut value = HeaderValue::from_str(authorization)
            .map_err(|_| Error::config("storage_options: expected a username and a password without line breaks"))?;
        value.set_sensitive(true);
        base = base.with_default_headers(HeaderMap::from_iter([(http::header::AUTHORIZATION, value)]));
    }
    let base =
        configure(Protocol::Http, &options, base, |base, key: ClientConfigKey, value| base.with_config(key, value))?;
    let has_credentials = authorization.is_some();
    // The encoded part without the scheme is a secret, too.
    let encoded = authorization.iter().filter_map(|value| value.split_once(' ')).map(|(_, value)| value.to_owned());
    let secrets: Vec<_> = encoded.chain(authorization.clone()).map(Secret::new).collect();
    let store = HttpBuilder::new()
        .with_url(format!("{}/", location.base))
        .with_client_options(base)
        .with_retry(no_retries())
        .with_http_connector(Connector { are_headers_signed: false })
        .build();
    let store = built(Protocol::Http, store, &secrets)?;
    // The paths contain the server.
    let (endpoint, server) = (String::new(), location.base.clone());
    Ok(Built { store, lister: None, parts: None, secrets, endpoint, server, has_credentials })
}
