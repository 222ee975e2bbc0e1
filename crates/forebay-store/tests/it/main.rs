//! Every store, and every wrapper of one, against the contract.

#![allow(clippy::disallowed_methods, reason = "the crate that touches the disk")]

mod isolate;

use std::path::Path;

use forebay_store::testing::{Memory, Scripted, conformance};
use forebay_store::{Local, Store};

#[test]
fn local_files_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in conformance::OBJECTS {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    conformance::check(&Local, folder.path());
    conformance::check(&Scripted::new(Local), folder.path());
}

#[test]
fn memory_keeps_the_contract() {
    let mut store = Memory::default();
    for (name, content) in conformance::OBJECTS {
        store.insert(Path::new("/root").join(name), *content);
    }
    conformance::check(&store as &dyn Store, Path::new("/root"));
}
