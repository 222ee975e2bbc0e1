//! One call to a store: its requests to the server, and the handling of the responses.

use std::cell::Cell;
use std::ffi::OsStr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_core::{Error, Kind, Listing, Result, Version, plain_etag, stamp_ns};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use http::StatusCode;
use object_store::list::{PaginatedListOptions, PaginatedListResult};
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta};
use tokio::time::timeout;

use super::Meters;
use super::client::{Client, Pool};
use super::connector::{Cause, NOTE, Note, SharedNote, note};
use super::pagination::Pagination;
use super::verify::{Algorithm, Checksum};
use crate::read_request::ReadRequest;
use crate::store::{Allot, CancelSignals, Object, Stat};

/// A listing that was interrupted by a failed page.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) listing: Listing,
    token: Option<String>,
    /// There is an object that marks the directory itself.
    is_marked: bool,
    pagination: Pagination,
}

impl Partial {
    pub(super) fn new(listing: Listing) -> Self {
        Self { listing, token: None, is_marked: false, pagination: Pagination::default() }
    }

    /// Whether nothing shows that this directory exists.
    pub(super) fn is_empty(&self) -> bool {
        self.listing.is_empty() && self.listing.refused().is_empty() && !self.is_marked
    }
}

/// A call in progress.
pub(super) struct Call {
    pub(super) pool: &'static Pool,
    pub(super) client: Arc<Client>,
    pub(super) key: String,
    pub(super) until: Instant,
    /// How long the connection may be silent.
    pub(super) silence: Duration,
    pub(super) signals: CancelSignals,
    pub(super) meters: Arc<Meters>,
    /// The status of the last response.
    pub(super) status: Cell<Option<StatusCode>>,
}

/// A response whose body is still to come.
struct Opened {
    meta: ObjectMeta,
    start: u64,
    body: BoxStream<'static, object_store::Result<Bytes>>,
    note: Note,
}

/// The outcome of reading a body.
struct Filled {
    buffer: Vec<u8>,
    broke: Option<Cause>,
}

impl Call {
    /// Sends one request. No response within the read timeout, or until the end of the call, is a timeout.
    fn ask<T: Send + 'static>(
        &self,
        doing: &str,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<(T, Note)> {
        self.ask_within(self.silence, doing, request)
    }

    /// The same with its own timeout: large uploads are answered late.
    pub(super) fn ask_within<T: Send + 'static>(
        &self,
        wait: Duration,
        doing: &str,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<(T, Note)> {
        let note = SharedNote::default();
        let wait = wait.min(self.until.saturating_duration_since(Instant::now()));
        // Created inside the runtime, which timers need.
        let task = NOTE.scope(note.clone(), async move { timeout(wait, request).await });
        // The task enforces the timeout; the caller waits a little longer, in case the runtime itself is stuck.
        let done = self.pool.run(Instant::now() + wait + Duration::from_secs(1), &self.signals, task);
        let note = note.lock().clone();
        self.meters.requests.fetch_add(note.requests, Relaxed);
        self.status.set(note.status);
        match done? {
            Some(Ok(Ok(value))) => {
                self.client.has_answered.store(true, Relaxed);
                Ok((value, note))
            }
            Some(Ok(Err(error))) => {
                self.meters.throttles.fetch_add(note.is_throttled().into(), Relaxed);
                Err(self.client.server().failed(doing, &note, &error))
            }
            Some(Err(_)) | None => Err(self.client.server().silent(wait)),
        }
    }

    pub(super) fn key(&self) -> Result<Key> {
        Key::parse(&self.key).map_err(|error| {
            Error::new(Kind::NotFound, format!("has a name that the object store client does not accept: {error}"))
        })
    }

    fn open(&self, options: GetOptions) -> Result<Opened> {
        let (store, key) = (Arc::clone(&self.client.store), self.key()?);
        let (got, note) = self.ask("read", async move { store.get_opts(&key, options).await })?;
        Ok(Opened { start: got.range.start, meta: got.meta.clone(), body: got.into_stream(), note })
    }

    pub(super) fn head(&self) -> Result<ObjectMeta> {
        self.head_with_note().map(|(got, _)| got.meta)
    }

    /// The metadata of an object, with the note of the response.
    pub(super) fn head_with_note(&self) -> Result<(GetResult, Note)> {
        let (store, key) = (Arc::clone(&self.client.store), self.key()?);
        let options = GetOptions { head: true, ..GetOptions::default() };
        self.ask("examined", async move { store.get_opts(&key, options).await })
    }

