//! The locks and threads of a stream. They are the standard library's; with the feature `shuttle` they are shuttle's, which
//! runs the threads in an order drawn from a seed (`schedule/interleavings.rs`).

use std::time::Instant;

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, RwLock, atomic::AtomicUsize},
    thread::{Builder, JoinHandle},
};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, RwLock, atomic::AtomicUsize},
    thread::{Builder, JoinHandle},
};

/// Joins a thread that is about to end, until `deadline`. After that it is left alone.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn join_before(thread: JoinHandle<()>, deadline: Instant) {
    // There is no join with a deadline; these are about to end, and almost always have.
    while !thread.is_finished() && Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    if thread.is_finished() {
        // Every step of a thread catches its panics, so there is no panic to report.
        let _ended = thread.join();
    }
}

/// The same without a deadline: one that never ends is what the test is to find.
#[cfg(feature = "shuttle")]
pub(crate) fn join_before(thread: JoinHandle<()>, _deadline: Instant) {
    thread.join().expect("a thread of a stream catches its panics");
}
