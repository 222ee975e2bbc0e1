//! Finds the mount of a path and its kind of storage, from `/proc/self/mountinfo` only: the mount itself is not
//! touched.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use crate::remote::is_url;

/// The kind of storage behind a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountKind {
    /// A disk of this machine.
    Local,
    /// Memory of this machine.
    Memory,
    /// A server, through the kernel's client.
    Network,
    /// A FUSE process of this machine, and the storage behind it.
    Fuse,
    /// Not a mount: an object store, accessed by this process.
    Remote,
    /// An unknown file system.
    Unknown,
}

impl MountKind {
    fn of(filesystem: &str) -> Self {
        match filesystem {
            "ext2" | "ext3" | "ext4" | "xfs" | "btrfs" | "zfs" | "f2fs" | "overlay" | "vfat" | "exfat" | "ntfs3"
            | "squashfs" | "erofs" | "iso9660" | "bcachefs" => Self::Local,
            "tmpfs" | "ramfs" | "devtmpfs" => Self::Memory,
            "nfs" | "nfs4" | "cifs" | "smb3" | "lustre" | "ceph" | "gpfs" | "beegfs" | "9p" | "afs" | "virtiofs"
            | "gfs2" | "ocfs2" | "orangefs" | "wekafs" | "pvfs2" => Self::Network,
            _ if filesystem.starts_with("fuse") => Self::Fuse,
            _ => Self::Unknown,
        }
    }

    /// Whether a read may wait for something outside this machine's kernel.
    pub const fn can_hang(self) -> bool {
        !matches!(self, Self::Local | Self::Memory | Self::Remote)
    }
}

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount point.
    pub point: PathBuf,
    /// The file system type: `ext4`, `nfs4`, `fuse.sshfs` …
    pub filesystem: String,
    /// The mounted device or export: `/dev/sda1`, `server:/export` …
    pub source: String,
    /// The kind of storage.
    pub kind: MountKind,
    /// The device's major and minor number.
    pub device: (u32, u32),
}

/// A snapshot of the mount table.
#[derive(Debug)]
pub struct MountTable(Vec<u8>);

impl MountTable {
    /// The current table; `None` if the system does not provide it.
    pub fn read() -> Option<Self> {
        fs::read("/proc/self/mountinfo").ok().map(Self)
    }

    /// As [`Mount::of`].
    pub fn of(&self, path: &Path) -> Option<Mount> {
        Mount::among(&self.0, &absolute(path)?)
    }

    pub(crate) fn mounts(&self) -> impl Iterator<Item = Mount> {
        self.0.split(|&byte| byte == b'\n').filter_map(Mount::parse)
    }
}

/// The location of a dataset, resolved while its mount was healthy: links cannot be followed once it hangs.
#[derive(Debug)]
pub struct Site {
    /// The mount of the first sample's path, links not followed.
    named: Option<Mount>,
    /// The mount that this path leads to.
    real: Option<Mount>,
}

impl Site {
    /// Follows the links of a path as far as that cannot hang.
    pub fn of(path: &Path) -> Self {
        Self { named: Mount::of(path), real: Mount::behind(path) }
    }

    /// The mount of another path of the same dataset. Touches nothing: if the path is on the same mount by name as the
    /// first sample, it is assumed to lead to the same mount.
    pub fn mount(&self, table: &MountTable, path: &Path) -> Option<Mount> {
        let mount = table.of(path)?;
        Some(if Some(&mount) == self.named.as_ref() { self.real.clone().unwrap_or(mount) } else { mount })
    }
}

impl Mount {
    /// The mount of a path; `None` if the system does not tell. Links are not followed, because that could hang on the
    /// very mount in question.
    pub fn of(path: &Path) -> Option<Self> {
        let path = absolute(path)?;
        Self::among(&fs::read("/proc/self/mountinfo").ok()?, &path)
    }

    /// The mount that a path leads to, with links followed as far as that cannot hang: on a mount that can hang the
    /// search ends, because that mount is the answer.
    pub fn behind(path: &Path) -> Option<Self> {
        /// The kernel's own limit.
        const MAX_LINKS: u32 = 40;
        let mut path = absolute(path)?;
        for _ in 0..MAX_LINKS {
            match Self::first_link(&path)? {
                Followed::Link(target) => path = target,
                Followed::Arrived(mount) => return Some(mount),
            }
        }
        Self::of(&path)
    }

    /// Walks down from the root to the first link, or to the first mount that can hang, or to the end.
    fn first_link(path: &Path) -> Option<Followed> {
        let table = fs::read("/proc/self/mountinfo").ok()?;
        let mut walked = PathBuf::new();
        let mut parts = path.components();
        while let Some(part) = parts.next() {
            if part == Component::ParentDir {
                walked.pop();
                continue;
            }
            walked.push(part);
            let mount = Self::among(&table, &walked)?;
            if mount.kind.can_hang() && mount.point != Path::new("/") {
                return Some(Followed::Arrived(mount));
            }
            if let Ok(target) = fs::read_link(&walked) {
                walked.pop();
                return Some(Followed::Link(walked.join(target).join(parts.as_path())));
            }
        }
        Self::among(&table, &walked).map(Followed::Arrived)
    }

