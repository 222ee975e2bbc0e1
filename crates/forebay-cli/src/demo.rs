//! `forebay demo`: the loader on data of its own. Writes a folder with damaged files, loads it through the real engine,
//! prints the report, and checks that all the damage was found and nothing else.

mod plant;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::{
    Books, Config, Epoch, Error, Failure, Interpolation, Loader, Local, Next, OnError, Op, Pipeline, Result, Source,
    Store, machine,
};
use serde_json::json;

use crate::console::{Console, Status};
use crate::hint::argument;
use crate::progress::Progress;
use plant::{FILES, Planted};

/// Edge of the pictures after cropping, as in most training.
const EDGE: u32 = 224;
const BATCH_SIZE: u64 = 32;
/// How long to wait for a batch before the progress line is updated.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Load a small image folder with damaged files in it, and see what forebay says about them.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Write the images here and keep them [default: a temporary folder, removed at the end]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// How many times to load the whole folder
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1000))]
    epochs: u64,
    /// Keep the temporary folder
    #[arg(long)]
    keep: bool,
}

/// The results of the demo.
struct Outcome {
    planted: Planted,
    loader: Loader,
    images: u64,
    elapsed: Duration,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console<'_>) -> io::Result<Status> {
    if let Some(folder) = &arguments.folder
        && let Ok(listing) = Local.list(folder)
        && !listing.is_empty()
    {
        let entries = listing.len();
        writeln!(
            console.err,
            "error: --folder: expected a new or empty folder, got {folder:?} with {entries} entries"
        )?;
        return Ok(Status::Usage);
    }
    // Lives until the end of the command: dropping it removes the folder, also after an error.
    let mut temporary = None;
    let folder = match &arguments.folder {
        Some(folder) => folder.clone(),
        None => match tempfile::Builder::new().prefix("forebay-demo-").tempdir() {
            Ok(made) => temporary.insert(made).path().to_owned(),
            Err(error) => {
                console.error(&Error::io("given a folder in it", error).at_path(&std::env::temp_dir()))?;
                return Ok(Status::Problems);
            }
        },
    };
    if let Some(temporary) = temporary.as_mut().filter(|_| arguments.keep) {
        temporary.disable_cleanup(true);
    }
    let is_kept = arguments.keep || arguments.folder.is_some();
    match load(arguments, &folder, console)? {
        Ok(seen) => report(arguments, &seen, &folder, is_kept, console),
        Err(error) => {
            console.error(&error)?;
            Ok(Status::Problems)
        }
    }
}

/// Writes the folder and loads it. The outer error is the console's, the inner one the engine's.
fn load(arguments: &Arguments, folder: &Path, console: &mut Console<'_>) -> io::Result<Result<Outcome>> {
    let (planted, loader) = match prepare(folder) {
        Ok(prepared) => prepared,
        Err(error) => return Ok(Err(error)),
    };
    if !arguments.json {
        let (classes, damaged, threads) = (Planted::classes(), planted.damaged.len(), loader.config().cpu_threads);
        writeln!(console.out, "{FILES} images of {classes} classes in {}", folder.display())?;
        writeln!(console.out, "{damaged} of them damaged on purpose, CPU threads: {threads}, on_error=\"replace\"\n")?;
        console.out.flush()?;
    }
    let mut progress = Progress::new(console.is_terminal && !arguments.json);
    let mut images = 0;
    for number in 0..arguments.epochs {
        let mut run = match loader.epoch() {
            Ok(run) => run,
            Err(error) => return Ok(Err(error)),
        };
        let before = images;
        loop {
            match run.poll(POLL_INTERVAL) {
                Ok(Next::Batch(batch)) => images += batch.len() as u64,
                Ok(Next::Pending) => {}
                Ok(Next::End) => break,
                Err(error) => {
                    progress.clear(console.err)?;
                    return Ok(Err(error));
                }
            }
            let failed: u64 = loader.books().iter().map(|(_, books)| books.failed()).sum();
            let rate = images as f64 / progress.elapsed().as_secs_f64();
            let rest = format!("{rate:.0} images/s  {failed} failed");
            progress.draw(console.err, &format!("epoch {number}"), (images - before, FILES), &rest)?;
        }
    }
    let elapsed = progress.elapsed();
    progress.clear(console.err)?;
    Ok(Ok(Outcome { planted, loader, images, elapsed }))
}

fn prepare(folder: &Path) -> Result<(Planted, Loader)> {
    let planted = Planted::new(folder)?;
    let source = Source::image_folder(folder, pipeline()?)?;
    planted.delete()?;
    let config = Config {
        batch_size: BATCH_SIZE,
        shuffle: true,
        on_error: OnError::Replace,
        cpu_threads: machine::available_cpus(),
        memory_budget: machine::available_memory_bytes() / 4,
        wording: argument,
        ..Config::default()
    };
    Ok((planted, Loader::new(source, config)?))
}

