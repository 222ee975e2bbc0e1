//! The loader's process, seen from the one that makes trouble for it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use crate::Result;
use crate::epoch::{Ended, Event, Settings};

/// How long a process may take to be gone that has ended, or that was killed. Promised.
pub(crate) const PROMPT: Duration = Duration::from_secs(2);
/// Longer than any trial takes.
const PATIENCE: Duration = Duration::from_secs(180);
const GLANCE: Duration = Duration::from_millis(5);

pub(crate) struct Engine {
    child: Child,
    stdin: ChildStdin,
    events: Receiver<Event>,
}

/// How long processes took to be gone; `None` when they were not within [`PROMPT`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    pub(crate) status: Option<ExitStatus>,
    pub(crate) process: Option<Duration>,
    pub(crate) readers: Option<Duration>,
}

impl Engine {
    pub(crate) fn start(folder: &Path, settings: &Settings) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("epoch")
            .arg(folder)
            .arg(serde_json::to_string(settings)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (stdin, stdout) = match (child.stdin.take(), child.stdout.take()) {
            (Some(stdin), Some(stdout)) => (stdin, stdout),
            _ => return Err("the loader's process has no pipes".into()),
        };
        let (told, events) = channel();
        let listen = move || {
            for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
                // What is no event is missed by whoever waits for one.
                let Ok(event) = serde_json::from_str(&line) else { continue };
                if told.send(event).is_err() {
                    return;
                }
            }
        };
        Builder::new().name("events".to_owned()).spawn(listen)?;
        Ok(Self { child, stdin, events })
    }

    /// Waits for an event that `wanted` takes; the others are passed over.
    pub(crate) fn wait_for<T>(&self, what: &str, wanted: impl Fn(Event) -> Option<T>) -> Result<T> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Ended(ended)) => {
                    let error = ended.error.clone();
                    return wanted(Event::Ended(ended))
                        .ok_or_else(|| format!("the loader ended before {what}: {error:?}").into());
                }
                Ok(event) => {
                    if let Some(found) = wanted(event) {
                        return Ok(found);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Err(format!("no {what} within {PATIENCE:?}").into()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("the loader's process ended before {what}").into());
                }
            }
        }
    }

    pub(crate) fn wait_until_held(&self) -> Result<()> {
        self.wait_for("the step to hold at", |event| matches!(event, Event::Held).then_some(()))
    }

    pub(crate) fn wait_until_stalled(&self) -> Result<()> {
        self.wait_for("a stall", |event| matches!(event, Event::Stalled(_)).then_some(()))
    }

    pub(crate) fn wait_until_ended(&self) -> Result<Ended> {
        self.wait_for("its last word", |event| match event {
            Event::Ended(ended) => Some(*ended),
            _ => None,
        })
    }

    /// Lets it go on from where it is held.
    pub(crate) fn go_on(&mut self) -> Result<()> {
        self.stdin.write_all(b"go on\n")?;
        Ok(self.stdin.flush()?)
    }

    pub(crate) fn signal(&self, signal: i32) -> Result<()> {
        let process = self.child.id().try_into()?;
        // SAFETY: takes no memory; the child was not waited for yet, so the number is still its.
        match unsafe { libc::kill(process, signal) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().into()),
        }
    }

    /// Waits until it is reaped, and until none of its readers is alive.
    pub(crate) fn wait_until_gone(mut self) -> Result<Gone> {
        let began = Instant::now();
        let mut status = None;
        let process = within(PROMPT, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        let readers = within(PROMPT, || living_readers() == 0).map(|_| began.elapsed());
        if process.is_none() {
            // A broken promise; the next trial must not suffer for it.
            self.signal(libc::SIGKILL)?;
            within(PATIENCE, || !matches!(self.child.try_wait(), Ok(None))).ok_or("the loader cannot be killed")?;
        }
        Ok(Gone { status, process, readers })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Nothing is left of a trial that failed; one that ended was reaped, and there is nobody to kill.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _killed = self.child.kill();
            let _ended = self.child.wait();
        }
    }
}

/// How long it took until something came to be; `None` when it did not within `limit`.
pub(crate) fn within(limit: Duration, mut condition: impl FnMut() -> bool) -> Option<Duration> {
    let began = Instant::now();
    loop {
        if condition() {
            return Some(began.elapsed());
        }
        if began.elapsed() > limit {
            return None;
        }
        sleep(GLANCE);
    }
}

/// Reader processes that are neither gone nor dead.
fn living_readers() -> usize {
    let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
    let is_living_reader = |path: std::path::PathBuf| {
        let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
        // The name stands in brackets, cut after 15 bytes; the state follows.
        stat.split_once("(forebay-reader")
            .and_then(|(_, rest)| rest.split_once(") "))
            .is_some_and(|(_, rest)| !rest.starts_with('Z') && !rest.starts_with('X'))
    };
    processes.flatten().filter(|entry| is_living_reader(entry.path())).count()
}
