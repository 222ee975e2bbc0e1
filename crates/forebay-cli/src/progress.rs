//! A progress line that is overwritten while a command works. Only on a terminal.

use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Updating more often than this flickers.
const INTERVAL: Duration = Duration::from_millis(100);
/// Columns of the bar.
const BAR: u64 = 24;

/// The line.
pub(crate) struct Progress {
    is_shown: bool,
    started: Instant,
    drawn: Option<Instant>,
}

impl Progress {
    pub(crate) fn new(is_shown: bool) -> Self {
        Self { is_shown, started: Instant::now(), drawn: None }
    }

    /// Time since it was made.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Draws `label  [####----]  done/total` and `rest`, unless it was drawn a moment ago.
    pub(crate) fn draw(
        &mut self,
        to: &mut dyn Write,
        label: &str,
        (done, total): (u64, u64),
        rest: &str,
    ) -> io::Result<()> {
        if done < total && self.is_recent() {
            return Ok(());
        }
        let filled = (BAR * done / total.max(1)).min(BAR) as usize;
        let bar = format!("{}{}", "#".repeat(filled), "-".repeat(BAR as usize - filled));
        self.put(to, &format!("{label}  [{bar}]  {done}/{total}  {rest}"))
    }

    /// Draws a line without a known total, unless one was drawn a moment ago.
    pub(crate) fn say(&mut self, to: &mut dyn Write, text: &str) -> io::Result<()> {
        if self.is_recent() { Ok(()) } else { self.put(to, text) }
    }

    fn is_recent(&self) -> bool {
        self.drawn.is_some_and(|drawn| drawn.elapsed() < INTERVAL)
    }

    fn put(&mut self, to: &mut dyn Write, text: &str) -> io::Result<()> {
        if !self.is_shown {
            return Ok(());
        }
        self.drawn = Some(Instant::now());
        write!(to, "\r{text}\x1b[K")?;
        to.flush()
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self, to: &mut dyn Write) -> io::Result<()> {
        match self.drawn.take() {
            Some(_) => write!(to, "\r\x1b[K").and_then(|()| to.flush()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_drawn_over_itself_and_leaves_nothing() {
        let (mut progress, mut to) = (Progress::new(true), Vec::new());
        progress.draw(&mut to, "epoch 0", (300, 600), "7 failed").unwrap();
        progress.draw(&mut to, "epoch 0", (301, 600), "too soon to be drawn").unwrap();
        progress.clear(&mut to).unwrap();
        let text = String::from_utf8(to).unwrap();
        assert_eq!(text, "\repoch 0  [############------------]  300/600  7 failed\x1b[K\r\x1b[K");
    }

    #[test]
    fn without_a_terminal_nothing_is_drawn() {
        let (mut progress, mut to) = (Progress::new(false), Vec::new());
        progress.draw(&mut to, "epoch 0", (600, 600), "").unwrap();
        progress.clear(&mut to).unwrap();
        assert!(to.is_empty());
    }
}
