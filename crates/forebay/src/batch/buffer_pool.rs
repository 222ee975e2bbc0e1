//! The memory of batches: blocks that are reused, and one slot for each sample in them.

use std::alloc::{self, Layout as Allocation};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

use forebay_core::{Error, Kind, Result};

use crate::sync::{Mutex, MutexGuard, RwLock};

/// Cache line, and enough for any SIMD load.
const ALIGNMENT: usize = 64;

/// What keeps lent memory alive.
pub type Lender = Box<dyn Any + Send>;

/// One piece of memory, not yet or no longer in use.
struct Block {
    start: NonNull<u8>,
    size_bytes: usize,
    /// The layout of memory that was allocated here.
    allocation: Option<Allocation>,
    /// The owner of memory that the consumer lent, and gets back with the batch: pinned memory, for example.
    lender: Option<Lender>,
}

// SAFETY: a block owns its memory alone, or has it lent for itself alone; nothing in it is bound to a thread.
unsafe impl Send for Block {}
// SAFETY: `&Block` gives no access to the memory, nor to its lender.
unsafe impl Sync for Block {}

impl Block {
    fn new(size_bytes: usize) -> Result<Self> {
        let too_large = || Error::new(Kind::Exhausted, format!("a batch of {size_bytes} bytes cannot be allocated"));
        let allocation = Allocation::from_size_align(size_bytes.max(1), ALIGNMENT).map_err(|_| too_large())?;
        // SAFETY: the size is not zero. Zeroed, so that reading a slot before it is written is never undefined.
        let start = unsafe { alloc::alloc_zeroed(allocation) };
        let start = NonNull::new(start).ok_or_else(too_large)?;
        Ok(Self { start, size_bytes: allocation.size(), allocation: Some(allocation), lender: None })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation {
            // SAFETY: allocated in `new` with this very layout, and freed only here.
            unsafe { alloc::dealloc(self.start.as_ptr(), allocation) }
        }
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Block").field("size_bytes", &self.size_bytes).finish_non_exhaustive()
    }
}

/// Called when a block is returned.
type Returned = Arc<dyn Fn() + Send + Sync>;

/// Blocks that wait for their next batch.
pub(crate) struct BufferPool {
    /// Blocks kept for reuse: as many as are filled concurrently. A consumer that takes several batches at once returns several,
    /// and freeing one costs the kernel thousands of pages to unmap and map again.
    max_idle: usize,
    idle: Mutex<Idle>,
    returned: RwLock<Option<Returned>>,
}

impl std::fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BufferPool").field("idle", &self.idle).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Idle {
    own: Vec<Block>,
    /// Own blocks that are in use by a batch.
    own_in_use: usize,
    /// The most own blocks, idle or in use, that are kept; `None`: as many as `max_idle` allows.
    most_own: Option<usize>,
    lent: Vec<Block>,
    /// Lent blocks, idle or in a batch that is not delivered yet.
    lent_count: usize,
}

impl BufferPool {
    /// A pool that keeps this many blocks.
    pub(crate) fn new(max_idle: usize) -> Self {
        Self { max_idle, idle: Mutex::default(), returned: RwLock::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks of its own: idle, and in use.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        let idle = self.idle();
        (idle.own.len(), idle.own_in_use)
    }

    /// Calls this whenever a block is returned, in the thread that returns it. Replaces the call set before.
    pub(crate) fn when_returned(&self, call: impl Fn() + Send + Sync + 'static) {
        *self.returned.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(call));
    }

    /// No longer counts a buffer that a late thread may keep forever.
    pub(crate) fn leave(&self, buffer: &Buffer) {
        let mut idle = self.idle();
        if buffer.is_left.swap(true, Relaxed) {
            return;
        }
        if buffer.block().lender.is_some() {
            idle.lent_count -= 1;
        } else {
            idle.own_in_use -= 1;
        }
    }

    /// Whether no block is idle, and more than `most` own blocks are in use.
    pub(crate) fn is_used_up(&self, most: usize) -> bool {
        let idle = self.idle();
        idle.own.is_empty() && idle.lent.is_empty() && idle.own_in_use > most
    }

    /// Memory for a batch, reused if a block fits.
    pub(crate) fn take(self: &Arc<Self>, size_bytes: usize) -> Result<Buffer> {
        let reused = {
            let own = &mut self.idle().own;
            // The last batch of an epoch is smaller, and must not take a block that a full batch needs.
            let fits = |block: &Block| block.size_bytes >= size_bytes && block.size_bytes / 4 <= size_bytes;
            let at = (0..own.len()).filter(|at| fits(&own[*at])).min_by_key(|at| own[*at].size_bytes);
            at.map(|at| own.swap_remove(at))
        };
        let block = reused.map_or_else(|| Block::new(size_bytes), Ok)?;
        self.idle().own_in_use += 1;
        Ok(Buffer::new(block, self))
    }

