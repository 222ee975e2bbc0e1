//! On the host: starts the kernel, shows what comes, and writes the summary. Leaves nothing running and nothing mounted.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::Result;
use crate::guest::{DONE, ONLY, ROWS, Row};
use crate::summary;
use crate::trial::{TROUBLES, WAYS};

const KERNEL: &str = "linux.uml";
/// For all trials together; they take about ten minutes.
const LIMIT_SECONDS: &str = "1500";
/// Set to a part of trials' names (`v3 soft: server`), it makes only those, and writes no summary.
const ONLY_VARIABLE: &str = "NFSTEST_ONLY";
const GLANCE: Duration = Duration::from_millis(200);

fn say(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}")?;
    Ok(std::io::stdout().flush()?)
}

/// Whether every promise was kept. Where the kernel does not run at all, that is said, and nothing was broken.
pub(crate) fn run(summary: &Path, shim: &Path) -> Result<bool> {
    let out = std::env::current_dir()?.join(shim).with_file_name("out");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    fs::create_dir_all(&out)?;
    let only = std::env::var(ONLY_VARIABLE).unwrap_or_default();
    fs::write(out.join(ONLY), &only)?;
    let kernel = match start(&out, shim) {
        Ok(kernel) => kernel,
        Err(error) => {
            say(&format!("skipped: test-nfs: {KERNEL} cannot be started here: {error}"))?;
            return Ok(true);
        }
    };
    let rows = watch(kernel, &out);
    end_leftovers(&out)?;
    let rows = rows?;
    if !out.join("booted").exists() {
        let console = out.join("console");
        let said = String::from_utf8_lossy(&fs::read(&console)?).into_owned();
        let find = |word: &str| said.lines().find(|line| line.contains(word));
        let reason = find("ptrace").or_else(|| find("panic")).or(said.lines().last()).unwrap_or("it said nothing");
        let (reason, console) = (reason.trim(), console.display());
        say(&format!("skipped: test-nfs: User-Mode Linux does not boot here: {reason} (see {console})"))?;
        return Ok(true);
    }
    if !out.join(DONE).exists() {
        let log = fs::read_to_string(out.join("log")).unwrap_or_default();
        return Err(format!("the kernel ended before the last trial ({} rows); its log:\n{log}", rows.len()).into());
    }
    let broken = rows.iter().filter(|row| !row.problems.is_empty()).count();
    say(&format!("{} trials, {broken} with broken promises", rows.len()))?;
    if !only.is_empty() {
        return Ok(broken == 0 && !rows.is_empty());
    }
    fs::write(summary, summary::write(&rows))?;
    say(&format!("written to {}", summary.display()))?;
    Ok(broken == 0 && rows.len() == WAYS.len() * TROUBLES.len())
}

fn start(out: &Path, shim: &Path) -> Result<Child> {
    let file = |path: &Path| -> Result<String> {
        let text = path.to_str().ok_or("the path of the repository is not UTF-8")?.to_owned();
        match text.contains(char::is_whitespace) {
            true => Err(format!("{text:?} has a space in it, which the kernel's command line cannot carry").into()),
            false => Ok(text),
        }
    };
    let folder = file(out)?;
    let program = file(&std::env::current_exe()?)?;
    let init = file(&Path::new(env!("CARGO_MANIFEST_DIR")).join("init.sh"))?;
    let console = fs::File::create(out.join("console"))?;
    // `timeout` in the foreground: Ctrl-C and the limit both reach the kernel as a signal that it cleans up after.
    let child = Command::new("timeout")
        .args(["--foreground", "--kill-after=20", LIMIT_SECONDS, KERNEL])
        .args(["mem=1G", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", &format!("init={init}")])
        .args(["con=null", "con0=null,fd:1", "quiet", &format!("uml_dir={folder}/")])
        .args([format!("nfstest_out={folder}"), format!("nfstest_program={program}")])
        .env("LD_PRELOAD", fs::canonicalize(shim)?)
        .stdin(Stdio::null())
        .stdout(console.try_clone()?)
        .stderr(console)
        .spawn()?;
    Ok(child)
}

/// Says each row as it comes, until the kernel has ended.
fn watch(mut kernel: Child, out: &Path) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    loop {
        let has_ended = kernel.try_wait()?.is_some();
        let text = fs::read_to_string(out.join(ROWS)).unwrap_or_default();
        // Only whole lines: the last one may be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines().skip(rows.len()) {
            let row: Row = serde_json::from_str(line)?;
            let books = row.books.map_or("ended by a signal".to_owned(), |books| books.to_string());
            let verdict = if row.problems.is_empty() { "kept" } else { "BROKEN" };
            let Row { mount, trouble, .. } = &row;
            let seconds = row.longest_wait_seconds.map_or(String::new(), |seconds| format!(", waited {seconds:.1} s"));
            say(&format!("{verdict}  {mount}: {trouble}: {books}{seconds}"))?;
            for problem in &row.problems {
                say(&format!("  problem: {problem}"))?;
            }
            rows.push(row);
        }
        if has_ended {
            return Ok(rows);
        }
        sleep(GLANCE);
    }
}

/// A kernel that had to be killed leaves processes behind. They carry the folder in their command line.
fn end_leftovers(out: &Path) -> Result<()> {
    let mark = format!("nfstest_out={}", out.display());
    for entry in fs::read_dir("/proc")?.flatten() {
        let command: PathBuf = entry.path().join("cmdline");
        let text = fs::read(command).unwrap_or_default();
        let is_kernel = text.split(|byte| *byte == 0).any(|word| word == mark.as_bytes());
        if let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()).filter(|_| is_kernel) {
            // SAFETY: takes no memory; the process was just seen to be one of this kernel's.
            unsafe { libc::kill(process, libc::SIGKILL) };
            say(&format!("process {process} of the kernel was left behind, and ended"))?;
        }
    }
    Ok(())
}
