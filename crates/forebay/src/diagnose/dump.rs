//! What is in flight in every loader of the process, printed to stderr when a signal asks for it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use forebay_core::{Result, SampleId};
use forebay_store::Site;

use crate::diagnose::signal::on_signal;
use crate::diagnose::watch::Watch;
use crate::engine::work_queue::WorkQueue;
use crate::loader::deliver::Progress;

/// A run, or what is left of one: threads that an abandoned run could not wait for are still shown.
#[derive(Clone)]
struct ActiveRun {
    queue: Weak<WorkQueue>,
    site: Arc<Site>,
    progress: Arc<Mutex<Progress>>,
    /// A forked child inherits locks that no thread will ever release.
    process: u32,
}

/// Locked only to copy the list: the start of a run must not wait for a slow terminal.
static ACTIVE_RUNS: Mutex<Vec<ActiveRun>> = Mutex::new(Vec::new());

/// Adds a run to the list that is shown.
pub(crate) fn add(queue: &Arc<WorkQueue>, site: &Arc<Site>, progress: &Arc<Mutex<Progress>>) {
    let (site, progress, process) = (Arc::clone(site), Arc::clone(progress), std::process::id());
    let living = ActiveRun { queue: Arc::downgrade(queue), site, progress, process };
    let mut list = ACTIVE_RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    // A stream that continues into the next epoch is already listed.
    list.retain(|known| known.queue.strong_count() > 0 && !Weak::ptr_eq(&known.queue, &living.queue));
    list.push(living);
}

/// On this signal, prints to stderr what every loader of this process has in flight: path, stage, thread, attempt,
/// seconds, and how the mount fares.
///
/// A thread of its own prints it, so that it works whatever the other threads do or wait for. A handler that is there
/// already is called as well; one that is installed later takes the place of this one. A forked child prints nothing
/// until it asks for it itself.
pub fn dump_on_signal(signal: i32) -> Result<()> {
    on_signal(signal, |signal| {
        let text = in_words(signal);
        // If stderr cannot be written, there is no other place to report it.
        let _unseen = std::io::stderr().write_all(text.as_bytes());
    })
}

fn in_words(signal: i32) -> String {
    let own = std::process::id();
    let list = ACTIVE_RUNS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let watch = |living: &ActiveRun| Some(Watch { queue: living.queue.upgrade()?, site: Arc::clone(&living.site) });
    let living: Vec<_> = list
        .iter()
        .filter(|living| living.process == own)
        .filter_map(|living| Some((watch(living)?, &living.progress)))
        .collect();
    let mut text = format!("forebay: process {own} got signal {signal}; loaders at work: {}\n", living.len());
    for (watch, progress) in living {
        let Progress { epoch, at, .. } = *progress.lock().unwrap_or_else(PoisonError::into_inner);
        let (config, dataset) = (&watch.queue.context.config, &watch.queue.context.source.dataset);
        let (rank, world_size, step) = (config.rank, config.world_size, at.step);
        let (lines, first) = (watch.in_lines(), dataset.path(SampleId(0)));
        let _infallible = writeln!(
            text,
            "  loader of {} samples, the first {first:?} (rank {rank} of {world_size}, epoch {epoch}, step {step}):",
            dataset.len()
        );
        for line in lines {
            let _infallible = writeln!(text, "    {line}");
        }
    }
    text
}