    /// Lent memory for a batch, if a block is idle.
    pub(crate) fn take_lent(self: &Arc<Self>, size_bytes: usize) -> Option<Buffer> {
        let lent = &mut self.idle().lent;
        let at = lent.iter().position(|block| block.size_bytes >= size_bytes)?;
        Some(Buffer::new(lent.swap_remove(at), self))
    }

    /// Takes memory from the consumer.
    ///
    /// # Safety
    /// `start` has to be valid for reads and writes of `size_bytes`, initialised, aligned for any number and used by
    /// no other code as long as `lender` lives, or until a batch gives it back.
    pub(crate) unsafe fn lend(&self, start: NonNull<u8>, size_bytes: usize, lender: Lender) {
        let mut idle = self.idle();
        idle.lent_count += 1;
        idle.lent.push(Block { start, size_bytes, allocation: None, lender: Some(lender) });
    }

    /// Lent blocks that are not handed over yet.
    pub(crate) fn lent_count(&self) -> usize {
        self.idle().lent_count
    }

    /// Frees returned blocks while there are more own ones than this, in use or idle.
    pub(crate) fn keep(&self, most: Option<usize>) {
        self.idle().most_own = most;
    }

    fn give_back(&self, block: Block, was_left: bool) {
        let mut idle = self.idle();
        if block.lender.is_some() {
            idle.lent_count += usize::from(was_left);
            return idle.lent.push(block);
        }
        idle.own_in_use -= usize::from(!was_left);
        idle.own.push(block);
        // The oldest one: its size may be out of date.
        let is_too_much =
            idle.own.len() > self.max_idle || idle.most_own.is_some_and(|most| idle.own.len() + idle.own_in_use > most);
        let surplus = is_too_much.then(|| idle.own.remove(0));
        // Freeing memory takes the kernel milliseconds, and other threads wait for the pool.
        drop(idle);
        drop(surplus);
        // Not under the lock: the call may drop the last stream, and with it batches that are returned here.
        let call = self.returned.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(call) = call {
            call();
        }
    }
}

/// The memory of one batch. It returns to its pool when the last owner, possibly a tensor in Python, drops it.
#[derive(Debug)]
pub struct Buffer {
    block: Option<Block>,
    pool: Arc<BufferPool>,
    /// Left to a thread that may keep it forever: the pool does not count it.
    is_left: AtomicBool,
}

impl Buffer {
    fn new(block: Block, pool: &Arc<BufferPool>) -> Self {
        Self { block: Some(block), pool: Arc::clone(pool), is_left: AtomicBool::new(false) }
    }

    fn block(&self) -> &Block {
        self.block.as_ref().expect("a buffer has its block until it is dropped")
    }

