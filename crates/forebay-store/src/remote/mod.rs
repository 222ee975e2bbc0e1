//! Objects of S3, Google Cloud Storage, Azure and HTTP servers.
//!
//! Within one call: a deadline, resuming a broken body at its offset (if the object is unchanged), and checking that it
//! is complete. Retries are left to the loader.

mod call;
mod client;
mod connector;
mod failure;
mod invalid_names;
mod location;
mod options;
mod pagination;
mod plaintext;
mod profile;
mod transport;
mod verify;
mod write;

use std::cell::Cell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_core::{Error, Kind, Listing, Result, Stage, hash_words};
use parking_lot::Mutex;

use call::{Call, Partial, stat_of};
use client::{Place, Pool};
use location::Location;

use crate::capabilities::Capabilities;
use crate::read_request::ReadRequest;
use crate::store::{Allot, CancelSignals, Object, Stat, Stop, Store};
pub use location::{Protocol, file_path, is_same_origin, is_url, protocol_of};
pub use options::{StorageOptions, read_setting};
pub use verify::Sum;
pub(crate) use write::Upload;

/// The deadline of calls without their own.
const DEADLINE: Duration = Duration::from_secs(60);

/// The network traffic of a store since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The location: `s3://bucket`.
    pub place: String,
    /// Requests sent.
    pub requests: u64,
    /// Names received in listings.
    pub listed: u64,
    /// Bytes of objects received, including those of bodies that broke off.
    pub bytes: u64,
    /// Bodies that broke off and were resumed.
    pub resumed: u64,
    /// Responses that asked for fewer requests.
    pub throttles: u64,
    /// Complete bodies that did not match the server's checksum.
    pub mismatches: u64,
}

#[derive(Debug, Default)]
struct Meters {
    requests: AtomicU64,
    listed: AtomicU64,
    bytes: AtomicU64,
    resumed: AtomicU64,
    throttles: AtomicU64,
    mismatches: AtomicU64,
}

/// Objects of a bucket, a container or a server.
///
/// Paths are URLs below the root it was made for. Clones share their statistics. A forked child can use it, with
/// connections of its own.
#[derive(Clone, Debug)]
pub struct Remote {
    place: Arc<Place>,
    stop: Option<Stop>,
    meters: Arc<Meters>,
    /// Listings that were interrupted by a failed page.
    partial: Arc<Mutex<HashMap<PathBuf, Partial>>>,
}

/// The root as it appears in paths, and its options including those in the URL. Sends no request.
pub fn split_url(root: &Path, options: &StorageOptions) -> Result<(PathBuf, Vec<(String, String)>)> {
    let (location, root) = Location::parse(root)?;
    let options = options.over(&location.options);
    Ok((root, options.iter().map(|(name, value)| (name.to_owned(), value.reveal().to_owned())).collect()))
}

/// Warnings about the servers that this process uses, since the last call. Each is returned once.
pub fn take_warnings() -> Vec<String> {
    Pool::running().map_or_else(Vec::new, Pool::take_warnings)
}

impl Remote {
    /// The store of a root, and the root without the parts of its URL that do not belong in paths. Sends no request.
    pub fn open(root: &Path, options: &StorageOptions) -> Result<(Self, PathBuf)> {
        let (location, root) = Location::parse(root)?;
        let place = Place::new(location, options.clone());
        // Wrong options are found here, before a loader starts any thread.
        Pool::get()?.client(&place)?;
        let (meters, partial) = (Arc::default(), Arc::default());
        Ok((Self { place: Arc::new(place), stop: None, meters, partial }, root))
    }

    /// Whether both are the same bucket of the same server, under any name and with any credentials.
    pub fn is_same_bucket(&self, other: &Self) -> bool {
        let (one, two) = (&self.place.location, &other.place.location);
        one.protocol == two.protocol && one.bucket == two.bucket && self.identity() == other.identity()
    }

    /// The path within its bucket.
    pub fn key_of(&self, path: &Path) -> Result<PathBuf> {
        self.place.location.key(path).map(PathBuf::from)
    }