    /// Reads the rest of a body.
    fn fill(
        &self,
        mut body: BoxStream<'static, object_store::Result<Bytes>>,
        mut buffer: Vec<u8>,
        size: usize,
    ) -> Result<Filled> {
        let silence = self.silence;
        let left = self.until.saturating_duration_since(Instant::now());
        let task = async move {
            let mut broke = None;
            while buffer.len() < size {
                broke = match timeout(silence, body.next()).await {
                    Ok(Some(Ok(piece))) if piece.len() <= size - buffer.len() => {
                        buffer.extend_from_slice(&piece);
                        continue;
                    }
                    Ok(Some(Ok(_))) => Some(Cause::Other("the server sent more than it announced".to_owned())),
                    Ok(Some(Err(error))) => Some(Cause::of(&error)),
                    Ok(None) => Some(Cause::Reset),
                    Err(_) => Some(Cause::Timeout),
                };
                break;
            }
            // Read to its end, so that the connection can be reused.
            if broke.is_none()
                && let Ok(Some(Ok(surplus))) = timeout(Duration::from_millis(100), body.next()).await
                && !surplus.is_empty()
            {
                broke = Some(Cause::Other("the server sent more than it announced".to_owned()));
            }
            Filled { buffer, broke }
        };
        let filled = self.pool.run(Instant::now() + left, &self.signals, task)?;
        filled.ok_or_else(|| self.client.server().silent(left))
    }

    /// Reads an object, or a range of it.
    pub(super) fn read(&mut self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        if request.is_empty() {
            let stat = stat_of(&self.head()?);
            request.bytes_of(stat)?;
            let mut buffer = allot(0)?;
            buffer.clear();
            return Ok(Object { bytes: buffer.into(), stat });
        }
        let options = GetOptions { range: request.range.clone().map(GetRange::Bounded), ..GetOptions::default() };
        let Opened { meta, start, body, note } =
            self.open(options).map_err(|error| self.unsatisfied(request, error))?;
        let stat = stat_of(&meta);
        let range = request.bytes_of(stat)?;
        if start != range.start {
            let message = format!("was sent from the wrong offset (expected byte {}, got byte {start})", range.start);
            return Err(Error::new(Kind::Unavailable, message));
        }
        if meta.size == 0 {
            self.is_really_empty()?;
        }
        let asked = Instant::now();
        let allotted = allot(range.end - range.start);
        // Time spent waiting for memory does not count against the storage's deadline.
        self.until += asked.elapsed();
        let mut buffer = allotted?;
        buffer.clear();
        let buffer = self.take(body, buffer, range, &meta)?;
        // The server's checksum covers the whole object.
        if request.range.is_none() {
            self.verify(&note, &buffer)?;
        }
        Ok(Object { bytes: buffer.into(), stat })
    }

    /// Why a range could not be read. If it begins beyond the object's end, some servers refuse it, and some send
    /// another range or the whole object.
    fn unsatisfied(&self, request: &ReadRequest<'_>, error: Error) -> Error {
        let is_refused = |status: StatusCode| status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE;
        if request.range.is_none() || !self.status.get().is_some_and(is_refused) {
            return error;
        }
        let head = self.head().and_then(|meta| request.bytes_of(stat_of(&meta)));
        head.err().unwrap_or(error)
    }

    /// Reads a part of an object from a body, and resumes with further requests if the body breaks off.
    fn take(
        &self,
        mut body: BoxStream<'static, object_store::Result<Bytes>>,
        mut buffer: Vec<u8>,
        range: Range<u64>,
        meta: &ObjectMeta,
    ) -> Result<Vec<u8>> {
        /// If bodies break off more often, even with progress each time, the loader's retry pauses are better.
        const MAX_RESUMED: u32 = 16;
        let size = (range.end - range.start) as usize;
        buffer
            .try_reserve_exact(size)
            .map_err(|_| Error::new(Kind::Exhausted, format!("does not fit in memory ({size} bytes)")))?;
        let mut resumed = 0;
        loop {
            let had = buffer.len();
            let filled = self.fill(body, buffer, size)?;
            buffer = filled.buffer;
            self.meters.bytes.fetch_add((buffer.len() - had) as u64, Relaxed);
            let Some(cause) = filled.broke else { return Ok(buffer) };
            let have = range.start + buffer.len() as u64;
            if buffer.len() == size {
                return Err(self.client.server().surplus(size));
            }
            let Some(etag) = meta.e_tag.clone().filter(|_| buffer.len() > had && resumed < MAX_RESUMED) else {
                return Err(self.client.server().cut(&cause, buffer.len() as u64, size as u64));
            };
            resumed += 1;
            self.meters.resumed.fetch_add(1, Relaxed);
            let is_strong = !etag.starts_with("W/");
            let next = self.open(GetOptions {
                range: Some(GetRange::Bounded(have..range.end)),
                if_match: is_strong.then(|| etag.clone()),
                ..GetOptions::default()
            })?;
            // Servers may ignore If-Match.
            if next.meta.e_tag.as_deref() != Some(&etag) || next.meta.size != meta.size || next.start != have {
                return Err(Error::new(Kind::Changed, "changed while it was read (its etag changed)"));
            }
            body = next.body;
        }
    }

