//! Overdue reads: the loop of one thread that goes on without those that do not come back, and starts others.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{SampleId, Stage};
use forebay_store::{Mount, Stuck, late, too_many_stuck};

use crate::item::Item;
use crate::recover::after_trouble;
use crate::schedule::{Seen, Shared};
use crate::stream::{Crew, Worker};

/// Watches until the stream stops.
pub(crate) fn run(shared: &Arc<Shared>, crew: &Crew) {
    while let Some(Seen { late, seats, stuck }) = shared.watch() {
        for seat in seats {
            if let Err(error) = crew.start(shared, Worker::Io(seat)) {
                shared.not_seated(seat, error);
            }
        }
        for item in late.into_iter().filter_map(|late| late.item) {
            write_off(shared, item, &stuck);
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
