//! Errors about reads that do not return: the caller abandons such a read and reports it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_core::{Error, Kind};

use crate::mount::Mount;

/// A read that was abandoned and has not returned.
#[derive(Clone, Debug)]
pub struct Stuck {
    /// The object.
    pub path: PathBuf,
    /// Its mount.
    pub mount: Option<Mount>,
    /// How long ago the read began.
    pub elapsed: Duration,
}

/// The error of a read that exceeded its deadline.
pub fn late(path: &Path, within: Duration) -> Error {
    let mount = Mount::of(path)
        .map_or(String::new(), |mount| format!(" ({} from {} on {:?})", mount.filesystem, mount.source, mount.point));
    let message = format!("did not answer within {:.1} s{mount}", within.as_secs_f64());
    Error::new(Kind::Timeout, message).transient()
}

/// The error when more reads are stuck than the limit allows; `what` runs them. It concerns every sample.
pub fn too_many_stuck(what: &str, stuck: &[Stuck]) -> Error {
    let mut message = format!("was given up: {} {what} are stuck in the kernel", stuck.len());
    for Stuck { path, mount, elapsed } in stuck {
        let mount = mount.as_ref().map_or("an unknown mount".to_owned(), Mount::to_string);
        message += &format!("\n  {path:?} on {mount} for {:.1} s", elapsed.as_secs_f64());
    }
    Error::new(Kind::Exhausted, message).of_every_sample().with_hint(
        "the storage is gone rather than slow: restore or remount it, then resume from the last state; \
         `max_lost_threads` allows more",
    )
}
