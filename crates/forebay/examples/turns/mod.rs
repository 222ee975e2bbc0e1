//! What the examples that measure have in common: turns, and what they take of the machine.

use std::io::Write;
use std::time::{Duration, Instant};

use forebay::{Error, Result};

/// The epochs that a program was told to deliver: so many, or in turns with other programs. Then as many as each line of
/// standard input says, once "ready" was printed, and what `deliver` gives for them is a line of its own.
pub(crate) fn take_turns(epochs: &str, usage: &str, mut deliver: impl FnMut(u64) -> Result<String>) -> Result<()> {
    let number = |text: &str| text.parse::<u64>().map_err(|error| Error::config(usage).with_source(error));
    let print = |line: &str| writeln!(std::io::stdout(), "{line}").map_err(|error| Error::io("written to", error));
    if epochs != "-" {
        return print(&deliver(number(epochs)?)?);
    }
    print("ready")?;
    for line in std::io::stdin().lines() {
        let line = line.map_err(|error| Error::io("read", error))?;
        let told = deliver(number(&line)?)?;
        settle();
        print(&told)?;
    }
    Ok(())
}

/// Waits until all threads rest: what they still make ahead would slow down the next one.
fn settle() {
    const LOOK: Duration = Duration::from_millis(10);
    loop {
        let (before, started) = (Usage::now(), Instant::now());
        std::thread::sleep(LOOK);
        let used = Usage::now().processor_seconds() - before.processor_seconds();
        if used < started.elapsed().as_secs_f64() / 10.0 {
            return;
        }
    }
}

/// What the process has taken of the machine so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) user_seconds: f64,
    pub(crate) system_seconds: f64,
    pub(crate) page_faults: i64,
    /// Waits, and times that a thread lost its processor to another.
    pub(crate) waits: i64,
    pub(crate) preemptions: i64,
}

impl Usage {
    /// Up to now.
    pub(crate) fn now() -> Self {
        // SAFETY: the struct holds numbers only, for which zeros are valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the struct is writable; the call can fail for other arguments only.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Self {
            user_seconds: seconds(usage.ru_utime),
            system_seconds: seconds(usage.ru_stime),
            page_faults: usage.ru_minflt + usage.ru_majflt,
            waits: usage.ru_nvcsw,
            preemptions: usage.ru_nivcsw,
        }
    }

    pub(crate) fn processor_seconds(self) -> f64 {
        self.user_seconds + self.system_seconds
    }

    /// Since then, as members of a JSON object.
    pub(crate) fn since(self) -> String {
        let now = Self::now();
        format!(
            r#""user_seconds": {:.6}, "system_seconds": {:.6}, "page_faults": {}, "waits": {}, "preemptions": {}"#,
            now.user_seconds - self.user_seconds,
            now.system_seconds - self.system_seconds,
            now.page_faults - self.page_faults,
            now.waits - self.waits,
            now.preemptions - self.preemptions,
        )
    }
}