    /// Where the memory is, for a consumer that shares it. Valid as long as the buffer lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.block().start.as_ptr()
    }

    /// How much there is.
    pub fn capacity(&self) -> usize {
        self.block().size_bytes
    }

    /// Returns lent memory to its lender; an own block is an error.
    pub fn into_lender(mut self) -> std::result::Result<Lender, Self> {
        match self.block.as_mut().and_then(|block| block.lender.take()) {
            Some(lender) => {
                self.block = None;
                self.pool.idle().lent_count -= 1;
                Ok(lender)
            }
            None => Err(self),
        }
    }

    /// A slot to write a sample into.
    ///
    /// # Safety
    /// No other reference to the bytes `offset..offset + len` may exist while the result does. The work queue
    /// gives each slot to one thread at a time.
    #[expect(clippy::mut_from_ref, reason = "disjoint slots of one block are written by several threads")]
    pub(crate) unsafe fn slot(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.capacity()), "slot outside its batch");
        // SAFETY: inside the block (asserted), initialised (zeroed, or the lender's promise), unaliased (the caller's).
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().add(offset), len) }
    }

    /// The bytes, once no thread writes to them.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `&mut self` excludes every other slot and view made through this buffer.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.capacity()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.give_back(block, *self.is_left.get_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn memory_is_reused_and_slots_do_not_overlap() {
        let pool = Arc::new(BufferPool::new(2));
        let buffer = pool.take(256).unwrap();
        let first = buffer.as_ptr();
        assert_eq!(first as usize % ALIGNMENT, 0);
        std::thread::scope(|scope| {
            for slot in 0..4usize {
                let buffer = &buffer;
                // SAFETY: each thread takes another slot.
                scope.spawn(move || unsafe { buffer.slot(slot * 64, 64) }.fill(slot as u8 + 1));
            }
        });
        let mut buffer = buffer;
        assert!(buffer.bytes().chunks(64).zip(1..).all(|(slot, value)| slot.iter().all(|&byte| byte == value)));
        drop(buffer);
        assert_eq!(pool.take(200).unwrap().as_ptr(), first, "a smaller batch fits, too");
        assert_ne!(pool.take(10).unwrap().as_ptr(), first, "but a tiny one would waste it");
        assert_eq!(pool.take(256).unwrap().as_ptr(), first, "the block was not reused");
    }

    #[test]
    fn lent_memory_comes_back_with_its_batch_or_waits_for_the_next() {
        let pool = Arc::new(BufferPool::new(2));
        let mut memory = vec![0_u64; 8];
        let start = NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        // SAFETY: the vector is its own lender, and its heap memory does not move with it.
        unsafe { pool.lend(start, 64, Box::new(memory)) };
        assert!(pool.take_lent(65).is_none(), "it is too small for that");
        drop(pool.take_lent(32).unwrap());
        let buffer = pool.take_lent(64).unwrap();
        assert!(pool.take_lent(1).is_none(), "it is in use");
        // SAFETY: the only reference.
        unsafe { buffer.slot(0, 64) }.fill(7);
        let lender = buffer.into_lender().unwrap();
        assert_eq!(*lender.downcast::<Vec<u64>>().unwrap(), [0x0707_0707_0707_0707; 8]);
        assert_eq!(pool.lent_count(), 0);
        assert!(pool.take(64).unwrap().into_lender().is_err(), "memory of the pool's own has no lender");
    }

    #[test]
    fn a_returned_block_notifies_the_waiting_thread() {
        let (pool, told) = (Arc::new(BufferPool::new(2)), Arc::new(AtomicUsize::new(0)));
        let buffers = [(); 3].map(|()| pool.take(64).unwrap());
        assert!(pool.is_used_up(2) && !pool.is_used_up(3));
        let counter = Arc::clone(&told);
        pool.when_returned(move || _ = counter.fetch_add(1, Relaxed));
        drop(buffers);
        assert_eq!(told.load(Relaxed), 3);
        let _two = [(); 2].map(|()| pool.take(64).unwrap());
        assert!(!pool.is_used_up(2) && pool.is_used_up(1));
    }

    #[test]
    fn a_notified_thread_may_drop_other_batches_and_register_others() {
        let pool = Arc::new(BufferPool::new(2));
        let (first, second) = (pool.take(64).unwrap(), Mutex::new(Some(pool.take(64).unwrap())));
        let (told, was_told) = std::sync::mpsc::channel();
        let own = Arc::downgrade(&pool);
        pool.when_returned(move || {
            let other = second.lock().unwrap().take();
            drop(other);
            let told = told.clone();
            own.upgrade().unwrap().when_returned(move || told.send(()).unwrap());
        });
        let other = Arc::clone(&pool);
        let let_go = move || {
            drop(first);
            drop(other.take(64));
        };
        // Not joined: if the pool waits for itself, so does the thread.
        std::thread::Builder::new().spawn(let_go).unwrap();
        was_told.recv_timeout(std::time::Duration::from_secs(20)).expect("the pool waits for itself");
    }

    #[test]
    fn blocks_beyond_the_limit_are_freed_when_returned() {
        let pool = Arc::new(BufferPool::new(4));
        let [first, second, third] = [(); 3].map(|()| pool.take(64).unwrap());
        pool.keep(Some(2));
        drop(first);
        assert_eq!(pool.idle().own.len(), 0, "two are in use");
        drop(second);
        assert_eq!(pool.idle().own.len(), 1);
        pool.keep(None);
        drop(third);
        assert_eq!(pool.idle().own.len(), 2);
    }

    #[test]
    fn idle_memory_is_bounded() {
        let pool = Arc::new(BufferPool::new(2));
        let buffers: Vec<_> = (1..10).map(|size| pool.take(size).unwrap()).collect();
        drop(buffers);
        assert_eq!(pool.idle().own.len(), 2);
    }

    #[test]
    #[should_panic(expected = "slot outside its batch")]
    fn a_slot_outside_its_batch_is_refused() {
        let buffer = Arc::new(BufferPool::new(2)).take(64).unwrap();
        // SAFETY: the only reference; the call panics before it makes one.
        unsafe { buffer.slot(1, 64) };
    }
}
