//! The watchdog: the loop of one thread that writes off overdue reads and decodes, and starts threads in place of lost ones.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Field, Kind, SampleId, Stage};
use forebay_store::{Mount, Stuck, late, too_many_stuck};

use crate::engine::item::Item;
use crate::engine::recover::after_trouble;
use crate::engine::work_queue::{Overdue, WorkQueue};
use crate::loader::stream::{Worker, WorkerThreads};

/// Runs until the stream stops.
pub(crate) fn run(queue: &Arc<WorkQueue>, workers: &WorkerThreads) {
    while let Some(Overdue { late, late_decodes, missing, stuck, stuck_decodes }) = queue.watch() {
        for worker in missing {
            match (workers.start(queue, worker), worker) {
                (Err(error), Worker::Io(thread)) => queue.no_reader(thread, error),
                (Err(error), Worker::Cpu(thread)) => queue.no_decoder(thread, error),
                (_, Worker::Watchdog) | (Ok(()), _) => {}
            }
        }
        for late in late {
            late.item.into_iter().for_each(|item| write_off(queue, item, late.field, &stuck));
        }
        for item in late_decodes {
            write_off_decode(queue, item, &stuck_decodes);
        }
    }
}

/// Hands an item whose read is overdue to recovery. `stuck` lists all lost reads when there are too many.
fn write_off(queue: &WorkQueue, item: Item, field: Field, stuck: &[(SampleId, Duration)]) {
    let path = queue.context.source.dataset.name(item.sample, field);
    let error = if stuck.is_empty() {
        late(&path, queue.context.config.retry.deadline)
    } else {
        let stuck: Vec<_> = stuck
            .iter()
            .map(|(sample, elapsed)| {
                let path = queue.context.source.dataset.path(*sample);
                Stuck { mount: Mount::of(&path), path, elapsed: *elapsed }
            })
            .collect();
        too_many_stuck("threads", &stuck)
    };
    after_trouble(queue, item, &path, error.at_stage(Stage::Fetch).at_field(field), None);
}

/// Hands an item whose decode is overdue to recovery. There is no second attempt: the sample's deadline is used up, and
/// the same bytes would most likely cost another thread.
fn write_off_decode(queue: &WorkQueue, item: Item, stuck: &[(SampleId, Duration)]) {
    let path = queue.context.source.dataset.path(item.sample);
    let error = if stuck.is_empty() {
        let seconds = queue.context.config.retry.deadline.as_secs_f64();
        Error::new(Kind::Timeout, format!("was not decoded and transformed within {seconds:.1} s")).with_hint(
            "the decoder or a transform is stuck or slow: try it with this file alone; raise `deadline_seconds` if it \
             is only slow",
        )
    } else {
        let mut message = format!("was given up: {} CPU threads are stuck in decoding or transforms", stuck.len());
        for (sample, elapsed) in stuck {
            let path = queue.context.source.dataset.path(*sample);
            let _infallible = write!(message, "\n  {path:?} for {:.1} s", elapsed.as_secs_f64());
        }
        Error::new(Kind::Exhausted, message).of_every_sample().with_hint(
            "a transform hangs rather than these files: look at its stacks (py-spy dump); `max_lost_threads` allows more",
        )
    };
    after_trouble(queue, item, &path, error.at_stage(Stage::Decode), None);
}
