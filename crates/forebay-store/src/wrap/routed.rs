//! Several stores as one: each path is read from the store of the root that it lies below.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Listing, Result};

use crate::capabilities::Capabilities;
use crate::read_request::ReadRequest;
use crate::remote::{Sum, Traffic};
use crate::store::{Allot, Object, Stat, Stop, Store};
use crate::wrap::{CacheStats, Readers};

/// Stores by the roots that their paths begin with. The longest root counts; a path below none is an error.
///
/// What it says of itself holds for all of its stores, and counts are sums.
#[derive(Debug)]
pub struct Routed {
    routes: Arc<[Route]>,
    /// The same without caches.
    origins: Option<Origins>,
}

#[derive(Clone, Debug)]
struct Route {
    root: PathBuf,
    store: Arc<dyn Store>,
}

impl Routed {
    /// Routes paths to stores. The same root may come again, with the same store or with one of the same identity.
    pub fn new(stores: impl IntoIterator<Item = (PathBuf, Arc<dyn Store>)>) -> Result<Self> {
        let mut routes: Vec<Route> = Vec::new();
        for (root, store) in stores {
            match routes.iter().find(|route| route.root == root) {
                None => routes.push(Route { root, store }),
                Some(known) if Arc::ptr_eq(&known.store, &store) || known.store.identity() == store.identity() => {}
                Some(_) => {
                    let error = Error::config("is the root of two datasets with different storage options");
                    return Err(error.at_path(&root).with_hint("give both datasets the same options"));
                }
            }
        }
        // Longer roots first, so that the first match is the longest.
        routes.sort_by_key(|route| std::cmp::Reverse(route.root.as_os_str().len()));
        Ok(Self::of(routes.into()))
    }

    fn of(routes: Arc<[Route]>) -> Self {
        let has_origins = routes.iter().any(|route| route.store.origin().is_some());
        Self { origins: has_origins.then(|| Origins(Arc::clone(&routes))), routes }
    }

    fn all<T>(&self, get: impl Fn(&dyn Store) -> Option<T>) -> impl Iterator<Item = T> {
        self.routes.iter().filter_map(move |route| get(&*route.store))
    }
}

/// The store of the longest root that a path lies below.
fn route<'a>(routes: &'a [Route], path: &Path) -> Result<&'a dyn Store> {
    let route = routes
        .iter()
        .find(|route| is_below(path, &route.root))
        .ok_or_else(|| Error::internal("lies below none of the roots of these datasets").at_path(path))?;
    Ok(&*route.store)
}

/// Whether a path is a root or lies below it. Datasets join names to their root as it is, so bytes can be compared.
fn is_below(path: &Path, root: &Path) -> bool {
    let (path, root) = (path.as_os_str().as_encoded_bytes(), root.as_os_str().as_encoded_bytes());
    // Paths without a common directory have no root, or the current directory.
    if root.is_empty() || root == b"." {
        return true;
    }
    let ends_in_separator = root.ends_with(b"/");
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || ends_in_separator || rest.starts_with(b"/"))
}

impl Store for Routed {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        route(&self.routes, request.path)?.fetch(request, allot)
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        route(&self.routes, path)?.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        route(&self.routes, directory)?.list(directory)
    }

    fn sum(&self, path: &Path) -> Result<Option<Sum>> {
        route(&self.routes, path)?.sum(path)
    }

    fn stoppable(&self) -> Option<(Arc<dyn Store>, Stop)> {
        let mut stops = Vec::new();
        let stoppable = |route: &Route| match route.store.stoppable() {
            Some((store, stop)) => {
                stops.push(stop);
                Route { store, ..route.clone() }
            }
            None => route.clone(),
        };
        let routes: Arc<[Route]> = self.routes.iter().map(stoppable).collect();
        let stop = Stop::of_all(stops)?;
        Some((Arc::new(Self::of(routes)), stop))
    }

    fn rest(&self) {
        self.routes.iter().for_each(|route| route.store.rest());
    }

    fn capabilities(&self) -> Capabilities {
        let mut all = self.routes.iter().map(|route| route.store.capabilities());
        let first = all.next().unwrap_or_default();
        all.fold(first, |one, other| Capabilities {
            is_remote: one.is_remote || other.is_remote,
            keeps_deadlines: one.keeps_deadlines && other.keeps_deadlines,
            can_list: one.can_list && other.can_list,
            // All calls may be to the store that serves fewest.
            max_calls: one.max_calls.into_iter().chain(other.max_calls).min(),
            is_isolated: one.is_isolated || other.is_isolated,
            is_cached: one.is_cached || other.is_cached,
        })
    }

    fn hangs_for(&self, within: Duration) -> Option<Duration> {
        self.all(|store| store.hangs_for(within)).max()
    }

    fn readers(&self) -> Option<Readers> {
        self.all(|store| store.readers()).reduce(|one, other| Readers {
            alive: one.alive + other.alive,
            lost: one.lost + other.lost,
            started: one.started + other.started,
            written_off: one.written_off + other.written_off,
            died: one.died + other.died,
        })
    }

    fn traffic(&self) -> Option<Traffic> {
        self.all(|store| store.traffic()).reduce(|one, other| Traffic {
            place: if one.place == other.place { one.place } else { format!("{}, {}", one.place, other.place) },
            requests: one.requests + other.requests,
            listed: one.listed + other.listed,
            bytes: one.bytes + other.bytes,
            resumed: one.resumed + other.resumed,
            throttles: one.throttles + other.throttles,
            mismatches: one.mismatches + other.mismatches,
        })
    }

    fn identity(&self) -> String {
        let identities: Vec<_> = self.routes.iter().map(|route| route.store.identity()).collect();
        identities.join("\n")
    }

    fn origin(&self) -> Option<&dyn Store> {
        self.origins.as_ref().map(|origins| origins as &dyn Store)
    }

    fn doubt(&self, path: &Path) {
        if let Ok(store) = route(&self.routes, path) {
            store.doubt(path);
        }
    }

    fn doubt_range(&self, path: &Path, range: Range<u64>) {
        if let Ok(store) = route(&self.routes, path) {
            store.doubt_range(path, range);
        }
    }

    fn cache(&self) -> Option<CacheStats> {
        self.all(|store| store.cache()).reduce(|one, other| CacheStats {
            hits: one.hits + other.hits,
            misses: one.misses + other.misses,
            passes: one.passes + other.passes,
            evictions: one.evictions + other.evictions,
            corrupt: one.corrupt + other.corrupt,
            stale: one.stale + other.stale,
            bytes: one.bytes.saturating_add(other.bytes),
            limit_bytes: one.limit_bytes.saturating_add(other.limit_bytes),
        })
    }

    fn cache_notice(&self) -> Option<String> {
        self.all(|store| store.cache_notice()).next()
    }
}

