//! One reader process as seen from the loader: its socket, its window, and waiting for its answers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

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
        retry_on_intr(|| send(&self.socket, message, SendFlags::NOSIGNAL)).is_ok()
    }

    /// Waits for the answer to the request sent last.
    pub(super) fn wait(&self, until: Instant, stop: Option<&Stop>) -> Result<Answer, NoAnswer> {
        match self.poll(until, stop) {
            Polled::Ready => self.receive().ok_or(NoAnswer::Died),
            Polled::Late => Err(NoAnswer::Late),
            Polled::Stopped => match self.poll(until.min(Instant::now() + GRACE), None) {
                Polled::Ready => Err(NoAnswer::Stopped(self.receive())),
                _ => Err(NoAnswer::Stopped(None)),
            },
        }
    }

    fn poll(&self, until: Instant, stop: Option<&Stop>) -> Polled {
        let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        // Without a stop, the socket stands in its place.
        let mut watched = [self.socket.as_fd(), stop.map_or(self.socket.as_fd(), AsFd::as_fd)].map(watch);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // A time that the kernel cannot represent is no limit.
            let timeout = Timespec::try_from(left).ok();
            if poll(&mut watched, timeout.as_ref()).is_ok_and(|ready| ready > 0) {
                // An answer that has arrived counts, whatever else happened.
                return if watched[0].revents().is_empty() { Polled::Stopped } else { Polled::Ready };
            }
            if left.is_zero() {
                return Polled::Late;
            }
        }
    }

    fn receive(&self) -> Option<Answer> {
        let mut bytes = [0; ANSWER_BYTES];
        let got = retry_on_intr(|| recv(&self.socket, &mut bytes, RecvFlags::empty()));
        got.is_ok_and(|(count, _)| count == ANSWER_BYTES).then(|| Answer::from_bytes(&bytes)).flatten()
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
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}
