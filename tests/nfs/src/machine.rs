//! The machine that trouble is made on: its NFS server, its mounts, its link, its pictures. Runs as root in a kernel of
//! its own, and nowhere else.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Result;
use crate::engine::within;

/// The folder that the server shows.
pub(crate) const EXPORT: &str = "/run/export";
/// Where it is mounted.
const MOUNTED: &str = "/run/mounted";
const THREADS: &str = "4";
/// After a restart, the server lets clients of version 4 reclaim what they had for this long: 90 by default, 10 at least.
const GRACE_SECONDS: &str = "10";
/// How long a command may take that nothing should hold up.
const COMMAND_SECONDS: &str = "30";
/// Pictures that the server shows.
pub(crate) const PICTURES: usize = 240;

/// Runs a command of the system, which has to succeed.
fn command(words: &[&str]) -> Result<()> {
    let output = Command::new("timeout").arg(COMMAND_SECONDS).args(words).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{}` failed ({}): {}", words.join(" "), output.status, said.trim()).into())
}

fn mount(kind: &str, at: &str) -> Result<()> {
    fs::create_dir_all(at)?;
    command(&["mount", "-t", kind, kind, at])
}

/// The NFS server of this kernel.
pub(crate) struct Server;

impl Server {
    /// Starts it, for a new folder in memory.
    pub(crate) fn start() -> Result<Self> {
        for module in ["nfsd", "nfsv3", "nfsv4", "iptable_filter"] {
            command(&["modprobe", "-d", "/run/modules", module])?;
        }
        mount("tmpfs", EXPORT)?;
        mount("tmpfs", "/var/lib/nfs")?;
        for folder in ["v4recovery", "sm", "sm.bak"] {
            fs::create_dir(Path::new("/var/lib/nfs").join(folder))?;
        }
        for file in ["etab", "rmtab", "state"] {
            fs::write(Path::new("/var/lib/nfs").join(file), "")?;
        }
        mount("rpc_pipefs", "/var/lib/nfs/rpc_pipefs")?;
        command(&["mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd"])?;
        for setting in ["nfsv4leasetime", "nfsv4gracetime"] {
            fs::write(Path::new("/proc/fs/nfsd").join(setting), GRACE_SECONDS)
                .map_err(|error| format!("{setting} could not be set to {GRACE_SECONDS}: {error}"))?;
        }
        fs::create_dir_all("/run/rpcbind")?;
        command(&["rpcbind"])?;
        // The root of version 4's names: what lies above it is not the server's to show.
        let options = "ro,fsid=0,no_subtree_check,no_root_squash,insecure";
        command(&["exportfs", "-o", options, &format!("127.0.0.1:{EXPORT}")])?;
        let server = Self;
        server.resume()?;
        command(&["rpc.mountd"])?;
        Ok(server)
    }

    /// Ends its threads and all its connections.
    pub(crate) fn stop(&self) -> Result<()> {
        command(&["rpc.nfsd", "0"])?;
        Self::expect_threads("0")
    }

    /// Starts its threads again.
    pub(crate) fn resume(&self) -> Result<()> {
        command(&["rpc.nfsd", THREADS])?;
        Self::expect_threads(THREADS)
    }

    fn expect_threads(count: &str) -> Result<()> {
        let are_there = || fs::read_to_string("/proc/fs/nfsd/threads").is_ok_and(|text| text.trim() == count);
        within(Duration::from_secs(10), are_there)
            .map(|_| ())
            .ok_or_else(|| format!("expected {count} threads of nfsd, got others").into())
    }
}

/// The folder, mounted; fresh from the server, because nothing that was cached survives an unmount.
pub(crate) struct Mounted;

impl Mounted {
    pub(crate) fn new(options: &str) -> Result<Self> {
        fs::create_dir_all(MOUNTED)?;
        let path = if options.contains("vers=3") { EXPORT } else { "/" };
        command(&["mount", "-t", "nfs", "-o", options, &format!("127.0.0.1:{path}"), MOUNTED])?;
        Ok(Self)
    }

    pub(crate) fn path(&self) -> &'static Path {
        Path::new(MOUNTED)
    }

    pub(crate) fn unmount(self) -> Result<()> {
        command(&["umount", MOUNTED])?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Only after a trial that went wrong, so that the next one finds the place free.
        let _unmounted = command(&["umount", "-f", "-l", MOUNTED]);
    }
}

/// The link between client and server, cut: it loses every packet until it is mended.
pub(crate) struct Cut;

impl Cut {
    pub(crate) fn new() -> Result<Self> {
        command(&["iptables-legacy", "-A", "INPUT", "-i", "lo", "-j", "DROP"])?;
        Ok(Self)
    }

    pub(crate) fn mend(self) -> Result<()> {
        std::mem::forget(self);
        command(&["iptables-legacy", "-F", "INPUT"])
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        let _mended = command(&["iptables-legacy", "-F", "INPUT"]);
    }
}

/// The server's pictures: those of the demo again and again, by their index in the dataset.
pub(crate) struct Pictures(Vec<(PathBuf, Vec<u8>)>);

impl Pictures {
    pub(crate) fn write() -> Result<Self> {
        let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/forebay-cli/assets");
        let mut drawn: Vec<_> = fs::read_dir(assets)?.collect::<Result<Vec<_>, _>>()?;
        drawn.retain(|entry| entry.path().extension().is_some_and(|extension| extension != "py"));
        drawn.sort_by_key(fs::DirEntry::file_name);
        let mut pictures = Vec::new();
        for number in 0..PICTURES {
            let path = drawn[number % drawn.len()].path();
            let (stem, extension) = match (path.file_stem(), path.extension()) {
                (Some(stem), Some(extension)) => (stem.to_string_lossy(), extension.to_string_lossy()),
                _ => return Err(format!("{} is no picture", path.display()).into()),
            };
            let class = stem.split('-').next().unwrap_or_default();
            pictures.push((Path::new(class).join(format!("{number:04}.{extension}")), fs::read(&path)?));
        }
        // As the scan will find them.
        pictures.sort();
        let pictures = Self(pictures);
        pictures.restore()?;
        Ok(pictures)
    }

    pub(crate) fn path(&self, index: u64) -> Option<&Path> {
        self.0.get(index as usize).map(|(path, _)| path.as_path())
    }

    /// Writes those that are missing.
    pub(crate) fn restore(&self) -> Result<()> {
        for (path, bytes) in &self.0 {
            let path = Path::new(EXPORT).join(path);
            if !path.exists() {
                path.parent().map(fs::create_dir_all).transpose()?;
                fs::write(path, bytes)?;
            }
        }
        Ok(())
    }

    /// Deletes one of ten on the server, behind the client's back; gives their indices.
    pub(crate) fn delete(&self) -> Result<BTreeSet<u64>> {
        let deleted: BTreeSet<_> = (0..self.0.len() as u64).skip(3).step_by(10).collect();
        for path in deleted.iter().filter_map(|index| self.path(*index)) {
            fs::remove_file(Path::new(EXPORT).join(path))?;
        }
        Ok(deleted)
    }
}
