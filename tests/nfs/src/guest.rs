//! Inside the kernel: every trouble on every mount, judged, one JSON line each.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use forebay::Outcome;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::engine::Engine;
use crate::epoch::Settings;
use crate::judge::{Reference, judge};
use crate::machine::{EXPORT, PICTURES, Pictures, Server};
use crate::trial::{self, Seen, TROUBLES, Trouble, WAYS, Way};

/// The file of the rows, in the folder that the host sees.
pub(crate) const ROWS: &str = "rows.jsonl";
/// Which trials are wanted: a part of their names, or nothing for all.
pub(crate) const ONLY: &str = "only";
/// Written when every trial was made.
pub(crate) const DONE: &str = "done";

/// One line of the summary.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) mount: String,
    pub(crate) trouble: String,
    /// Of all epochs together; `None` where the loader was killed and could not tell.
    pub(crate) books: Option<forebay::Books>,
    pub(crate) recovered: u64,
    /// What failed and was replaced, by code.
    pub(crate) codes: BTreeMap<String, u64>,
    pub(crate) seconds: Option<f64>,
    pub(crate) longest_wait_seconds: Option<f64>,
    pub(crate) written_off: u64,
    /// From the last word, or the signal, to the end of the process and of its readers.
    pub(crate) exit_seconds: Option<f64>,
    pub(crate) problems: Vec<String>,
}

pub(crate) fn run(out: &Path) -> Result<()> {
    let mut rows = OpenOptions::new().create(true).append(true).open(out.join(ROWS))?;
    let server = Server::start()?;
    let pictures = Pictures::write()?;
    let reference = reference()?;
    let only = std::fs::read_to_string(out.join(ONLY))?;
    for way in WAYS {
        for trouble in TROUBLES {
            if !name(way, trouble).contains(&only) {
                continue;
            }
            let row = match trial::run(way, trouble, &server, &pictures) {
                Ok(seen) => row(way, trouble, &seen, &reference, &pictures),
                Err(error) => Row { problems: vec![error.to_string()], ..Row::new(way, trouble) },
            };
            // Through to the host, who watches.
            writeln!(rows, "{}", serde_json::to_string(&row)?)?;
            rows.sync_all()?;
        }
    }
    File::create(out.join(DONE))?.sync_all()?;
    Ok(())
}

fn name(way: Way, trouble: Trouble) -> String {
    format!("{}: {}", way.name, trouble.name())
}

/// One epoch on the server's own folder, read without NFS.
fn reference() -> Result<Reference> {
    let settings = Settings { epochs: 1, hold_step: None, tells_samples: true, ..Trouble::Nothing.settings() };
    let engine = Engine::start(Path::new(EXPORT), &settings)?;
    let ended = engine.wait_until_ended()?;
    engine.wait_until_gone()?;
    let is_whole = ended.error.is_none()
        && ended.failures.is_empty()
        && ended.samples.len() == PICTURES
        && !ended.samples.contains(&0);
    if !is_whole {
        return Err(format!("the pictures cannot be loaded without NFS: {ended:?}").into());
    }
    Ok(Reference { samples: ended.samples })
}

impl Row {
    fn new(way: Way, trouble: Trouble) -> Self {
        Self {
            mount: way.name.to_owned(),
            trouble: trouble.name().to_owned(),
            books: None,
            recovered: 0,
            codes: BTreeMap::new(),
            seconds: None,
            longest_wait_seconds: None,
            written_off: 0,
            exit_seconds: None,
            problems: Vec::new(),
        }
    }
}

fn row(way: Way, trouble: Trouble, seen: &Seen, reference: &Reference, pictures: &Pictures) -> Row {
    let mut problems = judge(trouble, way.is_soft, seen, reference);
    let mut row = Row::new(way, trouble);
    if let (Some(process), Some(readers)) = (seen.gone.process, seen.gone.readers) {
        row.exit_seconds = Some(process.max(readers).as_secs_f64());
    }
    if let Some(ended) = &seen.ended {
        let mut books = forebay::Books::default();
        ended.epochs.iter().for_each(|told| books.add(told.books));
        row.books = Some(books);
        row.seconds = Some(ended.seconds);
        row.longest_wait_seconds = Some(ended.longest_wait_seconds);
        row.written_off = ended.readers.map_or(0, |readers| readers.written_off);
        for failure in &ended.failures {
            if !pictures.path(failure.index).is_some_and(|path| failure.path().ends_with(path)) {
                problems.push(format!("{:?} is not the file of sample {}", failure.path, failure.index));
            }
            match failure.outcome {
                Outcome::Recovered => row.recovered += 1,
                _ => *row.codes.entry(failure.code.clone()).or_default() += 1,
            }
        }
    }
    row.problems = problems;
    row
}