    /// If several mounts share a mount point, the last one hides the others.
    fn among(table: &[u8], path: &Path) -> Option<Self> {
        let mounts = table.split(|&byte| byte == b'\n').filter_map(Self::parse);
        mounts.filter(|mount| path.starts_with(&mount.point)).max_by_key(|mount| mount.point.components().count())
    }

    /// `36 35 98:0 /root /point rw,noatime shared:1 - ext4 /dev/sda1 rw`: the point is the fifth field, and the
    /// optional fields end with a dash.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let (major, minor) = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        let point = unescape(fields.nth(1)?);
        fields.find(|field| *field == b"-")?;
        let filesystem = String::from_utf8_lossy(fields.next()?).into_owned();
        let source = unescape(fields.next()?).to_string_lossy().into_owned();
        Some(Self { point: point.into(), kind: MountKind::of(&filesystem), filesystem, source, device })
    }
}

/// `None` for a URL, which is on no mount.
fn absolute(path: &Path) -> Option<PathBuf> {
    if is_url(path) { None } else { std::path::absolute(path).ok() }
}

enum Followed {
    Link(PathBuf),
    Arrived(Mount),
}

impl std::fmt::Display for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} ({} from {})", self.point, self.filesystem, self.source)
    }
}

/// Decodes the octal escapes of mountinfo, which stand for spaces and the like.
pub(crate) fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        rest = tail;
        let octal = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match tail.get(..3).filter(|_| *first == b'\\').and_then(octal) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => bytes.push(*first),
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    const TABLE: &[u8] = b"\
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 21 0:25 / /dev/shm rw shared:3 master:1 - tmpfs tmpfs rw
41 21 0:40 / /mnt/my\\040data rw - nfs4 server:/export rw,vers=4.2
42 21 0:41 / /mnt/my\\040data/deep rw - fuse.sshfs me@host: rw
43 21 0:42 / /mnt/my\\040data/deep rw - newfs thing rw
";

    fn kind(path: &str) -> (MountKind, String) {
        let mount = Mount::among(TABLE, Path::new(path)).unwrap();
        (mount.kind, mount.filesystem)
    }

    #[test]
    fn the_deepest_and_last_mount_counts() {
        assert_eq!(kind("/home/x"), (MountKind::Local, "ext4".to_owned()));
        assert_eq!(kind("/dev/shm/x"), (MountKind::Memory, "tmpfs".to_owned()));
        assert_eq!(kind("/mnt/my data/1.jpg"), (MountKind::Network, "nfs4".to_owned()));
        assert_eq!(kind("/mnt/my data/deep/1.jpg"), (MountKind::Unknown, "newfs".to_owned()));
        assert_eq!(kind("/mnt/my database"), (MountKind::Local, "ext4".to_owned()));
        assert!(MountKind::Unknown.can_hang() && !MountKind::Local.can_hang());
    }

    #[test]
    fn this_machine_has_a_root() {
        let mount = Mount::of(Path::new("/proc/self/status")).unwrap();
        assert_eq!((mount.point.as_path(), mount.filesystem.as_str()), (Path::new("/proc"), "proc"));
        assert!(Mount::of(Path::new("relative")).is_some());
        assert!(Mount::of(Path::new("s3://bucket/x")).is_none() && Mount::behind(Path::new("s3://bucket/x")).is_none());
        assert!(Mount::among(b"nonsense\n1 2 3\n", Path::new("/")).is_none());
    }

    #[test]
    fn links_are_followed_to_the_mount_they_lead_to() {
        let folder = tempfile::tempdir().unwrap();
        let link = |name: &str, target: &str| std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
        link("proc", "/proc/self");
        link("again", "./proc");
        link("loop", "loop");
        let behind = |name: &str| Mount::behind(&folder.path().join(name)).unwrap().point;
        assert_eq!(behind("again/status"), Path::new("/proc"));
        assert_eq!(behind("again/../../x"), Path::new("/proc"), "what a mount that can hang holds is not looked at");
        let own = Mount::of(folder.path()).unwrap().point;
        assert_eq!([behind("loop"), behind("nothing/here"), behind("../x")], [own.clone(), own.clone(), own]);
    }

    #[test]
    fn a_site_remembers_where_its_links_led() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/proc/self", folder.path().join("data")).unwrap();
        let site = Site::of(&folder.path().join("data/status"));
        std::fs::remove_file(folder.path().join("data")).unwrap();
        let table = MountTable::read().unwrap();
        let point = |path: &Path| site.mount(&table, path).unwrap().point;
        assert_eq!(point(&folder.path().join("data/maps")), Path::new("/proc"), "the link is not looked at again");
        assert_eq!(point(Path::new("/sys/kernel")), Path::new("/sys"), "another mount by name is another one");
    }

    #[test]
    fn a_mount_is_named_with_where_it_comes_from() {
        let mount = Mount::among(TABLE, Path::new("/mnt/my data/x")).unwrap();
        assert_eq!(mount.to_string(), "\"/mnt/my data\" (nfs4 from server:/export)");
        assert_eq!(unescape(br"a\134b\9").as_bytes(), br"a\b\9");
    }
}
