//! `forebay pack SOURCE -o TARGET`: tar shards of what forebay reads.

use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use forebay::{Error, FailureLimit, Kind};
use forebay_pack::{Coding, Doing, Pack, Packed, Progress as Packing, Recoding, Source, SourceKind};
use serde_json::json;

use crate::console::{Console, Status, counted, size};
use crate::hint::{argument, target_argument};
use crate::parity;
use crate::progress::Progress;
use crate::quantity;
use crate::storage::{self, StorageOption};
use crate::tokenize;

/// How many failures and notes are printed as text: `--json` and the ledger have them all.
const SHOWN: usize = 10;

/// Pack samples into tar shards, as WebDataset reads them: of a folder, a manifest, or shards of any format that forebay reads.
///
/// The same source and settings make the same bytes. Shards appear complete or not at all, and the same command goes on with what an
/// interrupted one has left. Beside them are their index (forebay.index), their manifest, and the names of the classes (classes.json).
/// Exit status: 0 all samples are in the shards, 1 some are not, or it stopped, 2 wrong usage.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A folder with one directory per class, a manifest (.parquet, .csv, .jsonl), shards (tar, MDS, LitData, TFRecord, Arrow, Parquet:
    /// a file, a folder of them, or the directory of their index); or the URL of one
    #[arg(value_parser = storage::place)]
    source: PathBuf,
    /// The directory of the shards, which is created, or a URL: s3://, gs://, az://
    #[arg(short, long, value_name = "TARGET", value_parser = storage::place)]
    output: PathBuf,
    /// What the source is, if its name and content do not tell
    #[arg(long, value_name = "KIND")]
    kind: Option<KindArgument>,
    /// Samples have no labels; in a folder, files at any depth are samples
    #[arg(long)]
    no_labels: bool,
    /// Files with this ending are samples; can be repeated [default: images]
    #[arg(long = "extension", value_name = ".EXT")]
    extensions: Vec<String>,
    /// Where the files of a manifest are, if not where it says
    #[arg(long, value_name = "ROOT", value_parser = storage::place)]
    root: Option<PathBuf>,
    /// Of shards, the fields that are packed; as an alternative "jpg;png" is the first of these that a sample has [default: all]
    #[arg(long, value_name = "FIELD,...", value_delimiter = ',', value_parser = field_names)]
    fields: Vec<FieldNames>,
    /// What the names of the shards begin with [default: shard, or tokens with --tokenize]
    #[arg(long, value_name = "NAME")]
    prefix: Option<String>,
    /// The size of a shard, at most, of samples as they are in the source: 256MiB, 1GB [default: 256MiB, or no limit with
    /// --samples-per-shard; 1GiB of text with --tokenize]
    #[arg(long, value_name = "SIZE", value_parser = shard_size)]
    shard_size: Option<u64>,
    /// Samples of a shard, at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    samples_per_shard: Option<u64>,
    /// Put all samples in a random order, the same for the same number
    #[arg(long, value_name = "SEED")]
    shuffle: Option<u64>,
    /// Scale pictures down whose longer side is longer than this
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..))]
    max_side: Option<u32>,
    /// The format of pictures: those of another one are written again. Keep makes PNG of what is not JPEG, PNG or WebP when it
    /// is scaled
    #[arg(long, value_name = "FORMAT", default_value = "keep")]
    format: FormatArgument,
    /// The quality of JPEG and WebP that are written again, from 1 to 100 [default: 90]
    #[arg(long, value_name = "Q", value_parser = clap::value_parser!(u8).range(1..=100))]
    quality: Option<u8>,
    /// Do not decode pictures to see whether they are good
    #[arg(long)]
    no_check: bool,
    /// Leave the landmarks of JPEGs out of the index: crops are then decoded faster from the second epoch on, not from the first
    #[arg(long)]
    no_landmarks: bool,
    /// Write parity beside each shard, by which damage is repaired: 2% of its size
    #[arg(long, value_name = "PERCENT", value_parser = parity::fraction)]
    parity: Option<f64>,
    /// Do not read shards back
    #[arg(long)]
    no_verify: bool,
    /// Stop when more samples than this fail: a number, or a fraction like 0.01 or 1%
    #[arg(long, value_name = "LIMIT", value_parser = failure_limit)]
    max_failures: Option<FailureLimit>,
    /// Write down the samples that are left out in this file [default: forebay-ledger.jsonl beside the shards]
    #[arg(long, value_name = "FILE.jsonl")]
    ledger: Option<PathBuf>,
    /// Samples read and made at a time [default: 64 over a network, 16 on mounts, 4 on disks, or one per processor]
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
    #[command(flatten)]
    tokens: tokenize::TokenArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindArgument {
    Folder,
    Manifest,
    Shards,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormatArgument {
    Keep,
    Jpeg,
    Webp,
    Png,
}

/// The names that a field may have.
#[derive(Clone, Debug)]
struct FieldNames(Vec<String>);

fn field_names(text: &str) -> Result<FieldNames, String> {
    let names: Vec<_> = text.split(';').map(|name| name.trim().trim_start_matches('.').to_owned()).collect();
    match names.iter().any(String::is_empty) {
        true => Err(format!("expected names like \"jpg,cls\" or \"jpg;png\", got {text:?}")),
        false => Ok(FieldNames(names)),
    }
}

fn shard_size(text: &str) -> Result<u64, String> {
    quantity::bytes(text).ok_or_else(|| format!("expected bytes like 256MiB or 1GB, got {text:?}"))
}

fn failure_limit(text: &str) -> Result<FailureLimit, String> {
    let fraction = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse().ok().map(|percent: f64| percent / 100.0),
        None if text.contains('.') => text.parse().ok(),
        None => return text.parse().map(FailureLimit::Count).map_err(|_| expected_limit(text)),
    };
    match fraction {
        Some(fraction) if (0.0..=1.0).contains(&fraction) => Ok(FailureLimit::Fraction(fraction)),
        _ => Err(expected_limit(text)),
    }
}

