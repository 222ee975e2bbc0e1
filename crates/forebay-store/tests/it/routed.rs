//! Several stores as one against the contract.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_store::testing::{Memory, conformance};
use forebay_store::{Local, MemoryCache, MemoryCached, Routed, Store};

#[test]
fn several_stores_conform_as_each_of_them_does() {
    let (data, in_memory) = (tempfile::tempdir().unwrap(), Path::new("/memory"));
    let mut memory = Memory::default();
    for (name, content) in conformance::OBJECTS {
        memory.insert(in_memory.join(name), *content);
        let path = data.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let cached = MemoryCached::new(Arc::new(memory), Arc::new(MemoryCache::new(1 << 20)));
    let stores: [(PathBuf, Arc<dyn Store>); 2] =
        [(in_memory.to_owned(), Arc::new(cached)), (data.path().to_owned(), Arc::new(Local))];
    let routed = Routed::new(stores).unwrap();
    for root in [in_memory, data.path()] {
        conformance::check(&routed, root);
        conformance::check_ranges(&routed, root, conformance::OBJECTS);
        conformance::check_ranges(routed.origin().unwrap(), root, conformance::OBJECTS);
    }
    conformance::check_changes(&routed, data.path(), &crate::rewrite);
}
