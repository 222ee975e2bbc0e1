//! A file system that fails as told: `faultfs SOURCE MOUNTPOINT CONTROL` shows SOURCE at MOUNTPOINT, and listens at the
//! socket CONTROL for rules that make calls fail, wait, hang or lie (`control` has the words of it). With the word
//! `writable` behind it, what is written to MOUNTPOINT is written to SOURCE; without it, it can only be read. A folder
//! HISTORY behind that gets what a power cut would leave, after each change (`history`).
//!
//! It says `ready` on standard output when it is mounted, and unmounts when its standard input closes, on SIGTERM and
//! SIGINT, and when its parent ends. Whatever hangs then gets an error: no reader outlives the mount.

#![allow(clippy::disallowed_methods, reason = "this is a file system: the disk is all that it touches")]

mod control;
mod history;
mod passthrough;
mod rules;
mod writing;

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use fuser::{BackgroundSession, Config, MountOption};

use crate::passthrough::Passthrough;
use crate::rules::Rules;

/// Threads that take requests. Those that wait get a thread of their own, so that none is ever in another's way.
const THREADS: usize = 2;

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let result = match &arguments[..] {
        [source, mountpoint, control] => serve(source, mountpoint, control, false, None),
        [source, mountpoint, control, word, history @ ..] if word == Path::new("writable") && history.len() <= 1 => {
            serve(source, mountpoint, control, true, history.first().map(PathBuf::as_path))
        }
        _ => {
            let expected = "SOURCE MOUNTPOINT CONTROL [writable [HISTORY]]";
            Err(io::Error::other(format!("expected {expected}, got {} arguments", arguments.len())))
        }
    };
    if let Err(error) = result {
        let _ = writeln!(io::stderr(), "faultfs: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn serve(
    source: &Path,
    mountpoint: &Path,
    control: &Path,
    is_writable: bool,
    history: Option<&Path>,
) -> io::Result<()> {
    let signals = hold_signals()?;
    let mountpoint = mountpoint.canonicalize()?;
    let rules = Arc::new(Rules::default());
    let listener = UnixListener::bind(control)?;

    let mut config = Config::default();
    let access = if is_writable { MountOption::RW } else { MountOption::RO };
    config.mount_options = vec![access, MountOption::FSName("faultfs".into()), MountOption::NoAtime];
    config.n_threads = Some(THREADS);
    let shown = Passthrough::new(source, Arc::clone(&rules), history)?;
    let session = fuser::spawn_mount(shown, &mountpoint, &config)?;

    start("control", move || control::listen(&listener, &rules))?;
    let ended = {
        let (tell, ended) = std::sync::mpsc::channel();
        let also = tell.clone();
        start("signals", move || {
            wait_for(&signals);
            let _ = tell.send(());
        })?;
        start("stdin", move || {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            let _ = also.send(());
        })?;
        ended
    };
    writeln!(io::stdout(), "ready")?;
    io::stdout().flush()?;
    let _ = ended.recv();
    unmount(&mountpoint, session);
    let _ = std::fs::remove_file(control);
    Ok(())
}

/// Takes the mount away even while files on it are open and requests hang: those get an error.
fn unmount(mountpoint: &Path, session: BackgroundSession) {
    let path = CString::new(mountpoint.as_os_str().as_bytes()).expect("a path that was resolved has no zero byte");
    // SAFETY: `path` is a valid C string for the duration of the call.
    let done = unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
    if done != 0 {
        // Not root: fuser asks fusermount. The end of this process then ends the connection.
        drop(session);
    }
}

pub(crate) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(|_| ())
}

/// Keeps SIGTERM and SIGINT for one thread that waits for them, and makes the end of the parent a SIGTERM.
fn hold_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: the set is initialised by sigemptyset before it is used, and lives on this stack; prctl takes a number.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0
            || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0
        {
            return Err(io::Error::last_os_error());
        }
        Ok(set)
    }
}

fn wait_for(signals: &libc::sigset_t) {
    let mut signal = 0;
    // SAFETY: both pointers are to living values; the set was initialised by `hold_signals`.
    unsafe { libc::sigwait(signals, &raw mut signal) };
}
