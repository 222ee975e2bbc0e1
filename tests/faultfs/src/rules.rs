//! The rules: which calls go wrong, how, and how often; and the count of all calls.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// What rules are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Open,
    Read,
    Lookup,
    Getattr,
    Readdir,
    /// Of bytes.
    Write,
    /// A file or a directory.
    Create,
    /// Whatever else a file system that can only be read refuses: opening for writing, removing, renaming, other sizes and
    /// times.
    Change,
}

impl Operation {
    pub(crate) fn named(name: &str) -> Result<Vec<Self>, String> {
        Ok(match name {
            "open" => vec![Self::Open],
            "read" => vec![Self::Read],
            "lookup" => vec![Self::Lookup],
            "getattr" => vec![Self::Getattr],
            "stat" => vec![Self::Lookup, Self::Getattr],
            "readdir" => vec![Self::Readdir],
            "write" => vec![Self::Write],
            "create" => vec![Self::Create],
            "change" => vec![Self::Change],
            "modify" => vec![Self::Write, Self::Create, Self::Change],
            _ => {
                let known = "open, read, lookup, getattr, stat, readdir, write, create, change or modify";
                return Err(format!("operation: expected {known}, got {name:?}"));
            }
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Lookup => "lookup",
            Self::Getattr => "getattr",
            Self::Readdir => "readdir",
            Self::Write => "write",
            Self::Create => "create",
            Self::Change => "change",
        }
    }
}

/// How the bytes of an opened file are false. Decided when it is opened, and true for as long as it is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// The end comes here, whatever the size says.
    pub(crate) ends_at: Option<u64>,
    /// From here on every bit is the opposite.
    pub(crate) garbage_from: Option<u64>,
    /// No read gives more than this at once.
    pub(crate) pieces_of: Option<u64>,
}

/// What each look at a file's attributes adds to them. The bytes stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// The file was written a second later than it seemed.
    pub(crate) mtime_moves: bool,
    /// It has so many bytes more.
    pub(crate) grows_by: u64,
}

/// One rule. The first that matches and is not used up counts.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    operation: Operation,
    pattern: String,
    /// How often it acts on each path; with false content, how many opens; with a change, how often it changes, and
    /// then it stays as it is.
    pub(crate) times: Option<u64>,
    pub(crate) errno: Option<i32>,
    pub(crate) delay_ms: u64,
    pub(crate) hang: bool,
    /// The size that lookup and getattr claim.
    pub(crate) size_bytes: Option<u64>,
    /// How the file changes from one getattr to the next.
    pub(crate) change: Option<Change>,
    pub(crate) content: Option<Content>,
    used: HashMap<PathBuf, u64>,
}

impl Rule {
    pub(crate) fn new(operation: Operation, pattern: &str) -> Self {
        Self {
            operation,
            pattern: pattern.to_owned(),
            times: None,
            errno: None,
            delay_ms: 0,
            hang: false,
            size_bytes: None,
            change: None,
            content: None,
            used: HashMap::new(),
        }
    }

    /// Whether it acts on this call; if so, that is one use, or for a change the last one again.
    fn acts(&mut self, operation: Operation, path: &Path) -> bool {
        if self.operation != operation || !matches(self.pattern.as_bytes(), path.as_os_str().as_encoded_bytes()) {
            return false;
        }
        let used = self.used.entry(path.to_owned()).or_default();
        if self.times.is_some_and(|times| *used >= times) {
            return self.change.is_some();
        }
        *used += 1;
        true
    }

    /// How much the file has changed with the looks at it so far.
    fn changed(&self, path: &Path) -> Changed {
        let Some(change) = self.change else { return Changed::default() };
        let times = self.used.get(path).copied().unwrap_or(0);
        Changed { seconds: times * u64::from(change.mtime_moves), bytes: times * change.grows_by }
    }
}

/// How much a file has changed by now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) seconds: u64,
    pub(crate) bytes: u64,
}

/// What is to happen to one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) errno: Option<i32>,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) changed: Changed,
    delay: Duration,
    hang: bool,
}

impl Verdict {
    pub(crate) fn waits(&self) -> bool {
        self.hang || !self.delay.is_zero()
    }
}

/// All rules, what was called, and what hangs.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    counts: BTreeMap<(Operation, PathBuf), u64>,
    hanging: usize,
    releases: u64,
}