fn expected_limit(text: &str) -> String {
    format!("expected a number like 100 or a fraction like 0.01 or 1%, got {text:?}")
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console<'_>) -> io::Result<Status> {
    if let Some(tokenizer) = &arguments.tokens.tokenize {
        return run_tokens(tokenizer, arguments, console);
    }
    let pack = match planned(arguments) {
        Ok(pack) => pack,
        Err(error) => return refuse(&error, arguments, console),
    };
    let mut progress = Progress::new(console.is_terminal && !arguments.json);
    let mut drawn = Ok(());
    let packed = pack.run(&mut |now| {
        // If progress cannot be drawn, packing continues; the error is reported at the end.
        let after = console.warnings().and_then(|()| draw(&mut progress, now, console.err));
        drawn = std::mem::replace(&mut drawn, Ok(())).and(after);
    });
    progress.clear(console.err)?;
    console.warnings()?;
    drawn?;
    match packed {
        Ok(packed) => report(arguments, &packed, console),
        Err(error) => refuse(&error, arguments, console),
    }
}

fn run_tokens(tokenizer: &Path, arguments: &Arguments, console: &mut Console<'_>) -> io::Result<Status> {
    let source_options = match storage::options_of(&arguments.source, &arguments.storage_option, "--storage-option") {
        Ok(options) => options,
        Err(error) => return refuse(&error, arguments, console),
    };
    let shared = tokenize::Shared {
        source: &arguments.source,
        source_options,
        output: &arguments.output,
        prefix: arguments.prefix.as_deref(),
        shard_bytes: arguments.shard_size,
        max_failures: arguments.max_failures,
        ledger: arguments.ledger.as_deref(),
        threads: arguments.threads.map(usize::from),
        is_json: arguments.json,
    };
    tokenize::run(tokenizer, &arguments.tokens, shared, console)
}

