//! `forebay pack CORPUS -o TARGET --tokenize tokenizer.json`: files of tokens, of text.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use forebay::{FailureLimit, Kind, StorageOptions};
use forebay_tokenize::{Documents, HuggingFace, Progress as Tokenizing, Shard, Tokenize, Tokenized};
use serde_json::json;

use crate::console::{Console, Status, counted};
use crate::hint::argument;
use crate::progress::Progress;

/// What is said of tokens alone.
#[derive(Debug, clap::Args)]
pub(crate) struct TokenArguments {
    /// Make tokens of text instead, with this tokenizer.json: Megatron's .bin and .idx. SOURCE is then a folder, a file or a URL
    /// of JSON lines or text, compressed or not
    #[arg(
        long,
        value_name = "TOKENIZER.json",
        help_heading = "Tokens",
        conflicts_with_all = [
            "kind", "no_labels", "extensions", "root", "fields", "samples_per_shard", "shuffle", "max_side", "format", "quality",
            "no_check", "no_landmarks", "parity", "no_verify", "target_option",
        ]
    )]
    pub(crate) tokenize: Option<PathBuf>,
    /// What a document is: the text in a field of each line of JSON, each line of text, or each file of text [default: jsonl]
    #[arg(long, value_name = "WHAT", requires = "tokenize", help_heading = "Tokens")]
    documents: Option<DocumentsArgument>,
    /// The field of JSON lines that has the text
    #[arg(long, value_name = "NAME", requires = "tokenize", default_value = "text", help_heading = "Tokens")]
    field: String,
    /// Put this token behind each document: <|endoftext|>
    #[arg(long, value_name = "TOKEN", requires = "tokenize", help_heading = "Tokens")]
    append: Option<String>,
    /// Let the tokenizer put its own tokens around each document
    #[arg(long, requires = "tokenize", help_heading = "Tokens")]
    special_tokens: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DocumentsArgument {
    Jsonl,
    Lines,
    Files,
}

/// What packing says as well.
pub(crate) struct Shared<'a> {
    pub(crate) source: &'a Path,
    pub(crate) source_options: StorageOptions,
    pub(crate) output: &'a Path,
    pub(crate) prefix: Option<&'a str>,
    pub(crate) shard_bytes: Option<u64>,
    pub(crate) max_failures: Option<FailureLimit>,
    pub(crate) ledger: Option<&'a Path>,
    pub(crate) threads: Option<usize>,
    pub(crate) is_json: bool,
}

pub(crate) fn run(
    tokenizer: &Path,
    arguments: &TokenArguments,
    shared: Shared<'_>,
    console: &mut Console<'_>,
) -> io::Result<Status> {
    let mut progress = Progress::new(console.is_terminal && !shared.is_json);
    let mut drawn = Ok(());
    let ledger = shared.ledger.map_or_else(|| shared.output.join("forebay-ledger.jsonl"), Path::to_owned);
    let planned = planned(arguments, &shared, &ledger);
    let done = planned.and_then(|tokenize| {
        let tokenizer = Arc::new(HuggingFace::open(tokenizer)?);
        tokenize.run(tokenizer, &mut |now| {
            // If progress cannot be drawn, the work continues; the error is reported at the end.
            let after = draw(&mut progress, now, console.err);
            drawn = std::mem::replace(&mut drawn, Ok(())).and(after);
        })
    });
    progress.clear(console.err)?;
    console.warnings()?;
    drawn?;
    match done {
        Ok(done) => report(&shared, &ledger, &done, console),
        Err(error) => {
            console.error(&error)?;
            Ok(if error.kind() == Kind::Config { Status::Usage } else { Status::Problems })
        }
    }
}

fn planned(arguments: &TokenArguments, shared: &Shared<'_>, ledger: &Path) -> forebay::Result<Tokenize> {
    let documents = match arguments.documents {
        Some(DocumentsArgument::Jsonl) => Documents::JsonLines { field: arguments.field.clone() },
        Some(DocumentsArgument::Lines) => Documents::Lines,
        Some(DocumentsArgument::Files) => Documents::Files,
        None => Documents::of_name(shared.source, &arguments.field)?,
    };
    let default = Tokenize::new(shared.source, documents, shared.output);
    Ok(Tokenize {
        source_options: shared.source_options.clone(),
        prefix: shared.prefix.map_or(default.prefix, str::to_owned),
        end_of_document: arguments.append.clone(),
        with_special: arguments.special_tokens,
        shard_bytes: shared.shard_bytes.unwrap_or(default.shard_bytes),
        max_failures: shared.max_failures,
        ledger: Some(ledger.to_owned()),
        threads: shared.threads,
        wording: argument,
        ..default
    })
}

fn draw(progress: &mut Progress, now: &Tokenizing, to: &mut dyn io::Write) -> io::Result<()> {
    let failed = if now.failed > 0 { format!("  {} failed", now.failed) } else { String::new() };
    let rate = now.tokens as f64 / 1e6 / progress.elapsed().as_secs_f64().max(1e-3);
    let rest = format!("documents  {} tokens  {rate:.1} million/s{failed}", now.tokens);
    progress.draw(to, "tokenizing", (now.done, now.total), &rest)
}

fn report(shared: &Shared<'_>, ledger: &Path, done: &Tokenized, console: &mut Console<'_>) -> io::Result<Status> {
    let Shard { documents, tokens, empty, failed } = done.sum;
    let status = if failed == 0 { Status::Fine } else { Status::Problems };
    let (count, dtype, seconds) = (done.shards.len(), done.element.name(), done.elapsed.as_secs_f64());
    if shared.is_json {
        let shard = |(stem, shard): &(PathBuf, Shard)| json!({"name": stem.file_name().map(|name| name.to_string_lossy()), "documents": shard.documents, "tokens": shard.tokens});
        let object = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "target": shared.output.to_string_lossy(),
            "documents": documents, "tokens": tokens, "empty": empty, "failed": failed, "dtype": dtype,
            "shards": done.shards.iter().map(shard).collect::<Vec<_>>(),
            "kept_shards": done.earlier_shards,
            "ledger": (failed > 0).then(|| ledger.to_string_lossy()),
            "seconds": seconds,
        });
        writeln!(console.out, "{object}")?;
        return Ok(status);
    }
    let kept = match done.earlier_shards {
        0 => String::new(),
        1 => "; 1 of these was there already".to_owned(),
        kept => format!("; {kept} of these were there already"),
    };
    let output = shared.output.display();
    let (documents, shards) = (counted(documents, "document"), counted(count as u64, "shard"));
    writeln!(console.out, "{tokens} tokens ({dtype}) of {documents} in {shards} in {output}{kept}")?;
    if empty > 0 {
        let documents = if empty == 1 { "document without a token is" } else { "documents without a token are" };
        writeln!(console.out, "{empty} {documents} left out")?;
    }
    if failed > 0 {
        let documents = if failed == 1 { "document is" } else { "documents are" };
        writeln!(console.out, "{failed} {documents} not in the shards, and named in {}", ledger.display())?;
    }
    writeln!(console.out, "done in {seconds:.1} s")?;
    Ok(status)
}
