//! Objects of S3, Google Cloud Storage, Azure and HTTP servers.
//!
//! What is done within one call, and nothing beyond it: a deadline, going on with a body where it broke (the object being
//! the same), and checking that all of it came. Trying again is the loader's.

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
use crate::store::{Allot, Ends, Object, Stat, Stop, Store};
pub use location::{Protocol, file_path, is_same_origin, is_url, protocol_of};
pub use options::{StorageOptions, read_setting};
pub use verify::Sum;
pub(crate) use write::Upload;

/// Calls that have no deadline of their own are given this.
const DEADLINE: Duration = Duration::from_secs(60);

/// What went over the network for a store, over its whole life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Where: `s3://bucket`.
    pub place: String,
    /// Requests sent.
    pub requests: u64,
    /// Names that came in listings.
    pub listed: u64,
    /// Bytes of objects that came, those of bodies that broke included.
    pub bytes: u64,
    /// Bodies that broke and were gone on with where they broke.
    pub resumed: u64,
    /// Answers that asked for less load.
    pub throttles: u64,
    /// Bodies that were complete and did not add up to what their server said.
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
/// Paths are URLs below the root it was made for. Cloned, it counts together. A forked child can use it: it makes its own
/// connections.
#[derive(Clone, Debug)]
pub struct Remote {
    place: Arc<Place>,
    stop: Option<Stop>,
    meters: Arc<Meters>,
    /// Listings that a failed page interrupted.
    partial: Arc<Mutex<HashMap<PathBuf, Partial>>>,
}

/// The root of a URL as it stands in paths, and its options with those that the URL has. Asks nothing of the server.
pub fn split_url(root: &Path, options: &StorageOptions) -> Result<(PathBuf, Vec<(String, String)>)> {
    let (location, root) = Location::parse(root)?;
    let options = options.over(&location.options);
    Ok((root, options.iter().map(|(name, value)| (name.to_owned(), value.reveal().to_owned())).collect()))
}

/// What users should know of the servers that this process speaks to: what has come up since the last call, each once.
pub fn take_warnings() -> Vec<String> {
    Pool::running().map_or_else(Vec::new, Pool::take_warnings)
}

impl Remote {
    /// The store of a root, and the root without what of its URL does not belong into paths. Asks nothing of the server.
    pub fn open(root: &Path, options: &StorageOptions) -> Result<(Self, PathBuf)> {
        let (location, root) = Location::parse(root)?;
        let place = Place::new(location, options.clone());
        // Wrong options are found out here, before any thread of a loader starts.
        Pool::get()?.client(&place)?;
        let (meters, partial) = (Arc::default(), Arc::default());
        Ok((Self { place: Arc::new(place), stop: None, meters, partial }, root))
    }

    /// Whether both are one bucket of one server, however it is called and whatever keys are given for it.
    pub fn is_same_bucket(&self, other: &Self) -> bool {
        let (one, two) = (&self.place.location, &other.place.location);
        one.protocol == two.protocol && one.bucket == two.bucket && self.identity() == other.identity()
    }

    /// Where a path lies in its bucket.
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
            ends: Ends { stop: self.stop.clone(), cancel: None },
            meters: Arc::clone(&self.meters),
            status: Cell::default(),
        })
    }
}

/// How long nothing may come of a request: the read timeout, or less where the call's own deadline is shorter, so that a
/// request that hangs leaves time for another one. A third of it; but a second is granted where half of it allows that.
fn silence_allowed(read_timeout: Duration, within: Duration) -> Duration {
    read_timeout.min((within / 3).max((within / 2).min(Duration::from_secs(1))))
}

impl Store for Remote {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        request.check_cancel()?;
        let read = self.call(request.path, request.within).and_then(|mut call| {
            call.ends.cancel = request.cancel.cloned();
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
        let look = || {
            let call = self.call(path, DEADLINE)?;
            let (_, note) = call.look()?;
            Ok(note.checksum.filter(|_| call.client.verifies).map(Sum::new))
        };
        look().map_err(|error: Error| error.at_path(path).at_stage(Stage::Fetch))
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        let meta = self.call(path, DEADLINE).and_then(|call| call.head());
        meta.map(|meta| stat_of(&meta)).map_err(|error| error.at_path(path).at_stage(Stage::Fetch))
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        let partials = || self.partial.lock();
        let list = || {
            // Of a directory each page has the time of a call.
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
                    // The next attempt asks for the page that failed. One that cannot be had begins anew.
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
        // Without a descriptor for it, calls end at their deadline.
        let stop = Stop::new().ok()?;
        Some((Arc::new(Self { stop: Some(stop.clone()), ..self.clone() }), stop))
    }

    fn capabilities(&self) -> Capabilities {
        /// At a time; a page takes a round trip, and next to nothing of this machine.
        const MAX_CALLS: usize = 256;
        let can_list = self.place.location.protocol != Protocol::Http;
        let max_calls = Some(MAX_CALLS);
        Capabilities { is_remote: true, keeps_deadlines: true, can_list, max_calls, ..Capabilities::default() }
    }

    fn identity(&self) -> String {
        // Without a user or a password, should they stand in it. A client that cannot be made fails the next call.
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
