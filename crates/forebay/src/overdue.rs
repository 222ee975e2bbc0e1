//! Overdue reads and decodes: the loop of one thread that goes on without those that do not come back, and starts others.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, SampleId, Stage};
use forebay_store::{Mount, Stuck, late, too_many_stuck};

use crate::item::Item;
use crate::recover::after_trouble;
use crate::schedule::{Seen, Shared};
use crate::stream::{Crew, Worker};

/// Watches until the stream stops.
pub(crate) fn run(shared: &Arc<Shared>, crew: &Crew) {
    while let Some(Seen { late, late_decodes, workers, stuck, stuck_decodes }) = shared.watch() {
        for worker in workers {
            match (crew.start(shared, worker), worker) {
                (Err(error), Worker::Io(seat)) => shared.no_reader(seat, error),
                (Err(error), Worker::Cpu(seat)) => shared.no_decoder(seat, error),
                (_, Worker::Watch) | (Ok(()), _) => {}
            }
        }
        for item in late.into_iter().filter_map(|late| late.item) {
            write_off(shared, item, &stuck);
        }
        for item in late_decodes {
            write_off_decode(shared, item, &stuck_decodes);
        }
    }
}

/// Goes on with an item whose thread did not come back; `stuck` has all of those when there are too many.
fn write_off(shared: &Shared, item: Item, stuck: &[(SampleId, Duration)]) {
    let path = shared.source.dataset.path(item.sample);
    let error = if stuck.is_empty() {
        late(&path, shared.config.retry.deadline)
    } else {
        let stuck: Vec<_> = stuck
            .iter()
            .map(|(sample, elapsed)| {
                let path = shared.source.dataset.path(*sample);
                Stuck { mount: Mount::of(&path), path, elapsed: *elapsed }
            })
            .collect();
        too_many_stuck("threads", &stuck)
    };
    after_trouble(shared, item, &path, error.at_stage(Stage::Fetch), None);
}

/// Goes on with an item that was not decoded in time. There is no second attempt: the sample's deadline is used up, and
/// the same bytes would most likely cost another thread.
fn write_off_decode(shared: &Shared, item: Item, stuck: &[(SampleId, Duration)]) {
    let path = shared.source.dataset.path(item.sample);
    let error = if stuck.is_empty() {
        let seconds = shared.config.retry.deadline.as_secs_f64();
        Error::new(Kind::Timeout, format!("was not decoded and transformed within {seconds:.1} s")).with_hint(
            "the decoder or a transform is stuck or slow: try it with this file alone; raise `deadline_seconds` if it \
             is only slow",
        )
    } else {
        let mut message = format!("was given up: {} CPU threads are stuck in decoding or transforms", stuck.len());
        for (sample, elapsed) in stuck {
            let path = shared.source.dataset.path(*sample);
            let _infallible = write!(message, "\n  {path:?} for {:.1} s", elapsed.as_secs_f64());
        }
        Error::new(Kind::Exhausted, message).of_every_sample().with_hint(
            "a transform hangs rather than these files: look at its stacks (py-spy dump); `max_lost_threads` allows more",
        )
    };
    after_trouble(shared, item, &path, error.at_stage(Stage::Decode), None);
}
