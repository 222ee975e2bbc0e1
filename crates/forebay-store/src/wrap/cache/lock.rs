//! Locks between processes with flock(2), which the kernel releases when the owner dies. No process ids are stored.
//!
//! flock(2) has no deadline, so waiting is polling. The lock belongs to the open file, which a forked child shares: so
//! the owner unlocks explicitly instead of relying on closing the file.

use std::fs::{File, TryLockError};
use std::io;
use std::time::{Duration, Instant};

use super::calls::restart_clock;
use super::folder::{FileInfo, Folder};
use crate::store::CancelSignals;

/// A locked file, until it is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    pub(super) file: File,
    pub(super) known: FileInfo,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Unlocking a locked file does not fail.
        let _unlocked = self.file.unlock();
    }
}

impl Lock {
    /// Locks a file of a directory, and creates it if necessary; `None` if another owner holds it.
    pub(super) fn attempt(folder: &Folder, name: &str) -> io::Result<Option<Self>> {
        /// In each attempt another process has removed or replaced it between two calls of this one.
        const MAX_ATTEMPTS: u32 = 16;
        for _ in 0..MAX_ATTEMPTS {
            let (file, _) = folder.write(name)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(TryLockError::Error(error)) => return Err(error),
            }
            let known = FileInfo::of(&file)?;
            let lock = Self { file, known };
            // If it was renamed or removed before it was locked, it is no longer the lock.
            if lock.is_in_place(folder, name) {
                return Ok(Some(lock));
            }
        }
        Ok(None)
    }

    /// Whether the locked file still has this name.
    pub(super) fn is_in_place(&self, folder: &Folder, name: &str) -> bool {
        folder.stat(name).is_ok_and(|known| known.identity == self.known.identity)
    }
}

/// How a wait ended.
#[derive(Debug)]
pub(super) enum Waited<T> {
    Done(T),
    Late,
    Stopped,
}

/// Polls with growing pauses until there is a result.
pub(super) fn wait<T, E>(
    until: Instant,
    signals: Option<&CancelSignals>,
    mut ask: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Waited<T>, E> {
    /// The first is about the time that writing a small entry takes; the last is the worst delay in noticing a result.
    const PAUSES: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(10));
    let mut pause = PAUSES.0;
    loop {
        if signals.is_some_and(CancelSignals::is_raised) {
            return Ok(Waited::Stopped);
        }
        // This thread waits for the lock's owner, not for the disk.
        restart_clock();
        if let Some(answer) = ask()? {
            return Ok(Waited::Done(answer));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Waited::Late);
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(PAUSES.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Cancel, Stop};

    #[test]
    fn a_lock_is_one_owners_until_it_is_dropped() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let lock = Lock::attempt(&folder, "lock").unwrap().unwrap();
        assert!(Lock::attempt(&folder, "lock").unwrap().is_none());
        let late = wait(Instant::now() + Duration::from_millis(30), None, || Lock::attempt(&folder, "lock")).unwrap();
        assert!(matches!(late, Waited::Late));
        drop(lock);
        assert!(Lock::attempt(&folder, "lock").unwrap().is_some());
    }

    #[test]
    fn a_file_that_was_moved_away_is_not_the_lock_any_more() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let lock = Lock::attempt(&folder, "lock").unwrap().unwrap();
        folder.rename("lock", "entry").unwrap();
        assert!(!lock.is_in_place(&folder, "lock"));
        assert!(Lock::attempt(&folder, "lock").unwrap().is_some(), "another file is");
    }

    #[test]
    fn a_child_that_inherits_a_lock_does_not_keep_it() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let lock = Lock::attempt(&folder, "lock").unwrap().unwrap();
        // SAFETY: the child makes one call and nothing else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: waits for the signal below.
            unsafe { libc::pause() };
        }
        drop(lock);
        assert!(Lock::attempt(&folder, "lock").unwrap().is_some());
        // SAFETY: it is this test's own child, and waited for.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }

    #[test]
    fn a_raised_stop_ends_a_wait() {
        let (stop, cancel) = (Stop::new().unwrap(), Cancel::default());
        stop.raise();
        cancel.raise();
        for signals in [
            CancelSignals { stop: Some(stop), cancel: Some(Cancel::default()) },
            CancelSignals { stop: None, cancel: Some(cancel) },
        ] {
            let waited =
                wait(Instant::now() + Duration::from_secs(60), Some(&signals), || Ok::<_, io::Error>(None::<()>));
            assert!(matches!(waited, Ok(Waited::Stopped)));
        }
    }
}
