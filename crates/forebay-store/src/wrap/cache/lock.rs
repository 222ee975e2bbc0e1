//! Locks between processes, which the kernel takes away from an owner that dies: flock(2), and no number of a process
//! written anywhere.
//!
//! flock(2) has no deadline, so that whoever waits asks again and again. A lock belongs to the open file, which a forked
//! child has too: its owner gives it back by name, and does not rely on closing.

use std::fs::{File, TryLockError};
use std::io;
use std::time::{Duration, Instant};

use super::calls::again;
use super::folder::{Folder, Known};
use crate::store::Ends;

/// A locked file, until it is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    pub(super) file: File,
    pub(super) known: Known,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // It fails only for what is no lock.
        let _unlocked = self.file.unlock();
    }
}

impl Lock {
    /// Locks a file of a directory, made if it is not there; `None` when somebody else has it.
    pub(super) fn attempt(folder: &Folder, name: &str) -> io::Result<Option<Self>> {
        /// Each time, another process has removed or replaced it between two calls of this one.
        const MAX_ATTEMPTS: u32 = 16;
        for _ in 0..MAX_ATTEMPTS {
            let (file, _) = folder.write(name)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(TryLockError::Error(error)) => return Err(error),
            }
            let known = Known::of(&file)?;
            let lock = Self { file, known };
            // It may have been renamed or removed before it was locked: then it is not the lock any more.
            if lock.is_in_place(folder, name) {
                return Ok(Some(lock));
            }
        }
        Ok(None)
    }

    /// Whether the locked file is still the one that has this name.
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

/// Asks again and again, with pauses that grow, until there is an answer.
pub(super) fn wait<T, E>(
    until: Instant,
    ends: Option<&Ends>,
    mut ask: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Waited<T>, E> {
    /// The first is about how long a small entry takes to be written; the last is how late an answer may be noticed.
    const PAUSES: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(10));
    let mut pause = PAUSES.0;
    loop {
        if ends.is_some_and(Ends::is_raised) {
            return Ok(Waited::Stopped);
        }
        // Whoever has the lock is waited for, not the disk.
        again();
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
        for ends in
            [Ends { stop: Some(stop), cancel: Some(Cancel::default()) }, Ends { stop: None, cancel: Some(cancel) }]
        {
            let waited = wait(Instant::now() + Duration::from_secs(60), Some(&ends), || Ok::<_, io::Error>(None::<()>));
            assert!(matches!(waited, Ok(Waited::Stopped)));
        }
    }
}
