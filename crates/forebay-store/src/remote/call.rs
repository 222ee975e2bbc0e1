//! One call to a store: what is asked of the server for it, and what is made of the answers.

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
use crate::store::{Allot, Ends, Object, Stat};

/// A listing that a failed page interrupted.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) listing: Listing,
    token: Option<String>,
    /// There is an object that stands for the directory itself.
    is_marked: bool,
    pagination: Pagination,
}

impl Partial {
    pub(super) fn new(listing: Listing) -> Self {
        Self { listing, token: None, is_marked: false, pagination: Pagination::default() }
    }

    /// Whether nothing says that there is such a directory.
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
    /// How long nothing may come.
    pub(super) silence: Duration,
    pub(super) ends: Ends,
    pub(super) meters: Arc<Meters>,
    /// What the last request was answered with.
    pub(super) status: Cell<Option<StatusCode>>,
}

/// An answer of which the body is still to come.
struct Opened {
    meta: ObjectMeta,
    start: u64,
    body: BoxStream<'static, object_store::Result<Bytes>>,
    note: Note,
}

/// What came of a body, and why no more.
struct Filled {
    buffer: Vec<u8>,
    broke: Option<Cause>,
}

impl Call {
    /// Asks once. Nothing within the read timeout, or until the end of the call, is silence.
    fn ask<T: Send + 'static>(
        &self,
        doing: &str,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<(T, Note)> {
        self.ask_within(self.silence, doing, request)
    }

    /// The same with a time of its own: what has much to send is answered late.
    pub(super) fn ask_within<T: Send + 'static>(
        &self,
        wait: Duration,
        doing: &str,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<(T, Note)> {
        let note = SharedNote::default();
        let wait = wait.min(self.until.saturating_duration_since(Instant::now()));
        // Made in the runtime: a timer needs one.
        let task = NOTE.scope(note.clone(), async move { timeout(wait, request).await });
        // The task keeps the time; the caller waits a little longer, in case the runtime itself is stuck.
        let done = self.pool.run(Instant::now() + wait + Duration::from_secs(1), &self.ends, task);
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
        Key::parse(&self.key)
            .map_err(|error| Error::new(Kind::NotFound, format!("has a name that its client does not accept: {error}")))
    }

    fn open(&self, options: GetOptions) -> Result<Opened> {
        let (store, key) = (Arc::clone(&self.client.store), self.key()?);
        let (got, note) = self.ask("read", async move { store.get_opts(&key, options).await })?;
        Ok(Opened { start: got.range.start, meta: got.meta.clone(), body: got.into_stream(), note })
    }

    pub(super) fn head(&self) -> Result<ObjectMeta> {
        self.look().map(|(got, _)| got.meta)
    }

    /// What is known of an object, and of the answer that said it.
    pub(super) fn look(&self) -> Result<(GetResult, Note)> {
        let (store, key) = (Arc::clone(&self.client.store), self.key()?);
        let options = GetOptions { head: true, ..GetOptions::default() };
        self.ask("examined", async move { store.get_opts(&key, options).await })
    }

