//! All targets in one program: FOREBAY_FUZZ_TARGET names the one to run; `list` prints all, with the endings of their
//! golden pictures.

#![no_main]

use std::sync::LazyLock;

use fuzztargets::Target;
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let names: Vec<_> = fuzztargets::TARGETS.iter().map(|target| target.name).collect();
    let name = std::env::var("FOREBAY_FUZZ_TARGET").unwrap_or_default();
    let target = fuzztargets::find(&name);
    let target = target.unwrap_or_else(|| panic!("FOREBAY_FUZZ_TARGET is {name:?}: expected one of {names:?}"));
    if target.may_panic {
        // libFuzzer's hook ends the process, even where a panic would be caught.
        std::panic::set_hook(Box::new(|_| ()));
    }
    target
});

fn list() {
    if std::env::var_os("FOREBAY_FUZZ_TARGET").is_some_and(|name| name == "list") {
        for target in fuzztargets::TARGETS {
            println!("{} {}", target.name, target.golden.join(" "));
        }
        std::process::exit(0);
    }
}

fuzz_target!(init: list(), |bytes: &[u8]| (TARGET.run)(bytes));