/// The stores behind caches; where there is no cache, the store itself.
#[derive(Debug)]
struct Origins(Arc<[Route]>);

impl Origins {
    fn route(&self, path: &Path) -> Result<&dyn Store> {
        route(&self.0, path).map(|store| store.origin().unwrap_or(store))
    }
}

impl Store for Origins {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        self.route(request.path)?.fetch(request, allot)
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        self.route(path)?.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        self.route(directory)?.list(directory)
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::testing::Memory;
    use crate::{MemoryCache, MemoryCached};

    fn memory(paths: &[&str]) -> Arc<dyn Store> {
        let mut memory = Memory::default();
        paths.iter().for_each(|path| memory.insert(*path, path.as_bytes()));
        Arc::new(memory)
    }

    fn read(store: &dyn Store, path: &str) -> Result<Vec<u8>> {
        store.read(Path::new(path), Duration::MAX, &mut |_| Ok(Vec::new())).map(|object| object.bytes.into_vec())
    }

    #[test]
    fn a_path_is_read_from_the_store_of_its_longest_root() {
        let cache = Arc::new(MemoryCache::new(1 << 20));
        let cached: Arc<dyn Store> = Arc::new(MemoryCached::new(memory(&["/a/deep/2"]), cache));
        let stores = [
            ("/a", memory(&["/a/1", "/a/deeper/3"])),
            ("/a/deep", cached),
            ("s3://bucket", memory(&["s3://bucket/4"])),
        ];
        let routed = Routed::new(stores.map(|(root, store)| (PathBuf::from(root), store))).unwrap();
        for path in ["/a/1", "/a/deep/2", "/a/deeper/3", "s3://bucket/4"] {
            assert_eq!(read(&routed, path).unwrap(), path.as_bytes());
            assert_eq!(read(routed.origin().unwrap(), path).unwrap(), path.as_bytes());
        }
        assert!(read(&routed, "/b/1").unwrap_err().to_string().contains("below none of the roots"));
        assert!(read(&routed, "s3://bucket2/4").is_err());
        let CacheStats { hits, misses, .. } = routed.cache().unwrap();
        assert_eq!((hits, misses), (0, 1), "what has no cache is not counted");
        routed.doubt(Path::new("/a/deep/2"));
        assert_eq!(routed.cache().unwrap().bytes, 0);
        assert!(routed.capabilities().is_cached && !routed.capabilities().is_remote);
    }

    #[test]
    fn one_root_has_one_store() {
        #[derive(Debug)]
        struct Named(&'static str);
        impl Store for Named {
            fn fetch(&self, _request: &ReadRequest<'_>, _allot: &mut Allot<'_>) -> Result<Object> {
                Err(Error::internal("nothing is read here"))
            }
            fn stat(&self, _path: &Path) -> Result<Stat> {
                Err(Error::internal("nothing is read here"))
            }
            fn list(&self, _directory: &Path) -> Result<Listing> {
                Err(Error::internal("nothing is read here"))
            }
            fn identity(&self) -> String {
                self.0.to_owned()
            }
        }
        let routed = |names: [&'static str; 2]| {
            Routed::new(names.map(|name| (PathBuf::from("s3://bucket"), Arc::new(Named(name)) as Arc<dyn Store>)))
        };
        assert!(routed(["one", "one"]).is_ok());
        let message = routed(["one", "two"]).unwrap_err().to_string();
        assert!(message.contains("root of two datasets with different storage options"), "{message}");
    }
}
