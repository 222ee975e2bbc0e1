//! The cache in memory against the contract.

use std::path::Path;
use std::sync::Arc;

use forebay_core::{Listing, Result};
use forebay_store::testing::{Memory, conformance};
use forebay_store::{Local, MemoryCache, MemoryCached, Object, ReadRequest, Stat, Store};

/// Asks for what the storage has now, each time: without that, what is kept is not compared with the storage.
#[derive(Debug)]
struct Doubting(MemoryCached);

impl Store for Doubting {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut forebay_store::Allot<'_>) -> Result<Object> {
        self.0.doubt(request.path);
        self.0.fetch(request, allot)
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        self.0.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        self.0.list(directory)
    }
}

#[test]
fn a_cache_in_memory_conforms_as_the_store_behind_it_does() {
    let data = tempfile::tempdir().unwrap();
    let (mut memory, root) = (Memory::default(), Path::new("/data"));
    for (name, content) in conformance::OBJECTS {
        memory.insert(root.join(name), *content);
        let path = data.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let stores: [(Arc<dyn Store>, &Path); 2] = [(Arc::new(memory), root), (Arc::new(Local), data.path())];
    for (store, root) in stores {
        // Everything fits, some of it, nothing.
        for limit_bytes in [1 << 20, 500, 0] {
            let cached = MemoryCached::new(Arc::clone(&store), Arc::new(MemoryCache::new(limit_bytes)));
            // Parts before the whole, which parts are taken of from then on.
            conformance::check_ranges(&cached, root, conformance::OBJECTS);
            let first = cached.cache().unwrap();
            conformance::check_ranges(&cached, root, conformance::OBJECTS);
            let second = cached.cache().unwrap();
            assert_eq!((first.misses, first.bytes), (second.misses, second.bytes), "{second:?}");
            for _ in 0..2 {
                conformance::check(&cached, root);
            }
            let stats = cached.cache().unwrap();
            assert!(stats.bytes <= limit_bytes, "{stats:?}");
            assert_eq!(stats.passes == 0, limit_bytes == 1 << 20, "{stats:?}");
            assert_eq!(stats.hits > 0 && stats.misses > 0, limit_bytes > 0, "{stats:?}");
        }
    }
    let cached = MemoryCached::new(Arc::new(Local), Arc::new(MemoryCache::new(16 << 20)));
    conformance::check_changes(&Doubting(cached), data.path(), &crate::rewrite);
}
