//! `forebay mirror SOURCE TARGET`: a resumable copy of a whole store.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use forebay::{Error, Kind};
use forebay_mirror::{Doing, Filter, Mirror, Mirrored, Progress as Copying};
use serde_json::json;

use crate::console::{Console, Status, size};
use crate::hint::{argument, target_argument};
use crate::progress::Progress;
use crate::quantity;
use crate::storage::{self, StorageOption};

/// How many failures are printed as text: `--json` has them all.
const MAX_LINES: usize = 50;

/// Copy everything from one place to another: directories, s3://, gs://, az://.
///
/// Files that are already there (same size and time) are not copied again, so an interrupted mirror resumes where it
/// stopped. Every file appears complete or not at all. Exit status: 0 everything is there, 1 something could not be
/// copied, 2 wrong usage.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A directory, or a URL: s3://bucket/path, gs://bucket/path, az://container/path
    #[arg(value_parser = storage::place)]
    source: PathBuf,
    /// The destination, of the same kinds; a directory is created
    #[arg(value_parser = storage::place)]
    target: PathBuf,
    /// Delete files in TARGET that are not in SOURCE
    #[arg(long)]
    delete: bool,
    /// Delete nothing if more than this many files would be deleted
    #[arg(long, value_name = "N", requires = "delete")]
    max_delete: Option<u64>,
    /// Print what would be copied and removed, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Copy only names that match ("*.jpg", "train/**"); can be repeated
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Ignore names that match, also when deleting; can be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Read back every copy and compare it
    #[arg(long)]
    verify: bool,
    /// Limit of bytes per second: 50MB/s, 1.5GiB/s
    #[arg(long, value_name = "RATE", value_parser = rate)]
    bandwidth: Option<u64>,
    /// Files copied concurrently [default: 64 over a network, 16 on mounts, 8 between disks]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// An option of the source's store, as in storage_options; can be repeated. NAME=@FILE reads the value from a file,
    /// so that it does not appear in the process list
    #[arg(long, value_name = "NAME=VALUE", value_parser = StorageOption::parse)]
    storage_option: Vec<StorageOption>,
    /// An option of the target's store; can be repeated; NAME=@FILE as above
    #[arg(long, value_name = "NAME=VALUE", value_parser = StorageOption::parse)]
    target_option: Vec<StorageOption>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Parses bytes per second, such as `50MB/s`.
fn rate(text: &str) -> Result<u64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    quantity::bytes(number).ok_or_else(|| format!("expected bytes per second like 50MB/s or 1.5GiB/s, got {text:?}"))
}

fn time(left: Duration) -> String {
    let seconds = left.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{}:{:02} min", seconds / 60, seconds % 60),
        _ => format!("{}:{:02} h", seconds / 3600, seconds / 60 % 60),
    }
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console<'_>) -> io::Result<Status> {
    let mirror = match planned(arguments) {
        Ok(mirror) => mirror,
        Err(error) => return refuse(&error, arguments, console),
    };
    let mut progress = Progress::new(console.is_terminal && !arguments.json);
    let mut drawn = Ok(());
    let mut rate = Rate::default();
    let mirrored = mirror.run(&mut |now| {
        // If progress cannot be drawn, the copy continues; the error is reported at the end.
        let after = console.warnings().and_then(|()| draw(&mut progress, &mut rate, now, console.err));
        drawn = std::mem::replace(&mut drawn, Ok(())).and(after);
    });
    progress.clear(console.err)?;
    console.warnings()?;
    drawn?;
    match mirrored {
        Ok(mirrored) => report(arguments, &mirrored, console),
        Err(error) => refuse(&error, arguments, console),
    }
}

/// The mirror's settings. Store options for a directory are refused.
fn planned(arguments: &Arguments) -> forebay::Result<Mirror> {
    Ok(Mirror {
        source_options: storage::options_of(&arguments.source, &arguments.storage_option, "--storage-option")?,
        target_options: storage::options_of(&arguments.target, &arguments.target_option, "--target-option")?,
        filter: Filter::new(&arguments.include, &arguments.exclude)?,
        delete: arguments.delete,
        max_delete: arguments.max_delete,
        is_dry_run: arguments.dry_run,
        verifies: arguments.verify,
        threads: arguments.threads.map(usize::from),
        bytes_per_second: arguments.bandwidth,
        ..Mirror::new(&arguments.source, &arguments.target)
    })
}