    /// An empty response is more often a broken server than an empty object.
    fn is_really_empty(&self) -> Result<()> {
        let size = self.head()?.size;
        if size == 0 {
            return Ok(());
        }
        Err(self.client.server().cut(&Cause::Other("the response was empty".to_owned()), 0, size))
    }

    /// Compares with the server's checksum. One that is only guessed from an etag is reported once: if a second read
    /// gives the same bytes, it was not a checksum.
    pub(super) fn verify(&self, note: &Note, bytes: &[u8]) -> Result<()> {
        let Some(checksum) = note.checksum.as_ref().filter(|_| self.client.verifies) else { return Ok(()) };
        let Some(got) = checksum.differs(bytes) else {
            self.client.has_md5_etags.fetch_or(checksum.algorithm == Algorithm::EtagMd5, Relaxed);
            return Ok(());
        };
        self.meters.mismatches.fetch_add(1, Relaxed);
        if checksum.algorithm == Algorithm::EtagMd5 {
            let mut doubted = self.client.doubted.lock();
            if doubted.remove(&self.key).as_ref() == Some(&got) {
                return Ok(());
            }
            /// Bounds the memory for objects that are never read again.
            const MAX_DOUBTED: usize = 10_000;
            if doubted.len() >= MAX_DOUBTED {
                doubted.clear();
            }
            doubted.insert(self.key.clone(), got.clone());
        }
        Err(other_bytes(
            &format!("failed its checksum: the {} bytes received are not the bytes stored", bytes.len()),
            checksum,
            &got,
        ))
    }

    /// The same for an upload. Retries send the same bytes, so agreement between them proves nothing: an etag is
    /// only a guess until one of this server's etags has proved to be an MD5 sum.
    pub(super) fn verify_sent(&self, note: &Note, bytes: &[u8]) -> Result<()> {
        let Some(checksum) = note.checksum.as_ref().filter(|_| self.client.verifies) else { return Ok(()) };
        if checksum.algorithm == Algorithm::EtagMd5 && !self.client.has_md5_etags.load(Relaxed) {
            return self.verify(note, bytes);
        }
        let Some(got) = checksum.differs(bytes) else { return Ok(()) };
        self.meters.mismatches.fetch_add(1, Relaxed);
        Err(other_bytes(
            &format!("failed its checksum: the {} bytes sent are not the bytes stored", bytes.len()),
            checksum,
            &got,
        ))
    }

    /// One page of a directory, and the invalid names that were removed from it.
    fn page(&self, token: Option<String>, max_keys: Option<usize>) -> Result<(PaginatedListResult, Vec<String>)> {
        let Some(lister) = self.client.lister.clone() else {
            return Err(Error::config("cannot be listed: HTTP has no directory listings")
                .with_hint("list the names in a manifest (`manifest`)"));
        };
        let prefix = if self.key.is_empty() { String::new() } else { format!("{}/", self.key) };
        let options = PaginatedListOptions {
            delimiter: Some("/".into()),
            page_token: token,
            max_keys,
            ..PaginatedListOptions::default()
        };
        let request = async move {
            let prefix = (!prefix.is_empty()).then_some(prefix.as_str());
            note(|note| note.is_page = true);
            match lister.list_paginated(prefix, options.clone()).await {
                Err(object_store::Error::InvalidPath { .. }) => {
                    // Once more, with invalid names removed from the page.
                    note(|note| note.filters_names = true);
                    lister.list_paginated(prefix, options).await
                }
                done => done,
            }
        };
        self.ask("listed", request).map(|(page, note)| (page, note.invalid))
    }

