//! Defaults of settings, by the kind of storage.

use std::time::Duration;

use forebay_core::Retry;
use forebay_store::{MountKind, Store};

/// Settings that depend on where the files lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// How transient errors are tried again.
    pub retry: Retry,
    /// Concurrent reads at the start.
    pub io_threads: usize,
    /// The most concurrent reads, if more of them raise throughput.
    pub max_io_threads: usize,
}

impl Defaults {
    /// For this kind of storage; `None` where the system does not tell.
    pub fn on(kind: Option<MountKind>, cpu_threads: usize) -> Self {
        /// More at a time than a disk of this machine has ever needed; not measured.
        const MAX_LOCAL: usize = 32;
        /// Where a read takes 50 ms, this many give 1,280 a second. Not measured.
        const MAX_REMOTE: usize = 64;
        /// What a disk of this machine, or its page cache, gives to this many is enough for 16 processors: with 16, the
        /// loader was 7 % slower, because they take the processors from those that decode.
        const LOCAL: usize = 4;
        /// To begin with, and at most, where each read is a request of its own: at 50 ms a request, 256 give 5,120 a
        /// second. Of 200 MB/s the loader got 93 to 96 % of what the bare client got (benchmarks/README.md).
        const OBJECTS: (usize, usize) = (32, 256);
        let retry = Retry::default();
        if kind == Some(MountKind::Remote) {
            // Pauses of up to 0.1 to 5 s, together some 25 s: a server that restarts is back by then.
            let (first_pause, deadline) = (Duration::from_millis(100), Duration::from_secs(120));
            let retry = Retry { retries: 15, first_pause, deadline, is_spread: true };
            return Self { retry, io_threads: OBJECTS.0, max_io_threads: OBJECTS.1 };
        }
        if kind.is_none_or(MountKind::can_hang) {
            // Above the 60 seconds after which the kernel's NFS client tries again by itself.
            let retry = Retry { deadline: Duration::from_secs(120), ..retry };
            return Self { retry, io_threads: cpu_threads.clamp(LOCAL, MAX_LOCAL), max_io_threads: MAX_REMOTE };
        }
        // A disk that fails rarely does better a second later. The kernel gives up on one after 30 seconds.
        Self { retry: Retry { retries: 3, ..retry }, io_threads: LOCAL, max_io_threads: MAX_LOCAL }
    }
}

/// Of several kinds of storage the one that is farthest away: its defaults do no harm to the others.
pub fn farthest(kinds: impl IntoIterator<Item = Option<MountKind>>) -> Option<MountKind> {
    let distance = |kind: &Option<MountKind>| match kind {
        Some(MountKind::Remote) => 2,
        kind => i32::from(kind.is_none_or(MountKind::can_hang)),
    };
    kinds.into_iter().max_by_key(distance).flatten()
}

/// How listing and looking are tried again, before there is a loader with settings.
pub(crate) fn retry_of(store: &dyn Store) -> Retry {
    match store.capabilities().is_remote {
        true => Defaults::on(Some(MountKind::Remote), 1).retry,
        false => Retry::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_far_away_gets_more_patience_and_more_reads_at_a_time() {
        let (near, far) = (Defaults::on(Some(MountKind::Local), 2), Defaults::on(Some(MountKind::Network), 2));
        assert!(far.retry.retries > near.retry.retries && far.retry.deadline > near.retry.deadline);
        assert!(far.max_io_threads > near.max_io_threads);
        assert_eq!((near.io_threads, Defaults::on(Some(MountKind::Network), 100).io_threads), (4, 32));
        assert_eq!(Defaults::on(None, 2), far);
        let [disk, mount, server] = [MountKind::Local, MountKind::Network, MountKind::Remote].map(Some);
        assert_eq!(farthest([disk, server, mount]), server);
        assert_eq!((farthest([disk, mount]), farthest([disk, disk]), farthest([None, disk])), (mount, disk, None));
        let objects = Defaults::on(Some(MountKind::Remote), 2);
        assert!(objects.max_io_threads > far.max_io_threads && objects.retry.retries > far.retry.retries);
    }
}
