//! The health of a mount, from the kernel's own files: examining the mount itself could hang.

use std::fs;
use std::path::Path;

use crate::mount::{Mount, MountTable, unescape};

/// A mount, and the requests that wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountState {
    /// The mount.
    pub mount: Mount,
    /// The requests of the kernel's client; `None` if it publishes none.
    pub requests: Option<Requests>,
}

/// Unanswered requests of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// FUSE: requests of all processes that the daemon has not answered.
    Fuse {
        /// How many.
        waiting: u64,
    },
    /// NFS: counts since it was mounted.
    Nfs {
        /// Sent, not answered yet.
        unanswered: u64,
        /// Sent more than once.
        sent_again: u64,
        /// Timed out in the client, which sends them again or fails them.
        timeouts: u64,
    },
}

impl MountState {
    /// Reads kernel files only, never the mount.
    pub fn of(table: &MountTable, mount: Mount) -> Self {
        let requests = if mount.filesystem.starts_with("fuse") {
            let control = table.mounts().find(|mount| mount.filesystem == "fusectl");
            control.and_then(|control| fuse_requests(&control.point, mount.device))
        } else if matches!(mount.filesystem.as_str(), "nfs" | "nfs4") {
            fs::read("/proc/self/mountstats").ok().and_then(|stats| nfs_requests(&stats, &mount.point))
        } else {
            None
        };
        Self { mount, requests }
    }
}

impl std::fmt::Display for MountState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Mount { point, filesystem, source, .. } = &self.mount;
        write!(f, "{point:?} ({filesystem} from {source}")?;
        match self.requests {
            Some(Requests::Fuse { waiting }) => write!(f, ", requests waiting: {waiting}")?,
            Some(Requests::Nfs { unanswered, sent_again, timeouts }) => {
                write!(f, ", requests unanswered: {unanswered}, sent again: {sent_again}, timed out: {timeouts}")?;
            }
            None => {}
        }
        f.write_str(")")
    }
}

/// A connection is named after its device number, whose major part begins at bit 20 (0 except for `fuseblk`).
fn fuse_requests(control: &Path, (major, minor): (u32, u32)) -> Option<Requests> {
    let name = major << 20 | minor;
    let text = fs::read_to_string(control.join(name.to_string()).join("waiting")).ok()?;
    Some(Requests::Fuse { waiting: text.trim().parse().ok()? })
}

/// The part of `/proc/self/mountstats` about one mount. If several share a mount point, the last one counts.
fn nfs_requests(stats: &[u8], point: &Path) -> Option<Requests> {
    let text = String::from_utf8_lossy(stats);
    let (mut found, mut is_meant) = (None, false);
    for line in text.lines() {
        if let Some(device) = line.strip_prefix("device ") {
            let named = device.split_once(" mounted on ").and_then(|(_, rest)| rest.split_once(" with fstype "));
            is_meant = named.is_some_and(|(name, _)| Path::new(&unescape(name.as_bytes())) == point);
            if is_meant {
                found = Some((0, 0, 0));
            }
        } else if let Some((unanswered, sent_again, timeouts)) = found.as_mut().filter(|_| is_meant) {
            *unanswered += unanswered_of(line).unwrap_or(0);
            if let Some((transmissions, timed_out)) = operation(line) {
                (*sent_again, *timeouts) = (*sent_again + transmissions, *timeouts + timed_out);
            }
        }
    }
    found.map(|(unanswered, sent_again, timeouts)| Requests::Nfs { unanswered, sent_again, timeouts })
}

/// From a transport line: `xprt: tcp 832 0 2 0 24 55 53 …`, with 55 requests sent and 53 answered.
fn unanswered_of(line: &str) -> Option<u64> {
    let mut words = line.trim_start().strip_prefix("xprt:")?.split_whitespace();
    let before = match words.next()? {
        "tcp" | "rdma" => 5,
        "udp" => 2,
        _ => return None,
    };
    let mut numbers = words.skip(before).map(str::parse::<u64>);
    let (sent, received) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(sent.saturating_sub(received))
}

/// From an operation line: `READ: 10 12 1 …`, with 10 requests, 12 transmissions and 1 timeout.
fn operation(line: &str) -> Option<(u64, u64)> {
    let (name, numbers) = line.trim_start().split_once(": ")?;
    if !name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') {
        return None;
    }
    let mut numbers = numbers.split_whitespace().map(str::parse::<u64>);
    let (asked, sent, timeouts) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some((sent.saturating_sub(asked), timeouts))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATS: &[u8] = b"\
device /dev/vda mounted on / with fstype ext4
device server:/other mounted on /mnt/other with fstype nfs4 statvers=1.1
\txprt:\ttcp 0 0 1 0 0 900 1 0 0 0 2 0 0
device server:/export mounted on /mnt/my\\040data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576,proto=tcp,timeo=600,retrans=2,sec=sys
\tage:\t4711
\tcaps:\tcaps=0xffbffff,wtmult=512,dtsize=1048576,bsize=0,namlen=255
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t1 2 3 4 5
\tbytes:\t0 0 0 0 0 0 0 0
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 832 0 2 0 24 55 53 0 57 0 2 4 1
\txprt:\ttcp 833 0 2 0 24 10 9 0 57 0 2 4 1
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 10 12 1 2000 9000 0 3 4 0
\t     GETATTR: 7 8 2 2000 9000 0 3 4 0
device tmpfs mounted on /tmp with fstype tmpfs
";

    #[test]
    fn requests_of_an_nfs_mount_are_summed_over_its_connections() {
        let requests = nfs_requests(STATS, Path::new("/mnt/my data")).unwrap();
        assert_eq!(requests, Requests::Nfs { unanswered: 3, sent_again: 3, timeouts: 3 });
        let idle = nfs_requests(STATS, Path::new("/tmp")).unwrap();
        assert_eq!(idle, Requests::Nfs { unanswered: 0, sent_again: 0, timeouts: 0 });
        assert_eq!(nfs_requests(STATS, Path::new("/mnt")), None);
    }

    #[test]
    fn udp_has_no_connection_to_count() {
        assert_eq!(unanswered_of("\txprt:\tudp 832 0 20 17 0 0 0"), Some(3));
        assert_eq!(unanswered_of("\txprt:\tlocal 0 1 0 0 20 17"), None);
        assert_eq!(unanswered_of("\txprt:\ttcp 1 2"), None);
    }

    #[test]
    fn requests_of_a_fuse_connection_are_found_by_its_device() {
        let control = tempfile::tempdir().unwrap();
        for (name, waiting) in [("57", "3\n"), ("8388625", "1\n")] {
            fs::create_dir(control.path().join(name)).unwrap();
            fs::write(control.path().join(name).join("waiting"), waiting).unwrap();
        }
        assert_eq!(fuse_requests(control.path(), (0, 57)), Some(Requests::Fuse { waiting: 3 }));
        assert_eq!(fuse_requests(control.path(), (8, 17)), Some(Requests::Fuse { waiting: 1 }), "fuseblk");
        assert_eq!(fuse_requests(control.path(), (0, 58)), None);
    }

    #[test]
    fn a_mount_without_anything_to_tell_is_named_all_the_same() {
        let table = MountTable::read().unwrap();
        let state = MountState::of(&table, table.of(Path::new("/proc/self/status")).unwrap());
        assert_eq!(state.to_string(), "\"/proc\" (proc from proc)");
        let fuse = MountState { requests: Some(Requests::Fuse { waiting: 2 }), ..state };
        assert_eq!(fuse.to_string(), "\"/proc\" (proc from proc, requests waiting: 2)");
    }
}
