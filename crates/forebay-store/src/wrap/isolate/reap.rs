//! Reaps processes that were killed. A process stuck in the kernel dies only when its mount answers. A background
//! thread reaps it then; the thread runs only while there are such processes, and is never waited for.

use std::process::{Child, ExitStatus};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long to wait for a killed process before it is left to the thread. A healthy one takes 1 ms.
pub(super) const MAX_WAIT: Duration = Duration::from_millis(200);
/// Between two polls of the thread: the first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Processes to reap, and whether the thread is running.
#[derive(Debug, Default)]
struct Unreaped {
    children: Vec<Child>,
    has_thread: bool,
    /// The parent process: a forked child must not reap them.
    process: u32,
}

static UNREAPED: Mutex<Unreaped> = Mutex::new(Unreaped { children: Vec::new(), has_thread: false, process: 0 });

/// The exit status, or the process itself if it is still alive at `until`.
pub(super) fn wait(mut child: Child, until: Instant) -> (Option<ExitStatus>, Option<Child>) {
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => sleep(Duration::from_millis(1)),
            Ok(None) => return (None, Some(child)),
            waited => return (waited.ok().flatten(), None),
        }
    }
}

/// Waits briefly for processes that were killed; those still alive then are reaped later.
pub(super) fn soon(children: Vec<Child>) {
    let until = Instant::now() + MAX_WAIT;
    later(children.into_iter().filter_map(|child| wait(child, until).1).collect());
}

/// Reaps them when they die.
pub(super) fn later(children: Vec<Child>) {
    if children.is_empty() {
        return;
    }
    let mut unreaped = UNREAPED.lock();
    if unreaped.process != std::process::id() {
        *unreaped = Unreaped { process: std::process::id(), ..Unreaped::default() };
    }
    unreaped.children.extend(children);
    if !unreaped.has_thread {
        // Without a thread they stay zombies until the next call, or until the process ends.
        unreaped.has_thread = Builder::new().name("forebay-reap".to_owned()).spawn(run).is_ok();
    }
}

fn run() {
    let mut pause = PAUSES.0;
    loop {
        sleep(pause);
        pause = (pause * 2).min(PAUSES.1);
        let mut unreaped = UNREAPED.lock();
        unreaped.children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if unreaped.children.is_empty() {
            unreaped.has_thread = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_process_that_dies_late_is_no_zombie() {
        let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = child.id() as libc::pid_t;
        later(vec![child]);
        // SAFETY: it is this test's own child, and not reaped yet.
        assert_eq!(unsafe { libc::kill(process, libc::SIGKILL) }, 0);
        let deadline = Instant::now() + Duration::from_secs(20);
        while Path::new(&format!("/proc/{process}")).exists() {
            assert!(Instant::now() < deadline, "it is a zombie");
            sleep(Duration::from_millis(1));
        }
    }
}
