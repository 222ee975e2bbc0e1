//! The control socket: a line in, a line out. When the answer comes, the rule is in force.
//!
//! Words are separated by tabs, so that patterns may have blanks. A pattern matches the whole path below the mount:
//! `*` is any text, `?` one character.
//!
//! | line | answer |
//! |---|---|
//! | `rule`, operation, pattern, `errno=N` `delay_ms=N` `hang` `size=N` `times=N` | `ok` |
//! | `rule`, `getattr`, pattern, `mtime_moves` `grows_by=N` `times=N` | `ok` |
//! | `rule`, `read`, pattern, `ends_at=N` `garbage_from=N` `pieces_of=N` `times=N` | `ok` |
//! | `clear` | `ok`: no rule is left, what hangs goes on |
//! | `release` | `ok`: rules that hang are gone, what hangs goes on |
//! | `hanging` | how many requests hang |
//! | `counts` | `operation path count`, joined by tabs, for every path asked for, then an empty line |
//!
//! Operations: `open`, `read`, `lookup`, `getattr`, `stat` (both of them), `readdir`; of a mount that can be written to
//! `write`, `create`, `change` (whatever else changes something) and `modify` (all three).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use crate::rules::{Change, Content, Operation, Rule, Rules};
use crate::start;

/// Serves every connection in a thread of its own, until the process ends.
pub(crate) fn listen(listener: &UnixListener, rules: &Arc<Rules>) {
    for stream in listener.incoming().map_while(Result::ok) {
        let rules = Arc::clone(rules);
        let _ = start("control", move || converse(&stream, &rules));
    }
}

fn converse(stream: &UnixStream, rules: &Rules) {
    let mut writer = stream;
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let answer = obey(&line, rules).unwrap_or_else(|problem| format!("error: {problem}"));
        if writeln!(writer, "{answer}").is_err() {
            return;
        }
    }
}

fn obey(line: &str, rules: &Rules) -> Result<String, String> {
    let words: Vec<&str> = line.split('\t').collect();
    match words[..] {
        ["rule", operation, pattern, ref options @ ..] => {
            for operation in Operation::named(operation)? {
                rules.add(parse(operation, pattern, options)?);
            }
            Ok("ok".to_owned())
        }
        ["clear"] => {
            rules.clear();
            Ok("ok".to_owned())
        }
        ["release"] => {
            rules.release();
            Ok("ok".to_owned())
        }
        ["hanging"] => Ok(rules.hanging().to_string()),
        ["counts"] => Ok(rules.counts()),
        _ => Err(format!("expected rule, clear, release, hanging or counts, got {line:?}")),
    }
}

fn parse(operation: Operation, pattern: &str, options: &[&str]) -> Result<Rule, String> {
    let mut rule = Rule::new(operation, pattern);
    let mut content = Content::default();
    let mut change = Change::default();
    for option in options {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let number = || value.parse::<u64>().map_err(|_| format!("{name}: expected a whole number, got {value:?}"));
        match name {
            "errno" => rule.errno = Some(i32::try_from(number()?).map_err(|error| error.to_string())?),
            "delay_ms" => rule.delay_ms = number()?,
            "hang" => rule.hang = true,
            "size" => rule.size_bytes = Some(number()?),
            "times" => rule.times = Some(number()?),
            "mtime_moves" => change.mtime_moves = true,
            "grows_by" => change.grows_by = number()?,
            "ends_at" => content.ends_at = Some(number()?),
            "garbage_from" => content.garbage_from = Some(number()?),
            "pieces_of" => content.pieces_of = Some(number()?),
            _ => return Err(format!("unknown option {option:?}")),
        }
    }
    if change != Change::default() {
        if operation != Operation::Getattr || rule.errno.is_some() {
            return Err("a change: expected a rule for getattr without an errno".to_owned());
        }
        rule.change = Some(change);
    }
    if content != Content::default() {
        if operation != Operation::Read || rule.errno.is_some() || rule.hang || rule.delay_ms > 0 {
            return Err("false content: expected a rule for read that does nothing else".to_owned());
        }
        rule.content = Some(content);
    }
    Ok(rule)
}