    /// Takes the rest of what is read from a body.
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
                    Ok(Some(Ok(_))) => Some(Cause::Other("more came than was announced".to_owned())),
                    Ok(Some(Err(error))) => Some(Cause::of(&error)),
                    Ok(None) => Some(Cause::Reset),
                    Err(_) => Some(Cause::Timeout),
                };
                break;
            }
            // To its end, so that its connection can be used again.
            if broke.is_none()
                && let Ok(Some(Ok(surplus))) = timeout(Duration::from_millis(100), body.next()).await
                && !surplus.is_empty()
            {
                broke = Some(Cause::Other("more came than was announced".to_owned()));
            }
            Filled { buffer, broke }
        };
        let filled = self.pool.run(Instant::now() + left, &self.ends, task)?;
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
            let message = format!("came from byte {start} on, not from {}", range.start);
            return Err(Error::new(Kind::Unavailable, message));
        }
        if meta.size == 0 {
            self.is_really_empty()?;
        }
        let asked = Instant::now();
        let allotted = allot(range.end - range.start);
        // Waiting for memory is not the storage's fault.
        self.until += asked.elapsed();
        let mut buffer = allotted?;
        buffer.clear();
        let buffer = self.take(body, buffer, range, &meta)?;
        // A server's sum is of all bytes.
        if request.range.is_none() {
            self.verify(&note, &buffer)?;
        }
        Ok(Object { bytes: buffer.into(), stat })
    }

    /// Why a range did not come. Of one that begins behind the object's end some servers say that there is none, and some
    /// send another one or the whole object.
    fn unsatisfied(&self, request: &ReadRequest<'_>, error: Error) -> Error {
        let is_refused = |status: StatusCode| status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE;
        if request.range.is_none() || !self.status.get().is_some_and(is_refused) {
            return error;
        }
        let head = self.head().and_then(|meta| request.bytes_of(stat_of(&meta)));
        head.err().unwrap_or(error)
    }

    /// Takes a part of an object from a body, and from others where that one breaks.
    fn take(
        &self,
        mut body: BoxStream<'static, object_store::Result<Bytes>>,
        mut buffer: Vec<u8>,
        range: Range<u64>,
        meta: &ObjectMeta,
    ) -> Result<Vec<u8>> {
        /// A body that breaks more often than this, though it comes further each time, is left to the loader's pauses.
        const MAX_RESUMED: u32 = 16;
        let size = (range.end - range.start) as usize;
        buffer.try_reserve_exact(size).map_err(|_| {
            Error::new(Kind::Exhausted, format!("is larger than the memory there is (got {size} bytes)"))
        })?;
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
            // A server need not know If-Match.
            if next.meta.e_tag.as_deref() != Some(&etag) || next.meta.size != meta.size || next.start != have {
                return Err(Error::new(Kind::Changed, "changed while it was read (its etag is another one)"));
            }
            body = next.body;
        }
    }

    /// An empty answer is more often a broken server than an empty object.
    fn is_really_empty(&self) -> Result<()> {
        let size = self.head()?.size;
        if size == 0 {
            return Ok(());
        }
        Err(self.client.server().cut(&Cause::Other("the answer was empty".to_owned()), 0, size))
    }

    /// Compares with what the server says the bytes add up to. A sum that is only guessed from an etag is told once: when
    /// a second read gives the same bytes, it was none.
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
            /// Those that were never read again are not kept for ever.
            const MAX_DOUBTED: usize = 10_000;
            if doubted.len() >= MAX_DOUBTED {
                doubted.clear();
            }
            doubted.insert(self.key.clone(), got.clone());
        }
        Err(other_bytes(&format!("came as {} bytes that are not those stored", bytes.len()), checksum, &got))
    }

    /// The same of bytes that were sent. They are the same at every attempt, so that another one proves nothing: only an
    /// etag is not believed, where none was ever an MD5.
    pub(super) fn verify_sent(&self, note: &Note, bytes: &[u8]) -> Result<()> {
        let Some(checksum) = note.checksum.as_ref().filter(|_| self.client.verifies) else { return Ok(()) };
        if checksum.algorithm == Algorithm::EtagMd5 && !self.client.has_md5_etags.load(Relaxed) {
            return self.verify(note, bytes);
        }
        let Some(got) = checksum.differs(bytes) else { return Ok(()) };
        self.meters.mismatches.fetch_add(1, Relaxed);
        Err(other_bytes(&format!("was sent as {} bytes, and others were stored", bytes.len()), checksum, &got))
    }

    /// One page of a directory, and the names that had to be taken out of it.
    fn page(&self, token: Option<String>, max_keys: Option<usize>) -> Result<(PaginatedListResult, Vec<String>)> {
        let Some(lister) = self.client.lister.clone() else {
            return Err(Error::config("cannot be listed, because HTTP has no listing")
                .with_hint("give the names in a manifest (`manifest`)"));
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
                    // Once more, without the names that no path can hold.
                    note(|note| note.filters_names = true);
                    lister.list_paginated(prefix, options).await
                }
                done => done,
            }
        };
        self.ask("listed", request).map(|(page, note)| (page, note.invalid))
    }

    /// Whether there are objects below the name, as below that of a directory.
    pub(super) fn is_directory(&self) -> bool {
        let is_empty = |(page, invalid): (PaginatedListResult, Vec<String>)| {
            page.result.objects.is_empty() && page.result.common_prefixes.is_empty() && invalid.is_empty()
        };
        self.client.lister.is_some() && self.page(None, Some(1)).is_ok_and(|page| !is_empty(page))
    }

    /// What of a name comes behind that of this directory.
    fn below<'a>(&self, key: &'a str) -> Option<&'a str> {
        let name = if self.key.is_empty() { key } else { key.strip_prefix(&self.key)?.strip_prefix('/')? };
        (!name.is_empty()).then_some(name)
    }

    /// The last part of a name that lies directly in this directory, and `None` for the directory itself.
    fn name<'a>(&self, key: &'a str) -> Result<Option<&'a str>> {
        match self.below(key) {
            Some(name) if !name.contains('/') => Ok(Some(name)),
            None if key.is_empty() || key == self.key => Ok(None),
            _ => Err(self.client.server().elsewhere(key)),
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
                    // The client takes a slash at the beginning away, and with it the whole name.
                    None => partial.listing.push_refused("/".to_owned()),
                }
            }
            for object in &page.result.objects {
                match self.name(object.location.as_ref())? {
                    Some(name) if partial.pagination.objects.is_new(name, false, &partial.listing) => {
                        partial.listing.push_object(OsStr::new(name), version_of(object));
                    }
                    Some(_) => {}
                    // An object that stands for the directory itself.
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
            "a proxy cut or changed it; if the server's etags are no MD5, set `storage_options.verify_checksums=false`"
        }
        _ => {
            "a proxy, the network or a damaged copy on the server changed it: look at the server, or restore the object; \
             if its checksums are wrong, set `storage_options.verify_checksums=false`"
        }
    };
    let message = format!("{what} ({name}: expected {expected}, got {got})");
    Error::new(Kind::Unavailable, message).transient().with_hint(hint)
}

/// What a listing or an answer says of an object. Of the time whole seconds, as headers have no more.
pub(super) fn version_of(meta: &ObjectMeta) -> Version {
    let mtime_ns = meta.last_modified.timestamp().saturating_mul(1_000_000_000);
    let etag = meta.e_tag.as_deref().map(plain_etag).filter(|etag| !etag.is_empty());
    Version { size_bytes: Some(meta.size), mtime_ns: Some(mtime_ns), etag: etag.map(Box::from) }
}

pub(super) fn stat_of(meta: &ObjectMeta) -> Stat {
    let Version { mtime_ns, etag, .. } = version_of(meta);
    Stat { size_bytes: meta.size, mtime_ns: stamp_ns(mtime_ns.unwrap_or_default(), etag.as_deref()) }
}
