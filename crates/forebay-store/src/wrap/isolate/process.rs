//! One reader process as seen from the loader: its socket, its window, and waiting for its answers.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::program;
use super::window::Window;
use crate::reader::protocol::{ANSWER_BYTES, Answer};
use crate::store::Stop;

/// After a stop, a healthy reader gets this long to finish its piece, so that it need not be restarted.
const GRACE: Duration = Duration::from_millis(50);

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// Its socket is closed.
    Died,
    /// The deadline passed.
    Late,
    /// The call was stopped; with the answer if it had arrived.
    Stopped(Option<Answer>),
}

/// A reader process. Dropping it closes its socket, which makes it exit; the pool reaps it.
#[derive(Debug)]
pub(super) struct Reader {
    child: Child,
    socket: OwnedFd,
    window: Arc<Window>,
}

impl Reader {
    /// Starts one. It dies with the *thread* that calls this (`PR_SET_PDEATHSIG`), which must outlive it.
    pub(super) fn start() -> io::Result<Self> {
        let (socket, theirs) = socket_pair()?;
        let (window, file) = Window::new()?;
        let child = program::run(|program| {
            Command::new(program)
                .arg0("forebay-reader")
                .arg(std::process::id().to_string())
                .stdin(Stdio::from(theirs.try_clone()?))
                .stdout(Stdio::from(file.try_clone()?))
                .stderr(Stdio::null())
                // Ctrl-C in the terminal is for the loader's process only.
                .process_group(0)
                .spawn()
        })?;
        Ok(Self { child, socket, window })
    }

    /// Sends a request; false if the process is gone.
    pub(super) fn send(&self, message: &[u8]) -> bool {
        loop {
            // SAFETY: `message` is readable for its length.
            let sent = unsafe {
                libc::send(self.socket.as_raw_fd(), message.as_ptr().cast(), message.len(), libc::MSG_NOSIGNAL)
            };
            if sent >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return sent >= 0;
            }
        }
    }

    /// Waits for the answer to the request sent last.
    pub(super) fn wait(&self, until: Instant, stop: Option<&Stop>) -> Result<Answer, NoAnswer> {
        let stop = stop.map_or(-1, |stop| stop.as_raw_fd());
        match self.poll(until, stop) {
            Polled::Ready => self.receive().ok_or(NoAnswer::Died),
            Polled::Late => Err(NoAnswer::Late),
            Polled::Stopped => match self.poll(until.min(Instant::now() + GRACE), -1) {
                Polled::Ready => Err(NoAnswer::Stopped(self.receive())),
                _ => Err(NoAnswer::Stopped(None)),
            },
        }
    }

    fn poll(&self, until: Instant, stop: i32) -> Polled {
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut watched = [watch(self.socket.as_raw_fd()), watch(stop)];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Rounded up: a wait of 0 ms would spin through the last millisecond.
            let timeout = left.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(i32::MAX);
            // SAFETY: `watched` is two valid, writable pollfd; a negative descriptor is passed over.
            let ready = unsafe { libc::poll(watched.as_mut_ptr(), 2, timeout) };
            if ready > 0 {
                // An answer that has arrived counts, whatever else happened.
                return if watched[0].revents != 0 { Polled::Ready } else { Polled::Stopped };
            }
            if left.is_zero() {
                return Polled::Late;
            }
        }
    }

    fn receive(&self) -> Option<Answer> {
        let mut bytes = [0; ANSWER_BYTES];
        loop {
            // SAFETY: `bytes` is writable for its length.
            let got = unsafe { libc::recv(self.socket.as_raw_fd(), bytes.as_mut_ptr().cast(), ANSWER_BYTES, 0) };
            if got >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return (got == ANSWER_BYTES as isize).then(|| Answer::from_bytes(&bytes)).flatten();
            }
        }
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Its shared memory. Only the reader's owner asks the window for views, so it is in use no longer than its reader.
    pub(super) fn window(&self) -> &Arc<Window> {
        &self.window
    }

    /// Kills it without waiting, and closes its socket and window.
    pub(super) fn kill(mut self) -> Child {
        // It may be dead already. If it is stuck in the kernel, the signal stays pending.
        let _killed = self.child.kill();
        self.child
    }
}

enum Polled {
    Ready,
    Late,
    Stopped,
}

/// SEQPACKET, so that a request arrives whole.
fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut pair = [-1; 2];
    // SAFETY: `pair` has room for two descriptors.
    match unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) } {
        // SAFETY: both were just made, and nothing else owns them.
        0 => Ok(unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) }),
        _ => Err(io::Error::last_os_error()),
    }
}
