//! The mappings of this process, as the signal handler finds them: a fixed table of atomics, without locks and without
//! memory of its own.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// How many mappings there may be at a time; further files are read without one. Far below `vm.max_map_count` (65,530).
pub(super) const MAX_MAPPINGS: usize = 1024;

static SLOTS: [Slot; MAX_MAPPINGS] = [const { Slot::free() }; MAX_MAPPINGS];

/// A mapping in the table.
struct Slot {
    is_taken: AtomicBool,
    /// Odd while the addresses change: they are not looked at then. The mapping that a thread reads from is held by it,
    /// so its own slot never changes meanwhile.
    version: AtomicUsize,
    start: AtomicUsize,
    /// 0 if it has no mapping.
    end: AtomicUsize,
    is_cut: AtomicBool,
}

impl Slot {
    const fn free() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            is_cut: AtomicBool::new(false),
        }
    }

    fn set(&self, addresses: Range<usize>) {
        self.version.fetch_add(1, SeqCst);
        self.start.store(addresses.start, SeqCst);
        self.end.store(addresses.end, SeqCst);
        self.is_cut.store(false, SeqCst);
        self.version.fetch_add(1, SeqCst);
    }

    /// Its addresses, if `address` is one of them.
    fn around(&self, address: usize) -> Option<Range<usize>> {
        let version = self.version.load(SeqCst);
        let addresses = self.start.load(SeqCst)..self.end.load(SeqCst);
        let is_settled = version.is_multiple_of(2) && self.version.load(SeqCst) == version;
        (is_settled && addresses.contains(&address)).then_some(addresses)
    }
}

/// The entry of a mapping. The mapping has to be there until this is dropped.
#[derive(Debug)]
pub(super) struct Entry(usize);

impl Entry {
    /// Enters a mapping; `None` if the table is full.
    pub(super) fn new(addresses: Range<usize>) -> Option<Self> {
        let take = |slot: &Slot| slot.is_taken.compare_exchange(false, true, SeqCst, SeqCst).is_ok();
        let place = SLOTS.iter().position(take)?;
        SLOTS[place].set(addresses);
        Some(Self(place))
    }

    /// Whether pages of it have been replaced, so that what was read of it is not the file's.
    pub(super) fn is_cut(&self) -> bool {
        SLOTS[self.0].is_cut.load(SeqCst)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        SLOTS[self.0].set(0..0);
        SLOTS[self.0].is_taken.store(false, SeqCst);
    }
}

/// Marks the mapping that has an address as cut, and gives its addresses; `None` if it is none of ours.
/// Async-signal-safe.
pub(super) fn cut(address: usize) -> Option<Range<usize>> {
    SLOTS.iter().find_map(|slot| {
        let addresses = slot.around(address)?;
        // Before its pages are replaced: a reader that has seen a replaced page sees the mark.
        slot.is_cut.store(true, SeqCst);
        Some(addresses)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_mapping_that_has_it() {
        // Addresses that no process has: other tests map files at the same time.
        const FAR: usize = 1 << 60;
        let (one, two) = (Entry::new(FAR..FAR + 100).unwrap(), Entry::new(FAR + 100..FAR + 150).unwrap());
        assert_eq!((cut(FAR + 149), cut(FAR + 150), cut(FAR - 1)), (Some(FAR + 100..FAR + 150), None, None));
        assert!(two.is_cut() && !one.is_cut());
        drop(two);
        assert_eq!(cut(FAR + 149), None);
        let again = Entry::new(FAR + 100..FAR + 150).unwrap();
        assert!(!again.is_cut(), "the mark is that of one mapping");
        assert_eq!(cut(FAR), Some(FAR..FAR + 100));
        assert!(one.is_cut() && !again.is_cut());
    }
}