/// The settings of packing.
fn planned(arguments: &Arguments) -> forebay::Result<Pack> {
    let format = match arguments.format {
        FormatArgument::Keep => None,
        FormatArgument::Jpeg => Some(Coding::Jpeg),
        FormatArgument::Webp => Some(Coding::WebP),
        FormatArgument::Png => Some(Coding::Png),
    };
    let is_recoded = arguments.max_side.is_some() || format.is_some();
    if arguments.quality.is_some() && !is_recoded {
        let error = Error::config("--quality: expected --max-side or --format as well, got none of them");
        return Err(error.with_hint("pictures are written again only where their size or format has to change"));
    }
    let quality = arguments.quality.unwrap_or(90);
    let kind = arguments.kind.map(|kind| match kind {
        KindArgument::Folder => SourceKind::Folder,
        KindArgument::Manifest => SourceKind::Manifest,
        KindArgument::Shards => SourceKind::Shards,
    });
    let dotted = |ending: &String| format!(".{}", ending.trim_start_matches('.').to_lowercase());
    let extensions: Vec<_> = arguments.extensions.iter().map(dotted).collect();
    let fields: Vec<_> = arguments.fields.iter().map(|FieldNames(names)| names.clone()).collect();
    let default = Pack::new(&arguments.source, &arguments.output);
    // The root of a manifest may be a URL where the manifest is none.
    let options_for = arguments.root.as_ref().filter(|root| forebay::is_url(root)).unwrap_or(&arguments.source);
    Ok(Pack {
        source: Source {
            options: storage::options_of(options_for, &arguments.storage_option, "--storage-option")?,
            kind,
            has_labels: !arguments.no_labels,
            extensions: (!extensions.is_empty()).then_some(extensions),
            root: arguments.root.clone(),
            fields: (!fields.is_empty()).then_some(fields),
            ..default.source
        },
        target_options: storage::options_of(&arguments.output, &arguments.target_option, "--target-option")?,
        prefix: arguments.prefix.clone().unwrap_or(default.prefix),
        shard_bytes: arguments.shard_size.or(default.shard_bytes.filter(|_| arguments.samples_per_shard.is_none())),
        samples_per_shard: arguments.samples_per_shard,
        shuffle: arguments.shuffle,
        checks: !arguments.no_check,
        recoding: is_recoded.then_some(Recoding { max_side: arguments.max_side, format, quality }),
        landmarks: !arguments.no_landmarks,
        parity: arguments.parity,
        verifies: !arguments.no_verify,
        max_failures: arguments.max_failures,
        ledger: arguments.ledger.clone(),
        threads: arguments.threads.map(usize::from),
        ..default
    })
}

/// Prints the error of a run that did not begin.
fn refuse(error: &Error, arguments: &Arguments, console: &mut Console<'_>) -> io::Result<Status> {
    console.error_with_hint(error, &hint_of(error, arguments))?;
    Ok(if error.kind() == Kind::Config { Status::Usage } else { Status::Problems })
}

/// The hint of an error, with the option of the store that it is about.
fn hint_of(error: &Error, arguments: &Arguments) -> String {
    let is_targets = storage::is_below(error, &arguments.output);
    error.hint_in(if is_targets { target_argument } else { argument })
}

fn draw(progress: &mut Progress, now: &Packing, to: &mut dyn io::Write) -> io::Result<()> {
    let failed = if now.failed > 0 { format!("  {} failed", now.failed) } else { String::new() };
    match now.doing {
        Doing::Listing => progress.say(to, &format!("listing  {} samples", now.samples)),
        Doing::Examining => progress.draw(to, "examining", (now.samples, now.all_samples), "samples"),
        Doing::Packing => {
            let rate = size((now.bytes as f64 / progress.elapsed().as_secs_f64().max(1e-3)) as u64);
            let rest = format!("samples  {} of {}  {rate}/s{failed}", size(now.bytes), size(now.all_bytes));
            progress.draw(to, "packing", (now.samples, now.all_samples), &rest)
        }
    }
}

