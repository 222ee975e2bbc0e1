//! One reader process, seen from here: its socket, its window, and how long it is waited for.

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

/// After a stop, a healthy reader gets this long to finish its piece, so that it need not be started again.
const GRACE: Duration = Duration::from_millis(50);

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Silence {
    /// Its socket is closed.
    Died,
    /// The deadline passed.
    Late,
    /// The call was stopped; with the answer, if it came all the same.
    Stopped(Option<Answer>),
}

/// A reader process. Dropping it closes its socket, which makes it leave; it is the pool that reaps it.
#[derive(Debug)]
pub(super) struct Reader {
    child: Child,
    socket: OwnedFd,
    window: Arc<Window>,
}

impl Reader {
    /// Starts one. It dies with the *thread* that calls this (`PR_SET_PDEATHSIG`), so that has to outlive it.
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
                // The terminal's Ctrl-C is for the loader's process.
                .process_group(0)
                .spawn()
        })?;
        Ok(Self { child, socket, window })
    }

    /// Sends a request; false when nobody is there to take it.
    pub(super) fn send(&self, message: &[u8]) -> bool {
        retry_on_intr(|| send(&self.socket, message, SendFlags::NOSIGNAL)).is_ok()
    }

    /// Waits for the answer to the request sent last.
    pub(super) fn wait(&self, until: Instant, stop: Option<&Stop>) -> Result<Answer, Silence> {
        match self.poll(until, stop) {
            Polled::Ready => self.receive().ok_or(Silence::Died),
            Polled::Late => Err(Silence::Late),
            Polled::Stopped => match self.poll(until.min(Instant::now() + GRACE), None) {
                Polled::Ready => Err(Silence::Stopped(self.receive())),
                _ => Err(Silence::Stopped(None)),
            },
        }
    }

    fn poll(&self, until: Instant, stop: Option<&Stop>) -> Polled {
        let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        // Without a stop, the socket stands in its place.
        let mut watched = [self.socket.as_fd(), stop.map_or(self.socket.as_fd(), AsFd::as_fd)].map(watch);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // What is too long for the kernel's clock is for ever.
            let timeout = Timespec::try_from(left).ok();
            if poll(&mut watched, timeout.as_ref()).is_ok_and(|ready| ready > 0) {
                // An answer that is here counts, whatever else happened.
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

    /// Where it puts what it reads. Nobody else asks the window for views, so it is in use no longer than its reader.
    pub(super) fn window(&self) -> &Arc<Window> {
        &self.window
    }

    /// Kills it without waiting, and closes everything that was for it.
    pub(super) fn kill(mut self) -> Child {
        // It may be dead already; a process that cannot die keeps the signal until it can.
        let _killed = self.child.kill();
        self.child
    }
}

enum Polled {
    Ready,
    Late,
    Stopped,
}

/// Packets, so that a request is taken whole.
fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}
