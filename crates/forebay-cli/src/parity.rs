//! `forebay parity`: makes parity beside archives, compares archives with it, and repairs them by it.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use forebay::{Error, Kind, ParityCheck, ParityMade, Result, check_parity, make_parity, repair_by_parity};
use serde_json::{Value, json};

use crate::console::{Console, Status, size};
use crate::hint;
use crate::progress::Progress;
use crate::storage::StorageArguments;

/// Byte ranges that are shown of an archive; `--json` has all.
const SHOWN: usize = 20;

/// Make parity beside archives, by which damage is repaired; check archives, or repair them
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Files. Their parity is FILE.parity; with --check, URLs as well
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// How much parity to make, of the size of a file: about so much damage can be repaired
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = fraction)]
    fraction: f64,
    /// Compare files with their parity, and say which bytes are damaged
    #[arg(long, conflicts_with = "fraction")]
    check: bool,
    /// Put files that are damaged back as they were
    #[arg(long, conflicts_with_all = ["fraction", "check"])]
    repair: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    storage: StorageArguments,
}

/// `2%`, or `0.02`.
pub(crate) fn fraction(text: &str) -> std::result::Result<f64, String> {
    let parsed = match text.trim().strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.trim().parse(),
    };
    let wrong = || "expected a share above 0 and up to 100 %, as in 2% or 0.02".to_owned();
    parsed.ok().filter(|fraction| *fraction > 0.0 && *fraction <= 1.0).ok_or_else(wrong)
}

/// What became of a file.
struct Outcome {
    status: Status,
    text: String,
    json: Value,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console<'_>) -> io::Result<Status> {
    let (mut status, mut rows) = (Status::Fine, Vec::new());
    // A shell's `train-*` has what is beside the archives as well.
    for file in arguments.files.iter().filter(|file| file.extension() != Some(OsStr::new("parity"))) {
        let mut progress = Progress::new(console.is_terminal && !arguments.json);
        let mut drawn = Ok(());
        let done = handle(arguments, file, &mut |done, total| {
            drawn = progress.draw(console.err, &file.display().to_string(), (done, total), "groups");
        });
        drawn.and_then(|()| progress.clear(console.err))?;
        let Outcome { status: own, text, json } = match done {
            Ok(outcome) => outcome,
            Err(error) => {
                if !arguments.json {
                    console.error(&error)?;
                }
                let status = if error.kind() == Kind::Config { Status::Usage } else { Status::Problems };
                let json = json!({
                    "path": file, "error": error.to_string(), "code": error.kind().slug(),
                    "hint": error.hint_in(hint::argument),
                });
                Outcome { status, text: String::new(), json }
            }
        };
        if status as u8 <= own as u8 {
            status = own;
        }
        rows.push(json);
        if !arguments.json {
            write!(console.out, "{text}")?;
        }
    }
    if arguments.json {
        writeln!(console.out, "{}", json!({ "files": rows }))?;
    }
    Ok(status)
}

fn handle(arguments: &Arguments, file: &Path, watch: &mut dyn FnMut(u64, u64)) -> Result<Outcome> {
    let (store, path) = arguments.storage.open(file)?;
    if arguments.repair {
        repair_by_parity(&store, &path, watch).map(|check| repaired(&path, &check))
    } else if arguments.check {
        check_parity(&store, &path, watch).map(|check| checked(&path, &check))
    } else {
        make_parity(&store, &path, arguments.fraction, watch).map(|made| of_made(&path, &made))
    }
    .map_err(|error: Error| error.at_path(&path))
}

fn of_made(path: &Path, made: &ParityMade) -> Outcome {
    let ParityMade { sidecar, file_bytes, sidecar_bytes, group_blocks, parity_blocks } = made;
    let text = format!(
        "{}: {} for {}; {parity_blocks} of {group_blocks} blocks of a group may be lost\n",
        sidecar.display(),
        size(*sidecar_bytes),
        size(*file_bytes),
    );
    let json = json!({
        "path": path, "parity": sidecar, "bytes": file_bytes, "parity_bytes": sidecar_bytes,
        "group_blocks": group_blocks, "parity_blocks": parity_blocks,
    });
    Outcome { status: Status::Fine, text, json }
}

fn checked(path: &Path, check: &ParityCheck) -> Outcome {
    let is_fine = check.is_whole() && check.damaged_parity == 0;
    let hint = match (check.is_whole(), check.is_repairable()) {
        (true, _) => "hint: the archive is whole: make its parity again with `forebay parity`\n",
        (_, true) => "hint: `forebay parity --repair` puts it back as it was\n",
        (_, false) => {
            "hint: restore it from its source; if it was changed on purpose, make its parity again with `forebay parity`\n"
        }
    };
    let text = format!("{}{}", described(path, check), if is_fine { "" } else { hint });
    Outcome { status: if is_fine { Status::Fine } else { Status::Problems }, text, json: row(path, check, false) }
}

fn repaired(path: &Path, check: &ParityCheck) -> Outcome {
    if check.is_whole() || !check.is_repairable() {
        return checked(path, check);
    }
    let text = format!("{}{}: repaired\n", described(path, check), path.display());
    Outcome { status: Status::Fine, text, json: row(path, check, true) }
}

fn described(path: &Path, check: &ParityCheck) -> String {
    let name = path.display();
    let mut text = String::new();
    if check.is_whole() {
        text += &format!("{name}: whole\n");
    }
    if check.file_bytes != check.expected_bytes {
        text += &format!("{name}: expected {} bytes, got {}\n", check.expected_bytes, check.file_bytes);
    }
    if check.damaged_blocks > 0 {
        let ParityCheck { damaged_blocks, lost_blocks, .. } = check;
        let can = match lost_blocks {
            0 => "all of them can be repaired".to_owned(),
            lost => format!("{lost} of them cannot be repaired"),
        };
        let shown: Vec<_> = check.damaged.iter().take(SHOWN).map(|range| format!("{range:?}")).collect();
        let more = if check.damaged.len() > SHOWN { ", …" } else { "" };
        text += &format!("{name}: {damaged_blocks} blocks are damaged, {can}: bytes {}{more}\n", shown.join(", "));
    }
    if check.damaged_parity > 0 {
        text += &format!("{name}.parity: {} pieces are damaged\n", check.damaged_parity);
    }
    text
}

fn row(path: &Path, check: &ParityCheck, is_repaired: bool) -> Value {
    let damaged: Vec<_> = check.damaged.iter().map(|range| [range.start, range.end]).collect();
    json!({
        "path": path, "whole": check.is_whole(), "repairable": check.is_repairable(), "repaired": is_repaired,
        "expected_bytes": check.expected_bytes, "bytes": check.file_bytes, "damaged": damaged,
        "damaged_blocks": check.damaged_blocks, "moved_blocks": check.moved_blocks, "lost_blocks": check.lost_blocks,
        "damaged_parity": check.damaged_parity,
    })
}

#[cfg(test)]
mod tests {
    use super::fraction;

    #[test]
    fn shares_are_percentages_or_fractions() {
        assert_eq!((fraction("2%"), fraction("0.5 %"), fraction("0.02")), (Ok(0.02), Ok(0.005), Ok(0.02)));
        for wrong in ["0", "-1%", "101%", "nan", "two", "", "%"] {
            assert!(fraction(wrong).unwrap_err().contains("above 0 and up to 100 %"), "{wrong:?}");
        }
    }
}
