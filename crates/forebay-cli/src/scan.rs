//! `forebay scan`: lists a folder once and writes down what is in it; later, what has changed since.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::{
    Error, FolderIndex, Kind, Local, Manifest, Result, SampleId, ScanOptions, ScanProgress, Scanned, Store, is_url,
    read_earlier, recorded_root, scan_manifest,
};
use serde_json::{Value, json};

use crate::console::{Console, Status};
use crate::progress::Progress;
use crate::storage::StorageArguments;

/// Names that are printed of each kind; `--json` has all.
const SHOWN: usize = 10;

/// List a folder of classes and write a manifest of it: a Parquet file to load from without listing again.
///
/// Where the manifest exists, it is brought up to date: what was added, deleted or changed is named, and with --deep
/// only what is new or changed is read.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The folder, with one directory per class: a path or a URL (s3://, gs://, az://, file://)
    root: PathBuf,
    /// The manifest, replaced when it is complete
    #[arg(short, long, value_name = "NAME.parquet")]
    output: PathBuf,
    /// Read every file that is new or changed, and write down width, height, format and a hash of its bytes
    #[arg(long)]
    deep: bool,
    /// Files with this ending are samples; can be repeated [default: images]
    #[arg(long = "extension", value_name = ".EXT")]
    extensions: Vec<String>,
    /// Accept classes without samples
    #[arg(long)]
    allow_empty: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    storage: StorageArguments,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console<'_>) -> io::Result<Status> {
    if let Err(error) = check(arguments) {
        console.error(&error)?;
        return Ok(Status::Usage);
    }
    let mut progress = Progress::new(console.is_terminal && !arguments.json);
    let done = scan(arguments, &mut progress, console);
    progress.clear(console.err)?;
    match done {
        Ok(done) => report(arguments, &done, progress.elapsed(), console),
        Err(error) => {
            console.error(&error)?;
            Ok(Status::Problems)
        }
    }
}

/// What is wrong is said before anything is listed.
fn check(arguments: &Arguments) -> Result<()> {
    arguments.storage.options()?;
    let output = &arguments.output;
    if is_url(output) {
        return Err(Error::config("--output: expected a file of this machine, got a URL"));
    }
    if output.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("parquet")) {
        let message = format!("--output: expected a name that ends in .parquet, got {output:?}");
        return Err(Error::config(message).with_hint("Parquet is what is written; others are read, too"));
    }
    Ok(())
}

struct Done {
    scanned: Scanned,
    earlier: Option<Manifest>,
    root: String,
    size_bytes: u64,
}

fn scan(arguments: &Arguments, progress: &mut Progress, console: &mut Console<'_>) -> Result<Done> {
    let (store, root) = arguments.storage.open(&arguments.root)?;
    let recorded = recorded_root(&root)?;
    let earlier = earlier(&arguments.output)?;
    let mut options = ScanOptions { allow_empty: arguments.allow_empty, ..ScanOptions::images() };
    if !arguments.extensions.is_empty() {
        let dotted = |ending: &String| format!(".{}", ending.trim_start_matches('.').to_lowercase());
        options.extensions = arguments.extensions.iter().map(dotted).collect();
    }
    // A line that cannot be drawn is no reason to stop.
    let mut watch = |at: ScanProgress| drop(draw(at, progress, console));
    let scanned = scan_manifest(&store, Path::new(&root), &options, arguments.deep, earlier.as_ref(), &mut watch)?;
    let size_bytes = scanned.write(&arguments.output, &recorded)?;
    Ok(Done { scanned, earlier, root: recorded, size_bytes })
}

/// The manifest that is there. Something else under its name is not overwritten.
fn earlier(output: &Path) -> Result<Option<Manifest>> {
    match Local.stat(output) {
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(_) => read_earlier(output).map(Some).map_err(|error| match error.kind() {
            Kind::Config | Kind::Corrupt => {
                error.with_hint("it will not be overwritten: delete it, or choose another name with --output")
            }
            _ => error,
        }),
    }
}

fn draw(at: ScanProgress, progress: &mut Progress, console: &mut Console<'_>) -> io::Result<()> {
    match at {
        ScanProgress::Listing { directories, samples } => {
            progress.say(console.err, &format!("listing  {directories} directories  {samples} files"))
        }
        ScanProgress::Examining { done, total } => progress.draw(console.err, "examining", (done, total), ""),
        ScanProgress::Reading { done, total, bytes } => {
            let megabytes = bytes as f64 / 1e6;
            progress.draw(console.err, "reading", (done, total), &format!("{megabytes:.0} MB"))
        }
    }
}

