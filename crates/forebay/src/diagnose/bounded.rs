//! Calls that may hang, each in a thread that can be left alone: a system call on a mount that does not answer cannot be
//! cancelled.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use forebay_core::{Error, Result};

/// A call in a thread of its own.
///
/// If it is dropped before the call returns, the thread is left alone: it ends, and drops the result, when the call returns.
pub struct Bounded<T>(std::sync::mpsc::Receiver<std::thread::Result<T>>);

impl<T: Send + 'static> Bounded<T> {
    /// Starts it.
    pub fn start(thread: &str, call: impl FnOnce() -> T + Send + 'static) -> Result<Self> {
        let (sender, receiver) = sync_channel(1);
        let run = move || {
            let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
            // Nobody may want it any more.
            let _unwanted = sender.send(called);
        };
        Builder::new().name(thread.to_owned()).spawn(run).map_err(|error| {
            Error::io("given a thread", error)
                .with_hint("the system refused another thread: raise `ulimit -u` or the cgroup's pids.max")
        })?;
        Ok(Self(receiver))
    }

    /// The result, if the call returns within `wait`. A panic is resumed here.
    pub fn poll(&mut self, wait: Duration) -> Option<T> {
        match self.0.recv_timeout(wait) {
            Ok(called) => Some(called.unwrap_or_else(|panic| std::panic::resume_unwind(panic))),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread sends before it ends"),
        }
    }
}

/// The result of `call`, if it returns within `limit`.
pub(crate) fn within<T: Send + 'static>(
    thread: &str,
    limit: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>> {
    let started = Instant::now();
    let mut call = Bounded::start(thread, call)?;
    Ok(call.poll(limit.saturating_sub(started.elapsed())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_call_that_does_not_come_back_is_left_alone() {
        let (release, hang) = channel::<()>();
        let (ended, told) = channel();
        let hanging = move || {
            let _released = hang.recv();
            ended.send(()).unwrap();
        };
        assert_eq!(within("test-hang", Duration::from_millis(20), hanging).unwrap(), None);
        drop(release);
        told.recv().unwrap();
        assert_eq!(within("test-quick", Duration::from_secs(60), || 7).unwrap(), Some(7));
    }
}