impl Rules {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, rule: Rule) {
        self.state().rules.push(rule);
    }

    pub(crate) fn clear(&self) {
        self.state().rules.clear();
        self.release();
    }

    /// Lets everything that hangs go on, and nothing hang any more.
    pub(crate) fn release(&self) {
        let mut state = self.state();
        state.rules.retain(|rule| !rule.hang);
        state.releases += 1;
        self.released.notify_all();
    }

    pub(crate) fn hanging(&self) -> usize {
        self.state().hanging
    }

    pub(crate) fn counts(&self) -> String {
        let mut text = String::new();
        for ((operation, path), count) in &self.state().counts {
            let _ = writeln!(text, "{}\t{}\t{count}", operation.name(), path.display());
        }
        text
    }

    /// Counts a call, and says what is to happen to it.
    pub(crate) fn judge(&self, operation: Operation, path: &Path) -> Verdict {
        let mut state = self.state();
        *state.counts.entry((operation, path.to_owned())).or_default() += 1;
        let rules = state.rules.iter_mut().filter(|rule| rule.content.is_none());
        acting(rules, operation, path).map_or(Verdict::default(), |rule| Verdict {
            errno: rule.errno,
            size_bytes: rule.size_bytes,
            changed: rule.changed(path),
            delay: Duration::from_millis(rule.delay_ms),
            hang: rule.hang,
        })
    }

    /// How the bytes of a file that is being opened are false.
    pub(crate) fn content(&self, path: &Path) -> Content {
        let mut state = self.state();
        let rules = state.rules.iter_mut().filter(|rule| rule.content.is_some());
        acting(rules, Operation::Read, path).and_then(|rule| rule.content).unwrap_or_default()
    }

    /// Waits as the verdict says.
    pub(crate) fn wait(&self, verdict: &Verdict) {
        thread::sleep(verdict.delay);
        if !verdict.hang {
            return;
        }
        let mut state = self.state();
        let before = state.releases;
        state.hanging += 1;
        while state.releases == before {
            state = self.released.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.hanging -= 1;
    }
}

/// The first rule that acts.
fn acting<'a>(
    mut rules: impl Iterator<Item = &'a mut Rule>,
    operation: Operation,
    path: &Path,
) -> Option<&'a mut Rule> {
    rules.find_map(|rule| rule.acts(operation, path).then_some(rule))
}

/// Whether the whole text matches: `*` is any text, `/` included, `?` one byte.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|start| matches(rest, &text[start..])),
        ([b'?', rest @ ..], [_, tail @ ..]) => matches(rest, tail),
        ([byte, rest @ ..], [first, tail @ ..]) => byte == first && matches(rest, tail),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_paths() {
        for (pattern, text, expected) in [
            ("*", "cat/1.jpg", true),
            ("cat/*", "cat/1.jpg", true),
            ("*/?.jpg", "cat/1.jpg", true),
            ("*/?.jpg", "cat/10.jpg", false),
            ("1.jpg", "cat/1.jpg", false),
            ("cat", "cat", true),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_rule_is_used_up_for_each_path_by_itself() {
        let rules = Rules::default();
        rules.add(Rule { times: Some(2), errno: Some(5), ..Rule::new(Operation::Read, "*") });
        let errno = |path| rules.judge(Operation::Read, Path::new(path)).errno;
        assert_eq!([errno("a"), errno("a"), errno("b"), errno("a")], [Some(5), Some(5), Some(5), None]);
        assert_eq!(rules.judge(Operation::Open, Path::new("a")).errno, None);
        assert_eq!(rules.counts(), "open\ta\t1\nread\ta\t3\nread\tb\t1\n");
    }

    #[test]
    fn a_file_changes_with_each_look_and_then_stays_as_it_is() {
        let rules = Rules::default();
        let change = Change { mtime_moves: true, grows_by: 10 };
        rules.add(Rule { times: Some(2), change: Some(change), ..Rule::new(Operation::Getattr, "*") });
        let looks = ["a", "a", "a", "b"].map(|path| rules.judge(Operation::Getattr, Path::new(path)).changed);
        let after = |looks| Changed { seconds: looks, bytes: 10 * looks };
        assert_eq!(looks, [after(1), after(2), after(2), after(1)]);
    }
}