fn report(arguments: &Arguments, done: &Done, elapsed: Duration, console: &mut Console<'_>) -> io::Result<Status> {
    if arguments.json {
        writeln!(console.out, "{:#}", as_json(arguments, done, elapsed))?;
    } else {
        as_text(arguments, done, elapsed, console)?;
    }
    for (_, error) in done.scanned.problems.iter().take(SHOWN) {
        writeln!(console.err, "problem: {error}")?;
    }
    if done.scanned.problems.len() > SHOWN {
        writeln!(console.err, "and {} more problems (--json names all)", done.scanned.problems.len() - SHOWN)?;
    }
    Ok(if done.scanned.problems.is_empty() { Status::Fine } else { Status::Problems })
}

/// Kinds of change, with the samples of each by their paths below the root.
fn changes(done: &Done) -> Vec<(&'static str, Vec<String>)> {
    let Done { scanned, earlier, .. } = done;
    let (Some(difference), Some(earlier)) = (&scanned.difference, earlier) else { return Vec::new() };
    let names = |index: &FolderIndex, samples: &[SampleId]| {
        let name = |sample: &SampleId| {
            let path = index.path(*sample);
            path.strip_prefix(index.root()).unwrap_or(&path).to_string_lossy().into_owned()
        };
        samples.iter().map(name).collect()
    };
    vec![
        ("added", names(&scanned.index, &difference.added)),
        ("deleted", names(&earlier.index, &difference.deleted)),
        ("changed", names(&scanned.index, &difference.changed)),
    ]
}

fn as_json(arguments: &Arguments, done: &Done, elapsed: Duration) -> Value {
    let Done { scanned, root, size_bytes, .. } = done;
    let identity = scanned.index.identity();
    let problem = |(sample, error): &(SampleId, Error)| {
        json!({
            "path": scanned.index.path(*sample).to_string_lossy(), "code": error.kind().slug(),
            "message": error.to_string(), "hint": error.hint(),
        })
    };
    let note = |note: &forebay::Note| json!({"path": note.path.to_string_lossy(), "message": note.message});
    let mut object = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "root": root,
        "output": arguments.output.to_string_lossy(),
        "size_bytes": size_bytes,
        "samples": identity.samples,
        "classes": identity.classes,
        "fingerprint": identity.fingerprint,
        "is_new": scanned.difference.is_none(),
        "added": [], "deleted": [], "changed": [],
        "files_read": scanned.files_read,
        "bytes_read": scanned.bytes_read,
        "problems": scanned.problems.iter().map(problem).collect::<Vec<_>>(),
        "notes": scanned.index.notes().iter().map(note).collect::<Vec<_>>(),
        "seconds": elapsed.as_secs_f64(),
    });
    for (kind, names) in changes(done) {
        object[kind] = names.into();
    }
    object
}

fn as_text(arguments: &Arguments, done: &Done, elapsed: Duration, console: &mut Console<'_>) -> io::Result<()> {
    let Done { scanned, root, size_bytes, earlier } = done;
    let identity = scanned.index.identity();
    writeln!(console.out, "{} samples of {} classes in {root}", identity.samples, identity.classes)?;
    if let Some(before) = earlier.as_ref().and_then(|earlier| earlier.recorded_root.as_deref())
        && before != Path::new(root)
    {
        writeln!(console.out, "the manifest was one of {}", before.display())?;
    }
    let changes = changes(done);
    let counts: Vec<_> = changes.iter().map(|(kind, names)| format!("{} {kind}", names.len())).collect();
    if !counts.is_empty() {
        writeln!(console.out, "{}", counts.join(", "))?;
    }
    for (kind, names) in &changes {
        for name in names.iter().take(SHOWN) {
            writeln!(console.out, "  {kind:7}  {name}")?;
        }
        if names.len() > SHOWN {
            writeln!(console.out, "  {kind:7}  and {} more (--json names all)", names.len() - SHOWN)?;
        }
    }
    for note in scanned.index.notes().iter().take(SHOWN) {
        writeln!(console.out, "note: {:?} {}", note.path, note.message)?;
    }
    if arguments.deep {
        writeln!(console.out, "{} files read, {:.1} MB", scanned.files_read, scanned.bytes_read as f64 / 1e6)?;
    }
    let (output, megabytes, seconds) = (arguments.output.display(), *size_bytes as f64 / 1e6, elapsed.as_secs_f64());
    writeln!(console.out, "written to {output} ({megabytes:.1} MB) in {seconds:.2} s")
}