    fn call(&self, path: &Path, within: Duration) -> Result<Call> {
        let pool = Pool::get()?;
        let client = pool.client(&self.place)?;
        let key = self.place.location.key(path)?.to_owned();
        let within = within.min(client.timeout.unwrap_or(Duration::MAX));
        let until = Instant::now().checked_add(within).unwrap_or_else(|| Instant::now() + 1_000_000 * DEADLINE);
        Ok(Call {
            silence: silence_allowed(client.read_timeout, within),
            pool,
            client,
            key,
            until,
            signals: CancelSignals { stop: self.stop.clone(), cancel: None },
            meters: Arc::clone(&self.meters),
            status: Cell::default(),
        })
    }
}

/// How long the connection may be silent: the read timeout, or a third of the call's deadline if that is shorter, so
/// that a request that hangs leaves time for another one; but at least a second if that is not more than half of the
/// deadline.
fn silence_allowed(read_timeout: Duration, within: Duration) -> Duration {
    read_timeout.min((within / 3).max((within / 2).min(Duration::from_secs(1))))
}

impl Store for Remote {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        request.check_cancel()?;
        let read = self.call(request.path, request.within).and_then(|mut call| {
            call.signals.cancel = request.cancel.cloned();
            call.read(request, allot).map_err(|error| match error.kind() {
                Kind::NotFound if call.is_directory() => {
                    Error::new(Kind::Undecodable, "is a directory, not a regular object")
                }
                _ => error,
            })
        });
        read.map_err(|error| error.at_path(request.path).at_stage(Stage::Fetch))
    }

    fn sum(&self, path: &Path) -> Result<Option<Sum>> {
        let sum = || {
            let call = self.call(path, DEADLINE)?;
            let (_, note) = call.head_with_note()?;
            Ok(note.checksum.filter(|_| call.client.verifies).map(Sum::new))
        };
        sum().map_err(|error: Error| error.at_path(path).at_stage(Stage::Fetch))
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        let meta = self.call(path, DEADLINE).and_then(|call| call.head());
        meta.map(|meta| stat_of(&meta)).map_err(|error| error.at_path(path).at_stage(Stage::Fetch))
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        let partials = || self.partial.lock();
        let list = || {
            // Each page of a directory has the time of one call.
            let call = self.call(directory, Duration::MAX)?;
            let words: Vec<_> = call.key.bytes().map(u64::from).collect();
            let begin = || Partial::new(Listing::new((0, hash_words(&words))));
            let mut partial = partials().remove(directory).unwrap_or_else(begin);
            match call.list(&mut partial) {
                Ok(()) if partial.is_empty() && !call.key.is_empty() => {
                    Err(Error::new(Kind::NotFound, "could not be listed: there is no object below it")
                        .with_hint("check the name of the bucket, the path in it, and the endpoint"))
                }
                Ok(()) => Ok(partial.listing),
                Err(error) => {
                    // The next attempt resumes at the page that failed. A lost state means starting over.
                    if error.is_transient() {
                        partials().insert(directory.to_owned(), partial);
                    }
                    Err(error)
                }
            }
        };
        list().map_err(|error: Error| error.at_path(directory).at_stage(Stage::Scan))
    }

    fn stoppable(&self) -> Option<(Arc<dyn Store>, Stop)> {
        // Without a descriptor calls cannot be stopped: they end at their deadline.
        let stop = Stop::new().ok()?;
        Some((Arc::new(Self { stop: Some(stop.clone()), ..self.clone() }), stop))
    }

    fn capabilities(&self) -> Capabilities {
        /// Concurrent calls. A page takes a round trip, and almost no CPU.
        const MAX_CALLS: usize = 256;
        let can_list = self.place.location.protocol != Protocol::Http;
        let max_calls = Some(MAX_CALLS);
        Capabilities { is_remote: true, keeps_deadlines: true, can_list, max_calls, ..Capabilities::default() }
    }

    fn identity(&self) -> String {
        // Without user and password. If the client cannot be made, the next call reports that.
        let client = Pool::get().and_then(|pool| pool.client(&self.place));
        client.map_or(String::new(), |client| match client.endpoint.split_once("://") {
            Some((scheme, rest)) => format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, host)| host)),
            None => client.endpoint.clone(),
        })
    }

    fn traffic(&self) -> Option<Traffic> {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let meters = &self.meters;
        Some(Traffic {
            place: self.place.location.base.clone(),
            requests: get(&meters.requests),
            listed: get(&meters.listed),
            bytes: get(&meters.bytes),
            resumed: get(&meters.resumed),
            throttles: get(&meters.throttles),
            mismatches: get(&meters.mismatches),
        })
    }
}