fn report(arguments: &Arguments, done: &Packed, console: &mut Console<'_>) -> io::Result<Status> {
    let status = if done.is_complete() { Status::Fine } else { Status::Problems };
    if arguments.json {
        writeln!(console.out, "{}", as_json(arguments, done))?;
        return Ok(status);
    }
    let Packed { packed, samples, kept_shards, .. } = done;
    let bytes = done.shards.iter().map(|(_, bytes, _)| bytes).sum();
    let (shards, seconds) = (counted(done.shards.len() as u64, "shard"), done.elapsed.as_secs_f64());
    let kept = if *kept_shards > 0 {
        format!("; {kept_shards} of these {} there already", if *kept_shards == 1 { "was" } else { "were" })
    } else {
        String::new()
    };
    let output = arguments.output.display().to_string();
    let output = output.split('?').next().unwrap_or_default();
    writeln!(console.out, "{packed} of {samples} samples in {shards} in {output}, {}{kept}", size(bytes))?;
    if !done.classes.is_empty() {
        writeln!(console.out, "{} classes, named in classes.json", done.classes.len())?;
    }
    let saved = &done.saved;
    if saved.pictures > 0 {
        let each = |seconds: f64| seconds * 1e3 / saved.pictures as f64;
        let (before, after) = (each(saved.decode_seconds_before), each(saved.decode_seconds_after));
        writeln!(
            console.out,
            "{} pictures written again: {} became {}, and {before:.2} ms to decode one became {after:.2} ms",
            saved.pictures,
            size(saved.bytes_before),
            size(saved.bytes_after),
        )?;
    }
    for note in done.notes.iter().take(SHOWN) {
        writeln!(console.out, "note: {note}")?;
    }
    if done.notes.len() > SHOWN {
        writeln!(console.out, "and {} more notes (--json has them all)", done.notes.len() - SHOWN)?;
    }
    failures(done, console)?;
    writeln!(console.out, "done in {seconds:.1} s")?;
    if let Some(error) = &done.halted {
        writeln!(console.err, "error: stopped: {error}\nhint: {}", hint_of(error, arguments))?;
        writeln!(console.err, "all finished shards are complete; run the same command to resume")?;
    }
    Ok(status)
}

fn failures(done: &Packed, console: &mut Console<'_>) -> io::Result<()> {
    let Some(ledger) = &done.ledger else { return Ok(()) };
    let count = done.failed.max(done.failures.len() as u64);
    let samples = if count == 1 { "sample is" } else { "samples are" };
    writeln!(console.out, "{count} {samples} not in the shards, and named in {}", ledger.display())?;
    for failure in done.failures.iter().take(SHOWN) {
        writeln!(console.out, "  {:<12} {}", failure.code, failure.message)?;
    }
    Ok(())
}

fn as_json(arguments: &Arguments, done: &Packed) -> serde_json::Value {
    let plain = |path: &Path| path.to_string_lossy().split('?').next().map(str::to_owned);
    let shard = |(name, bytes, samples): &(String, u64, u64)| json!({"name": name, "bytes": bytes, "samples": samples});
    let stopped = |error: &Error| {
        json!({
            "path": error.path().map(|path| path.to_string_lossy()), "code": error.kind().slug(),
            "message": error.to_string(), "errno": error.errno(), "hint": hint_of(error, arguments),
        })
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "source": plain(&arguments.source),
        "target": plain(&arguments.output),
        "samples": done.samples, "packed": done.packed, "failed": done.failed,
        "shards": done.shards.iter().map(shard).collect::<Vec<_>>(),
        "kept_shards": done.kept_shards,
        "classes": done.classes.iter().map(|(name, label)| (name.clone(), (*label).into())).collect::<serde_json::Map<_, _>>(),
        "pictures": {
            "written_again": done.saved.pictures,
            "bytes_before": done.saved.bytes_before, "bytes_after": done.saved.bytes_after,
            "decode_seconds_before": done.saved.decode_seconds_before,
            "decode_seconds_after": done.saved.decode_seconds_after,
        },
        "failures": done.failures,
        "ledger": done.ledger.as_ref().map(|path| path.to_string_lossy()),
        "notes": done.notes,
        "stopped": done.halted.as_ref().map(stopped),
        "seconds": done.elapsed.as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_or_fractions() {
        for (text, expected) in [
            ("0", FailureLimit::Count(0)),
            ("100", FailureLimit::Count(100)),
            ("0.01", FailureLimit::Fraction(0.01)),
            ("5%", FailureLimit::Fraction(0.05)),
            ("1.0", FailureLimit::Fraction(1.0)),
        ] {
            assert_eq!(failure_limit(text), Ok(expected), "{text}");
        }
        for text in ["", "-1", "2.0", "101%", "few", "%"] {
            assert!(failure_limit(text).is_err(), "{text}");
        }
    }
}
