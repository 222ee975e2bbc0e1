//! Resource limits of this process: memory, descriptors and CPUs, including those of its cgroup.

use std::fs;
use std::path::Path;

/// Bytes of memory that this process could still allocate: what the system has available or what its cgroup (v1 or v2)
/// leaves, whichever is less. Falls back to 1 GiB if neither can be read.
pub fn available_memory_bytes() -> u64 {
    let system = field(&read("/proc/meminfo"), "MemAvailable:").map(|kilobytes| kilobytes * 1024);
    system.into_iter().chain(cgroup_headroom_bytes()).min().unwrap_or(1 << 30)
}

/// How many descriptors this process may have open (`RLIMIT_NOFILE`).
pub fn max_open_files() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many descriptors this process has open, from `/proc`; the count includes the one used for counting.
pub fn open_files() -> Option<u64> {
    fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as u64)
}

/// CPUs that this process may run on, by affinity mask and cgroup quota.
pub fn available_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Free space of a file system.
pub(crate) struct Space {
    /// Free for users who are not root.
    pub(crate) free_bytes: u64,
    pub(crate) total_bytes: u64,
    /// Inodes that are free; `None` if there is no limit.
    pub(crate) free_inodes: Option<u64>,
}

/// Free space for a path, which need not exist: its nearest existing ancestor is examined.
pub(crate) fn space_of(path: &Path) -> Option<Space> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find_map(|part| {
        let found = rustix::fs::statvfs(part).ok()?;
        Some(Space {
            free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
            total_bytes: found.f_blocks.saturating_mul(found.f_frsize),
            free_inodes: (found.f_files > 0).then_some(found.f_favail),
        })
    })
}

/// The number after a name, as in `MemAvailable:  123 kB`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line[name.len()..].split_whitespace().next()?.parse().ok()
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn number(path: impl AsRef<Path>) -> Option<u64> {
    read(path).trim().parse().ok()
}

fn cgroup_headroom_bytes() -> Option<u64> {
    let membership = read("/proc/self/cgroup");
    let groups = membership.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        match controllers {
            "" => Some(("/sys/fs/cgroup", path, "memory.max", "memory.current")),
            _ if controllers.split(',').any(|name| name == "memory") => {
                Some(("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes"))
            }
            _ => None,
        }
    });
    groups.filter_map(|(mount, path, limit, usage)| headroom_along(Path::new(mount), path, limit, usage)).min()
}

/// A limit may be set on any ancestor. Inside a container the path often does not exist: then the mount is the group.
fn headroom_along(mount: &Path, path: &str, limit: &str, usage: &str) -> Option<u64> {
    let own = mount.join(path.trim_start_matches('/'));
    own.ancestors()
        .take_while(|directory| directory.starts_with(mount))
        .filter_map(|directory| {
            let limit = number(directory.join(limit))?; // "max" is not a number: no limit
            let usage = number(directory.join(usage)).unwrap_or(0);
            let cached = cache_bytes(&read(directory.join("memory.stat")));
            Some(limit.saturating_sub(usage.saturating_sub(cached)))
        })
        .min()
}

/// Page cache that the kernel reclaims on demand. It counts as used, so a group that has read many files seems full.
/// Only half of the active pages count: they include libraries, which would be read again at once.
fn cache_bytes(stat: &str) -> u64 {
    // v1 has two of each: the group's own, and the total including its children.
    let pages = |name: &str| field(stat, &format!("total_{name} ")).or(field(stat, &format!("{name} "))).unwrap_or(0);
    pages("inactive_file") + pages("active_file") / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_plausible() {
        assert!(available_memory_bytes() > 1 << 20);
        assert!(max_open_files() > 8);
        assert!(available_cpus() >= 1);
    }

    #[test]
    fn the_tightest_group_on_the_way_up_decides() {
        let mount = tempfile::tempdir().unwrap();
        let child = mount.path().join("a/b");
        fs::create_dir_all(&child).unwrap();
        fs::write(mount.path().join("a/memory.max"), "1000\n").unwrap();
        fs::write(mount.path().join("a/memory.current"), "400\n").unwrap();
        fs::write(child.join("memory.max"), "max\n").unwrap();
        let headroom = |path| headroom_along(mount.path(), path, "memory.max", "memory.current");
        assert_eq!(headroom("/a/b"), Some(600));
        assert_eq!(headroom("/a/b/not/here"), Some(600));
        assert_eq!(headroom("/"), None);
        fs::write(mount.path().join("a/memory.stat"), "anon 90\ninactive_file 200\nactive_file 100\n").unwrap();
        assert_eq!(headroom("/a/b"), Some(850));
        let stat = "inactive_file 1\nactive_file 2\ntotal_inactive_file 50\ntotal_active_file 30\n";
        assert_eq!(cache_bytes(stat), 65);
        assert_eq!(field("MemTotal: 5 kB\nMemAvailable:   77 kB\n", "MemAvailable:"), Some(77));
    }
}
