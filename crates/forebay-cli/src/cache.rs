//! `forebay cache`: inspect, clear or verify a cache. Only cache entries are ever removed.

use std::io;
use std::path::{Path, PathBuf};

use forebay::{Cache, Error, Result};
use serde_json::{Value, json};

use crate::console::{Console, Status};
use crate::progress::Progress;

/// Inspect, clear or verify a cache directory (`cache=` of a dataset)
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the number and size of cached objects
    Info(Where),
    /// Remove all cached objects; the directory stays a cache
    Clear(Where),
    /// Read all cached objects, and remove damaged ones
    Verify(Where),
}

#[derive(Debug, clap::Args)]
struct Where {
    /// The directory that was passed as `cache=`
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console<'_>) -> io::Result<Status> {
    let (place, done) = match &arguments.action {
        Action::Info(place) => (place, info(&place.directory)),
        Action::Clear(place) => (place, clear(&place.directory)),
        Action::Verify(place) => (place, verify(place, console)),
    };
    match done {
        Ok(Output { status, text, json }) => {
            match place.json {
                true => writeln!(console.out, "{json}")?,
                false => write!(console.out, "{text}")?,
            }
            Ok(status)
        }
        Err(error) => {
            console.error(&error)?;
            Ok(Status::Problems)
        }
    }
}

/// The result of a command.
struct Output {
    status: Status,
    text: String,
    json: Value,
}

fn info(directory: &Path) -> Result<Output> {
    let info = Cache::info(directory)?;
    let mut text = format!("{} objects, {}", info.entries, size(info.bytes));
    if let Some(limit) = info.limit_bytes {
        text += &format!(" of at most {}", size(limit));
    }
    text += &format!(" in {}\n", directory.display());
    let (others, other_bytes) = info.other_formats;
    for (count, what) in [
        (info.parts, "being written".to_owned()),
        (others, format!("({}) of another version of forebay, which this version does not read", size(other_bytes))),
        (info.foreign, "foreign files, which are never touched".to_owned()),
    ] {
        if count > 0 {
            text += &format!("{count} {what}\n");
        }
    }
    let json = json!({
        "entries": info.entries, "bytes": info.bytes, "limit_bytes": info.limit_bytes, "parts": info.parts,
        "oldest_unix_seconds": info.oldest_ns.map(|ns| ns as f64 / 1e9), "foreign": info.foreign,
        "other_format_entries": others, "other_format_bytes": other_bytes,
    });
    Ok(Output { status: Status::Fine, text, json })
}

fn clear(directory: &Path) -> Result<Output> {
    let cleared = Cache::clear(directory)?;
    let mut text =
        format!("removed {} objects, {}, from {}\n", cleared.entries, size(cleared.bytes), directory.display());
    if cleared.foreign > 0 {
        text += &format!("left {} foreign files\n", cleared.foreign);
    }
    let json = json!({ "entries": cleared.entries, "bytes": cleared.bytes, "foreign": cleared.foreign });
    Ok(Output { status: Status::Fine, text, json })
}

fn verify(place: &Where, console: &mut Console<'_>) -> Result<Output> {
    let mut progress = Progress::new(console.is_terminal && !place.json);
    let mut drawn = Ok(());
    let verified = Cache::verify(&place.directory, &mut |done, total| {
        drawn = progress.draw(console.err, "verify", (done, total), "directories");
    });
    drawn.and_then(|()| progress.clear(console.err)).map_err(|error| Error::io("written to", error))?;
    let verified = verified?;
    let mut text = String::new();
    for damaged in &verified.damaged {
        let of = damaged.path.as_ref().map_or("an unknown object".to_owned(), |path| format!("{path:?}"));
        let what = if damaged.is_removed { "removed" } else { "could not be removed" };
        text += &format!("damaged, {what}: {} of {of}\n", damaged.file);
    }
    text += &format!(
        "{} objects, {}, are intact; {} were damaged\n",
        verified.entries,
        size(verified.bytes),
        verified.damaged.len()
    );
    let damaged: Vec<_> = verified
        .damaged
        .iter()
        .map(|damaged| json!({ "file": damaged.file, "path": damaged.path, "removed": damaged.is_removed }))
        .collect();
    let status = if damaged.is_empty() { Status::Fine } else { Status::Problems };
    let json = json!({ "entries": verified.entries, "bytes": verified.bytes, "damaged": damaged });
    Ok(Output { status, text, json })
}

/// Formats a number of bytes.
fn size(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(4);
    match unit {
        0 => format!("{bytes} bytes"),
        _ => format!("{:.1} {}", bytes as f64 / f64::from(1 << 10).powi(unit as i32), units[unit as usize]),
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_for_people() {
        let said: Vec<_> = [0, 1023, 1024, 3 << 19, 50 << 30, u64::MAX].into_iter().map(size).collect();
        assert_eq!(said, ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 MiB", "50.0 GiB", "16777216.0 TiB"]);
    }
}
