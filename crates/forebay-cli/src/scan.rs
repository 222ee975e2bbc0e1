//! `forebay scan`: lists a folder once and writes a manifest; later, updates it and lists the changes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::{
    Error, Facts, FolderIndex, KeepScan, Kind, Manifest, ManifestOutput, Result, SampleId, ScanOptions, ScanProgress,
    Scanned, StorageOptions, Store, is_url, protocol_of, recorded_root, scan_manifest,
};
use serde_json::{Value, json};

use crate::console::{Console, Status, size};
use crate::hint::argument;
use crate::progress::Progress;
use crate::storage::{self, StorageArguments, StorageOption};

/// How often a deep scan saves what it has read; at most this much is lost when it is interrupted.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);
const OVERWRITE_HINT: &str = "it will not be overwritten: delete it, or choose another name with --output";
/// How many names of each kind are printed; `--json` has all.
const SHOWN: usize = 10;

/// List a folder of classes and write a manifest of it: a Parquet file to load from without listing again.
///
/// If the manifest exists, it is updated: samples that were added, deleted or changed are listed, and with --deep only
/// new and changed files are read.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The folder, with one directory per class: a path or a URL (s3://, gs://, az://, file://)
    #[arg(value_parser = storage::place)]
    root: PathBuf,
    /// The manifest, a path or a URL (s3://, gs://, az://), replaced when it is complete
    #[arg(short, long, value_name = "NAME.parquet", value_parser = storage::place)]
    output: PathBuf,
    /// Read every new or changed file, and record width, height, format and a hash of its bytes
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
    /// An option of the store of --output, if it is not the folder's store; can be repeated
    #[arg(long = "output-option", value_name = "NAME=VALUE", value_parser = StorageOption::parse)]
    output_options: Vec<StorageOption>,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console<'_>) -> io::Result<Status> {
    let (output, source) = match output(arguments).and_then(|output| Ok((output, source(arguments)?))) {
        Ok(places) => places,
        Err(error) => {
            let status = if error.kind() == Kind::Config { Status::Usage } else { Status::Problems };
            console.error(&error)?;
            return Ok(status);
        }
    };
    console.warnings()?;
    let mut progress = Progress::new(console.is_terminal && !arguments.json);
    let done = scan(arguments, &output, source, &mut progress, console);
    progress.clear(console.err)?;
    match done {
        Ok(done) => report(arguments, &done, progress.elapsed(), console),
        Err(error) => {
            console.error(&error)?;
            Ok(Status::Problems)
        }
    }
}

/// The folder's store, and the folder as it appears in paths.
fn source(arguments: &Arguments) -> Result<(Arc<dyn Store>, PathBuf)> {
    let none = StorageArguments::default();
    let storage = if is_output_alone(arguments) { &none } else { &arguments.storage };
    storage.open(&arguments.root)
}

/// The output. Errors in it are reported before anything is listed.
fn output(arguments: &Arguments) -> Result<ManifestOutput> {
    let output = ManifestOutput::open(&arguments.output, &output_options(arguments)?)?;
    let path = output.path();
    if path.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("parquet")) {
        let message = format!("--output: expected a name that ends in .parquet, got {path:?}");
        return Err(Error::config(message).with_hint("forebay writes Parquet only; it also reads CSV and JSON lines"));
    }
    Ok(output)
}

/// The options of the output's store. Those of the folder's store apply to both if both are of one kind, and to the
/// output if the folder is local.
fn output_options(arguments: &Arguments) -> Result<StorageOptions> {
    let Arguments { root, output, storage, output_options, .. } = arguments;
    let of_folder = storage.options()?;
    if !output_options.is_empty() {
        let options = storage::options("--output-option", output_options)?;
        return match is_url(output) {
            true => Ok(options),
            false => Err(Error::config("--output-option: expected none for a file").at_path(output)),
        };
    }
    let is_shared = is_url(output) && (is_output_alone(arguments) || protocol_of(root) == protocol_of(output));
    Ok(if is_shared { of_folder } else { StorageOptions::default() })
}

/// Whether --storage-option can only be meant for the output.
fn is_output_alone(arguments: &Arguments) -> bool {
    !is_url(&arguments.root) && is_url(&arguments.output) && arguments.output_options.is_empty()
}

struct Done {
    output: PathBuf,
    scanned: Scanned,
    earlier: Option<Manifest>,
    root: String,
    size_bytes: u64,
}