    /// Whether there are objects below the name, as in a directory.
    pub(super) fn is_directory(&self) -> bool {
        let is_empty = |(page, invalid): (PaginatedListResult, Vec<String>)| {
            page.result.objects.is_empty() && page.result.common_prefixes.is_empty() && invalid.is_empty()
        };
        self.client.lister.is_some() && self.page(None, Some(1)).is_ok_and(|page| !is_empty(page))
    }

    /// The part of a name after this directory's name.
    fn below<'a>(&self, key: &'a str) -> Option<&'a str> {
        let name = if self.key.is_empty() { key } else { key.strip_prefix(&self.key)?.strip_prefix('/')? };
        (!name.is_empty()).then_some(name)
    }

    /// The last component of a name directly in this directory; `None` for the directory itself.
    fn name<'a>(&self, key: &'a str) -> Result<Option<&'a str>> {
        match self.below(key) {
            Some(name) if !name.contains('/') => Ok(Some(name)),
            None if key.is_empty() || key == self.key => Ok(None),
            _ => Err(self.client.server().outside_directory(key)),
        }
    }

    pub(super) fn list(&self, partial: &mut Partial) -> Result<()> {
        let mut has_progressed = false;
        loop {
            let (page, invalid) = match self.page(partial.token.clone(), None) {
                Ok(page) => page,
                Err(error) if has_progressed => return Err(error.progressed()),
                Err(error) => return Err(error),
            };
            let before = partial.listing.len() + partial.listing.refused().len();
            for directory in &page.result.common_prefixes {
                match self.name(directory.as_ref())? {
                    Some(name) if partial.pagination.directories.is_new(name, true, &partial.listing) => {
                        partial.listing.push(OsStr::new(name), true);
                    }
                    Some(_) => {}
                    // The client strips a leading slash, and with it the whole name.
                    None => partial.listing.push_refused("/".to_owned()),
                }
            }
            for object in &page.result.objects {
                match self.name(object.location.as_ref())? {
                    Some(name) if partial.pagination.objects.is_new(name, false, &partial.listing) => {
                        partial.listing.push_object(OsStr::new(name), version_of(object));
                    }
                    Some(_) => {}
                    // An object that marks the directory itself.
                    None => partial.is_marked = true,
                }
            }
            for key in &invalid {
                partial.listing.push_refused(self.below(key).unwrap_or(key).to_owned());
            }
            let is_idle = partial.listing.len() + partial.listing.refused().len() == before;
            let count = page.result.common_prefixes.len() + page.result.objects.len();
            self.meters.listed.fetch_add(count as u64, Relaxed);
            has_progressed = true;
            let Some(token) = page.page_token else { return Ok(()) };
            partial.pagination.next(&token, is_idle).map_err(|endless| self.client.server().endless(endless))?;
            partial.token = Some(token);
        }
    }
}

fn other_bytes(what: &str, checksum: &Checksum, got: &str) -> Error {
    let (name, expected) = (checksum.algorithm.name(), &checksum.expected);
    let hint = match checksum.algorithm {
        Algorithm::EtagMd5 => {
            "a proxy truncated or changed it; if the server's etags are not MD5 sums, set `storage_options.verify_checksums=false`"
        }
        _ => {
            "a proxy, the network or a damaged copy on the server changed it: look at the server, or restore the object; \
             if its checksums are wrong, set `storage_options.verify_checksums=false`"
        }
    };
    let message = format!("{what} ({name}: expected {expected}, got {got})");
    Error::new(Kind::Unavailable, message).transient().with_hint(hint)
}

/// The version in a listing or a response. Times are cut to whole seconds, because headers have no more.
pub(super) fn version_of(meta: &ObjectMeta) -> Version {
    let mtime_ns = meta.last_modified.timestamp().saturating_mul(1_000_000_000);
    let etag = meta.e_tag.as_deref().map(plain_etag).filter(|etag| !etag.is_empty());
    Version { size_bytes: Some(meta.size), mtime_ns: Some(mtime_ns), etag: etag.map(Box::from) }
}

pub(super) fn stat_of(meta: &ObjectMeta) -> Stat {
    let Version { mtime_ns, etag, .. } = version_of(meta);
    Stat { size_bytes: meta.size, mtime_ns: stamp_ns(mtime_ns.unwrap_or_default(), etag.as_deref()) }
}