/// Prints the error of a mirror that did not begin.
fn refuse(error: &Error, arguments: &Arguments, console: &mut Console<'_>) -> io::Result<Status> {
    console.error_with_hint(error, &hint_of(error, arguments))?;
    Ok(if error.kind() == Kind::Config { Status::Usage } else { Status::Problems })
}

/// The hint of an error, with the option of the store that it is about.
fn hint_of(error: &Error, arguments: &Arguments) -> String {
    let is_targets = storage::is_below(error, &arguments.target);
    error.hint_in(if is_targets { target_argument } else { argument })
}

/// Bytes per second of the last moments, for the remaining time.
#[derive(Default)]
struct Rate {
    last: Option<(Duration, u64)>,
    smooth: Option<f64>,
}

impl Rate {
    fn of(&mut self, now: Duration, bytes: u64) -> f64 {
        const WINDOW: Duration = Duration::from_millis(500);
        match self.last {
            Some((then, before)) if now >= then + WINDOW => {
                let current = bytes.saturating_sub(before) as f64 / (now - then).as_secs_f64();
                self.smooth = Some(self.smooth.map_or(current, |smooth| 0.8 * smooth + 0.2 * current));
                self.last = Some((now, bytes));
            }
            Some(_) => {}
            None => self.last = Some((now, bytes)),
        }
        self.smooth.unwrap_or(bytes as f64 / now.as_secs_f64().max(1e-3))
    }
}

fn draw(progress: &mut Progress, rate: &mut Rate, now: &Copying, to: &mut dyn io::Write) -> io::Result<()> {
    let failed = if now.failed > 0 { format!("  {} failed", now.failed) } else { String::new() };
    let (label, rest) = match now.doing {
        Doing::Listing => return progress.say(to, &format!("listing  {} files{failed}", now.files)),
        Doing::Comparing => ("comparing", format!("files{failed}")),
        Doing::Copying => {
            let rate = rate.of(progress.elapsed(), now.bytes);
            let left = now.all_bytes.saturating_sub(now.bytes) as f64 / rate.max(1.0);
            let left = time(Duration::from_secs_f64(left.min(1e9)));
            let (done, all, rate) = (size(now.bytes), size(now.all_bytes), size(rate as u64));
            ("copying", format!("files  {done} of {all}  {rate}/s  {left} left{failed}"))
        }
    };
    progress.draw(to, label, (now.files, now.all_files), &rest)
}

fn report(arguments: &Arguments, done: &Mirrored, console: &mut Console<'_>) -> io::Result<Status> {
    let status = if done.is_complete() { Status::Fine } else { Status::Problems };
    if arguments.json {
        let failure = |error: &Error| {
            json!({
                "path": error.path().map(|path| path.to_string_lossy()), "code": error.kind().slug(),
                "message": error.to_string(), "errno": error.errno(), "attempts": error.attempts(),
                "elapsed_seconds": error.elapsed().as_secs_f64(), "hint": hint_of(error, arguments),
            })
        };
        let names =
            |names: &[PathBuf]| names.iter().map(|name| name.to_string_lossy().into_owned()).collect::<Vec<_>>();
        let to_copy: Vec<_> = done.to_copy.iter().map(|(name, _)| name.clone()).collect();
        let object = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "source": arguments.source.to_string_lossy().split('?').next(),
            "target": arguments.target.to_string_lossy().split('?').next(),
            "is_dry_run": arguments.dry_run,
            "files": done.files, "bytes": done.bytes, "same_files": done.same_files,
            "copied_files": done.copied_files, "copied_bytes": done.copied_bytes,
            "resumed_bytes": done.resumed_bytes, "read_bytes": done.read_bytes,
            "to_copy": if arguments.dry_run { names(&to_copy) } else { Vec::new() },
            "removed": names(&done.removed),
            "failures": done.failures.iter().map(failure).collect::<Vec<_>>(),
            "stopped": done.halted.as_ref().map(failure),
            "retries": done.retries,
            "seconds": done.elapsed.as_secs_f64(),
        });
        writeln!(console.out, "{object}")?;
        return Ok(status);
    }
    if arguments.dry_run {
        for (name, bytes) in &done.to_copy {
            writeln!(console.out, "copy    {name:?} ({bytes} bytes)")?;
        }
    }
    for name in done.removed.iter().filter(|_| arguments.dry_run) {
        writeln!(console.out, "remove  {name:?}")?;
    }
    failures(arguments, done, console)?;
    summary(arguments, done, console)?;
    Ok(status)
}