fn scan(
    arguments: &Arguments,
    output: &ManifestOutput,
    (store, root): (Arc<dyn Store>, PathBuf),
    progress: &mut Progress,
    console: &mut Console<'_>,
) -> Result<Done> {
    let recorded = recorded_root(&root)?;
    let earlier = earlier(output)?;
    let mut options = ScanOptions { allow_empty: arguments.allow_empty, ..ScanOptions::images() };
    if !arguments.extensions.is_empty() {
        let dotted = |ending: &String| format!(".{}", ending.trim_start_matches('.').to_lowercase());
        options.extensions = arguments.extensions.iter().map(dotted).collect();
    }
    // Failure to draw progress does not stop the scan.
    let mut watch = |at: ScanProgress| drop(draw(at, progress, console));
    let mut checkpoints = Checkpoints::new(CHECKPOINT_INTERVAL);
    let mut keep = |index: &FolderIndex, facts: &[Facts]| {
        checkpoints.write(|| drop(output.write(index, facts, &recorded)));
        Ok(())
    };
    let deep: Option<&mut KeepScan<'_>> = if arguments.deep { Some(&mut keep) } else { None };
    let scanned = scan_manifest(&store, Path::new(&root), &options, deep, earlier.as_ref(), &mut watch);
    let scanned = scanned.map_err(|error| match error.kind() {
        Kind::Config if error.path().is_none() => error.at_path(output.path()).with_hint(OVERWRITE_HINT),
        _ => error,
    })?;
    let size_bytes = output.write(&scanned.index, &scanned.facts, &recorded)?;
    Ok(Done { output: output.path().to_owned(), scanned, earlier, root: recorded, size_bytes })
}

/// When to save intermediate results: now and then, taking at most a twentieth of the time. Errors in saving are not
/// reported here: it is tried again, and the last attempt counts.
struct Checkpoints {
    every: Duration,
    next: Instant,
}

impl Checkpoints {
    fn new(every: Duration) -> Self {
        Self { every, next: Instant::now() + every }
    }

    fn write(&mut self, write: impl FnOnce()) {
        let started = Instant::now();
        if started >= self.next {
            write();
            self.next = Instant::now() + self.every.max(20 * started.elapsed());
        }
    }
}

/// The existing manifest. Any other file of that name is not overwritten.
fn earlier(output: &ManifestOutput) -> Result<Option<Manifest>> {
    output.earlier().map_err(|error| match error.kind() {
        Kind::Config | Kind::Corrupt | Kind::Undecodable => error.with_hint(OVERWRITE_HINT),
        _ => error,
    })
}

fn draw(at: ScanProgress, progress: &mut Progress, console: &mut Console<'_>) -> io::Result<()> {
    match at {
        ScanProgress::Listing { directories, samples } => {
            progress.say(console.err, &format!("listing  {directories} directories  {samples} files"))
        }
        ScanProgress::Examining { done, total } => progress.draw(console.err, "examining", (done, total), ""),
        ScanProgress::Reading { done, total, bytes } => {
            progress.draw(console.err, "reading", (done, total), &format!("files  {}", size(bytes)))
        }
    }
}

fn report(arguments: &Arguments, done: &Done, elapsed: Duration, console: &mut Console<'_>) -> io::Result<Status> {
    if arguments.json {
        writeln!(console.out, "{:#}", as_json(done, elapsed))?;
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

/// Kinds of change, with the paths of their samples below the root.
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

fn as_json(done: &Done, elapsed: Duration) -> Value {
    let Done { scanned, root, size_bytes, .. } = done;
    let identity = scanned.index.identity();
    let problem = |(sample, error): &(SampleId, Error)| {
        json!({
            "path": scanned.index.path(*sample).to_string_lossy(), "code": error.kind().slug(),
            "message": error.to_string(), "hint": error.hint_in(argument),
        })
    };
    let note = |note: &forebay::Note| json!({"path": note.path.to_string_lossy(), "message": note.message});
    let mut object = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "root": root,
        "output": done.output.to_string_lossy(),
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
    let Done { scanned, root, size_bytes, earlier, .. } = done;
    let identity = scanned.index.identity();
    writeln!(console.out, "{} samples of {} classes in {root}", identity.samples, identity.classes)?;
    if let Some(before) = earlier.as_ref().and_then(|earlier| earlier.recorded_root.as_deref())
        && before != Path::new(root)
    {
        writeln!(console.out, "the manifest was made for {}", before.display())?;
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
        writeln!(console.out, "{} files read, {}", scanned.files_read, size(scanned.bytes_read))?;
    }
    let (output, size, seconds) = (done.output.display(), size(*size_bytes), elapsed.as_secs_f64());
    writeln!(console.out, "written to {output} ({size}) in {seconds:.2} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_not_written_all_the_time() {
        let mut count = 0;
        let mut never = Checkpoints::new(Duration::from_secs(3600));
        (0..10).for_each(|_| never.write(|| count += 1));
        assert_eq!(count, 0);
        let mut slow = Checkpoints::new(Duration::ZERO);
        slow.write(|| std::thread::sleep(Duration::from_millis(50)));
        assert!(slow.next > Instant::now() + Duration::from_millis(500), "twenty times as long as it took");
        slow.next = Instant::now();
        slow.write(|| count += 1);
        assert_eq!(count, 1);
    }
}