fn pipeline() -> Result<Pipeline> {
    Pipeline::new(vec![
        Op::RandomResizedCrop {
            size: EDGE.into(),
            scale: (0.08, 1.0),
            ratio: (3.0 / 4.0, 4.0 / 3.0),
            interpolation: Interpolation::Bilinear,
            antialias: true,
        },
        Op::RandomHorizontalFlip { p: 0.5 },
        Op::ToTensor,
        Op::Normalize { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] },
    ])
}

fn report(
    arguments: &Arguments,
    seen: &Outcome,
    folder: &Path,
    is_kept: bool,
    console: &mut Console<'_>,
) -> io::Result<Status> {
    let Outcome { planted, loader, images, elapsed } = seen;
    let problems = check(arguments.epochs, &planted.damaged, &loader.failures(), &loader.books(), folder);
    let rate = *images as f64 / elapsed.as_secs_f64();
    let verdict = loader.stats().verdict.name();
    if arguments.json {
        let damaged = |(path, damage): &(&str, plant::Damage)| json!({"path": path, "damage": damage.name(), "code": damage.kind().slug()});
        let books = |(epoch, books): &(Epoch, Books)| {
            let Books { planned, delivered, replaced, skipped, padded } = books;
            json!({
                "epoch": epoch, "planned": planned, "delivered": delivered, "replaced": replaced, "skipped": skipped,
                "padded": padded,
            })
        };
        let object = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "folder": folder.to_string_lossy(),
            "is_kept": is_kept,
            "planted": planted.damaged.iter().map(damaged).collect::<Vec<_>>(),
            "reads_everything": planted.reads_everything,
            "epochs": loader.books().iter().map(books).collect::<Vec<_>>(),
            "failures": loader.failures(),
            "images": images,
            "seconds": elapsed.as_secs_f64(),
            "images_per_second": rate,
            "verdict": verdict,
            "problems": problems,
        });
        writeln!(console.out, "{object:#}")?;
    } else {
        // Paths relative to the folder, which the first line names, are easier to read.
        let text = loader.report().to_string().replace(&format!("{}/", folder.display()), "");
        write!(console.out, "{text}")?;
        if planted.reads_everything {
            writeln!(console.out, "no unreadable file was planted: this user (root?) may read every file")?;
        }
        writeln!(console.out, "{images} images in {:.2} s: {rate:.0} images/s, {verdict}", elapsed.as_secs_f64())?;
        if problems.is_empty() {
            writeln!(console.out, "every damaged file was found and named, and no batch was lost")?;
        }
        if is_kept {
            writeln!(console.out, "the images are still in {}", folder.display())?;
        }
    }
    for problem in &problems {
        writeln!(console.err, "problem: {problem}")?;
    }
    Ok(if problems.is_empty() { Status::Fine } else { Status::Problems })
}

/// Checks that exactly the damaged files failed, each with its own code, in every epoch, and that nothing is missing.
fn check(
    epochs: u64,
    damaged: &[(&str, plant::Damage)],
    failures: &[Failure],
    books: &[(Epoch, Books)],
    folder: &Path,
) -> Vec<String> {
    let mut problems = Vec::new();
    let balanced = |books: &Books| {
        let failed = damaged.len() as u64;
        (books.planned, books.delivered, books.replaced, books.skipped) == (FILES, FILES - failed, failed, 0)
    };
    if books.len() as u64 != epochs {
        problems.push(format!("expected the books of {epochs} epochs, got {}", books.len()));
    }
    for (epoch, books) in books.iter().filter(|(_, books)| !balanced(books)) {
        problems.push(format!("epoch {epoch}: expected {} replaced of {FILES} planned, got {books}", damaged.len()));
    }
    let mut expected: BTreeMap<PathBuf, (String, u64)> =
        damaged.iter().map(|(path, damage)| (folder.join(path), (damage.kind().slug().to_owned(), epochs))).collect();
    for failure in failures {
        match expected.get_mut(&failure.path()) {
            Some((code, left)) if *code == failure.code && *left > 0 => *left -= 1,
            _ => problems.push(format!("not expected: {} ({})", failure.message, failure.code)),
        }
    }
    for (path, (code, left)) in expected.iter().filter(|(_, (_, left))| *left > 0) {
        problems.push(format!("{path:?}: expected to fail as {code} in each of {epochs} epochs, missed {left}"));
    }
    problems
}