fn summary(arguments: &Arguments, done: &Mirrored, console: &mut Console<'_>) -> io::Result<()> {
    let Mirrored { files, same_files, copied_files, .. } = done;
    writeln!(console.out, "{files} files, {}: {same_files} were there already", size(done.bytes))?;
    if arguments.dry_run {
        let bytes = done.to_copy.iter().map(|(_, bytes)| bytes).sum();
        let (copies, removals) = (done.to_copy.len(), done.removed.len());
        return writeln!(console.out, "to copy: {copies} files, {}; to remove: {removals}", size(bytes));
    }
    let seconds = done.elapsed.as_secs_f64();
    let rate = size((done.copied_bytes as f64 / seconds.max(1e-3)) as u64);
    let resumed = match done.resumed_bytes {
        0 => String::new(),
        bytes => format!("; {} of them were there from an earlier run", size(bytes)),
    };
    let copied = size(done.copied_bytes);
    writeln!(console.out, "copied {copied_files} files, {copied} in {seconds:.1} s ({rate}/s){resumed}")?;
    if arguments.delete {
        writeln!(console.out, "removed {} files", done.removed.len())?;
    }
    if let Some(error) = &done.halted {
        writeln!(console.err, "error: stopped: {error}\nhint: {}", hint_of(error, arguments))?;
        writeln!(console.err, "all copied files are complete; run the same command to resume")?;
    }
    Ok(())
}

fn failures(arguments: &Arguments, done: &Mirrored, console: &mut Console<'_>) -> io::Result<()> {
    if done.failures.is_empty() {
        return Ok(());
    }
    let count = done.failures.len();
    writeln!(console.out, "{count} {}:", if count == 1 { "failure" } else { "failures" })?;
    let mut hints: Vec<(&str, String)> = Vec::new();
    for error in &done.failures {
        let code = error.kind().slug();
        if hints.len() < MAX_LINES && !hints.iter().any(|(known, _)| *known == code) {
            hints.push((code, hint_of(error, arguments)));
        }
    }
    for error in done.failures.iter().take(MAX_LINES) {
        writeln!(console.out, "  {:<12} {error}", error.kind().slug())?;
    }
    if count > MAX_LINES {
        writeln!(console.out, "  … and {} more: --json has them all", count - MAX_LINES)?;
    }
    for (code, hint) in hints {
        writeln!(console.out, "  hint ({code}): {hint}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn hints_name_the_option_of_the_store_that_the_error_is_about() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            mirror: Arguments,
        }
        let words = ["mirror", "s3://bucket/a", "s3://bucket/b?region=x"];
        let arguments = <Command as clap::Parser>::parse_from(words).mirror;
        for (path, expected) in [
            ("s3://bucket/a/x.jpg", "--storage-option profile=…"),
            ("s3://bucket/b/x.jpg", "--target-option profile=…"),
            ("s3://bucket/b", "--target-option profile=…"),
            ("s3://bucket/better/x.jpg", "--storage-option profile=…"),
        ] {
            let error = Error::new(Kind::Denied, "x").at_path(Path::new(path)).with_hint("`storage_options.profile=…`");
            assert_eq!(hint_of(&error, &arguments), expected, "{path}");
        }
    }

    #[test]
    fn rates_are_bytes_a_second() {
        for (text, bytes) in [
            ("50MB/s", 50_000_000),
            ("1.5GiB/s", 1_610_612_736),
            ("800 kB", 800_000),
            ("1000", 1000),
            ("64KiB/s", 65_536),
        ] {
            assert_eq!(rate(text), Ok(bytes), "{text}");
        }
        for text in ["", "fast", "0", "-1MB/s", "50Mbit/s", "50MB/h", "1e99"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_and_times_are_said_as_people_say_them() {
        assert_eq!([size(999), size(1_500), size(2_340_000_000)], ["999 bytes", "1.5 kB", "2.3 GB"]);
        let said = [5, 75, 3_700].map(|seconds| time(Duration::from_secs(seconds)));
        assert_eq!(said, ["5 s", "1:15 min", "1:01 h"]);
    }

    #[test]
    fn the_rate_is_that_of_the_last_moments() {
        let mut rate = Rate::default();
        let at = Duration::from_millis;
        rate.of(at(0), 0);
        assert_eq!(rate.of(at(500), 500), 1000.0);
        assert_eq!(rate.of(at(700), 9_999), 1000.0, "not yet looked at again");
        assert_eq!(rate.of(at(1000), 500), 800.0, "nothing came");
    }
}
