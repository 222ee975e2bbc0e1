//! Batches: pooled memory with one slot per sample, and what is handed over in the end.

use std::alloc::{self, Layout as Allocation};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

use forebay_core::{Epoch, Error, Kind, Result, SampleId, Stage, Step};
use forebay_decode::{Array, Dense, Order, Recipe, Value};

use crate::deliver::Progress;
use crate::sync::{Mutex, MutexGuard, RwLock};

/// Cache line, and enough for any SIMD load.
const ALIGNMENT: usize = 64;

/// What keeps lent memory alive.
pub type Lender = Box<dyn Any + Send>;

/// One piece of memory, not yet or no longer in use.
struct Block {
    start: NonNull<u8>,
    size_bytes: usize,
    /// Of memory that was allocated here.
    allocation: Option<Allocation>,
    /// Of memory that the consumer lent, and gets back with the batch: pinned memory, say.
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

/// What is done when a block is back.
type Returned = Arc<dyn Fn() + Send + Sync>;

/// Blocks that wait for their next batch.
pub(crate) struct BufferPool {
    /// Blocks kept for reuse. As many as are filled at a time: a consumer that takes several batches at once gives several
    /// back, and to the kernel each is some thousand pages to take away and to give out again.
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
    /// Blocks of the pool's own that are in a batch, wherever that is.
    own_in_use: usize,
    /// Blocks of its own beyond which one that comes back is not kept; `None`: as many as `max_idle` allows.
    most_own: Option<usize>,
    lent: Vec<Block>,
    /// Lent blocks, idle or in a batch that was not handed over.
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

    /// Calls this whenever a block is back, in place of what was called before, in the thread that let go of it.
    pub(crate) fn when_returned(&self, call: impl Fn() + Send + Sync + 'static) {
        *self.returned.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(call));
    }

    /// No longer counts a buffer that a late thread may keep for ever.
    fn leave(&self, buffer: &Buffer) {
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

    /// Whether nothing is idle, and more than `most` blocks of its own are in use.
    pub(crate) fn is_used_up(&self, most: usize) -> bool {
        let idle = self.idle();
        idle.own.is_empty() && idle.lent.is_empty() && idle.own_in_use > most
    }

    /// Memory for a batch, reused where there is some.
    pub(crate) fn take(self: &Arc<Self>, size_bytes: usize) -> Result<Buffer> {
        let reused = {
            let own = &mut self.idle().own;
            // The last batch of an epoch is smaller, and must not cost one of the others its memory.
            let fits = |block: &Block| block.size_bytes >= size_bytes && block.size_bytes / 4 <= size_bytes;
            let at = (0..own.len()).filter(|at| fits(&own[*at])).min_by_key(|at| own[*at].size_bytes);
            at.map(|at| own.swap_remove(at))
        };
        let block = reused.map_or_else(|| Block::new(size_bytes), Ok)?;
        self.idle().own_in_use += 1;
        Ok(Buffer::new(block, self))
    }

    /// Lent memory for a batch, where there is some left.
    pub(crate) fn take_lent(self: &Arc<Self>, size_bytes: usize) -> Option<Buffer> {
        let lent = &mut self.idle().lent;
        let at = lent.iter().position(|block| block.size_bytes >= size_bytes)?;
        Some(Buffer::new(lent.swap_remove(at), self))
    }

    /// Takes memory from the consumer.
    ///
    /// # Safety
    /// `start` has to be valid for reads and writes of `size_bytes`, initialised, aligned for any number and used by
    /// nobody else as long as `lender` lives, or until a batch gives it back.
    pub(crate) unsafe fn lend(&self, start: NonNull<u8>, size_bytes: usize, lender: Lender) {
        let mut idle = self.idle();
        idle.lent_count += 1;
        idle.lent.push(Block { start, size_bytes, allocation: None, lender: Some(lender) });
    }

    /// Lent blocks that are not handed over yet.
    pub(crate) fn lent_count(&self) -> usize {
        self.idle().lent_count
    }

    /// Keeps no more blocks of its own than this, in use or idle, as they come back.
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
        // The oldest may be of a size no longer wanted.
        let is_too_much =
            idle.own.len() > self.max_idle || idle.most_own.is_some_and(|most| idle.own.len() + idle.own_in_use > most);
        let surplus = is_too_much.then(|| idle.own.remove(0));
        // To give memory back takes the kernel milliseconds, and others wait for the pool.
        drop(idle);
        drop(surplus);
        // Not under the lock: the call may let go of the last stream, and with it of batches that come back here.
        let call = self.returned.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(call) = call {
            call();
        }
    }
}

/// The memory of one batch. It returns to its pool when the last owner, be it a tensor in Python, lets go.
#[derive(Debug)]
pub struct Buffer {
    block: Option<Block>,
    pool: Arc<BufferPool>,
    /// To a thread that may keep it for ever: the pool does not count it.
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

    /// Gives lent memory back to its lender; memory of forebay's own stays what it is.
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
    /// No other reference to the bytes `offset..offset + len` may exist while the result does. The schedule hands
    /// each slot to one thread at a time.
    #[expect(clippy::mut_from_ref, reason = "disjoint slots of one block are written by several threads")]
    pub(crate) unsafe fn slot(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.capacity()), "slot outside its batch");
        // SAFETY: inside the block (asserted), initialised (zeroed, or the lender's promise), unaliased (the caller's).
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().add(offset), len) }
    }

    /// The bytes, once nobody writes any more.
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

/// The samples of a batch.
#[derive(Debug)]
pub enum Payload {
    /// All of one shape, one after the other.
    Dense {
        /// Their memory.
        buffer: Buffer,
        /// Each one's shape.
        layout: Dense,
    },
    /// Whatever the transforms made, in order.
    Values(Vec<Value>),
}

/// One batch, as planned.
#[derive(Debug)]
pub struct Batch {
    /// The epoch it belongs to.
    pub epoch: Epoch,
    /// Its step within the epoch.
    pub step: Step,
    /// The samples' content.
    pub payload: Payload,
    /// Their labels.
    pub labels: Vec<i64>,
    /// Which samples they are, substitutes included.
    pub samples: Vec<SampleId>,
    /// How many of the planned ones failed: replaced or left out.
    pub failed: u64,
    /// What [`crate::Run::commit`] wants to see.
    pub receipt: Receipt,
}

/// How far a run has come with a batch, once the batch is the user's.
#[derive(Clone, Copy, Debug)]
pub struct Receipt(pub(crate) Progress);

impl Batch {
    /// How many samples it has.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// Puts tensors of one shape side by side, in the batch's type and order; values that are not stay as they are.
pub(crate) fn stack(values: Vec<Value>, recipe: &dyn Recipe, pool: &Arc<BufferPool>) -> Result<Payload> {
    if let Some(Value::Array(_)) = values.first() {
        return stack_arrays(values, pool);
    }
    let layout_of = |value: &Value| match value {
        Value::Tensor(tensor) => Some(tensor.layout()),
        _ => None,
    };
    let Some(made) = values.first().and_then(layout_of) else { return Ok(Payload::Values(values)) };
    if !values.iter().all(|value| layout_of(value) == Some(made)) {
        return Ok(Payload::Values(values));
    }
    let assembling = |error: Error| error.at_stage(Stage::Assemble);
    let layout = Dense::from(recipe.batch_layout(made).map_err(assembling)?);
    let mut buffer = pool.take(layout.size_bytes() * values.len())?;
    for (value, slot) in values.iter().zip(buffer.bytes().chunks_exact_mut(layout.size_bytes().max(1))) {
        let Value::Tensor(tensor) = value else { continue };
        recipe.place(tensor, slot).map_err(assembling)?;
    }
    Ok(Payload::Dense { buffer, layout })
}

/// Puts arrays of one shape and type side by side; others stay as they are.
fn stack_arrays(values: Vec<Value>, pool: &Arc<BufferPool>) -> Result<Payload> {
    let arrays = || values.iter().filter_map(|value| if let Value::Array(array) = value { Some(array) } else { None });
    let kind = |array: &Array| (array.shape.clone(), array.element);
    let Some((shape, element)) = arrays().next().map(kind) else { return Ok(Payload::Values(values)) };
    let is_one_kind = arrays().all(|array| array.shape == shape && array.element == element);
    if !is_one_kind || arrays().count() != values.len() {
        return Ok(Payload::Values(values));
    }
    let layout = Dense { shape, element, order: Order::default() };
    let mut buffer = pool.take(layout.size_bytes() * values.len())?;
    for (array, slot) in arrays().zip(buffer.bytes().chunks_exact_mut(layout.size_bytes().max(1))) {
        slot[..array.bytes.len()].copy_from_slice(&array.bytes);
    }
    Ok(Payload::Dense { buffer, layout })
}

/// A copy of a batch in which late threads may still write to some slots; `values` are what has taken the places of those,
/// by slot, and `kept` are the slots that count. The late threads keep the memory of the batch itself.
pub(crate) fn copy_apart(
    batch: &Buffer,
    kept: &[bool],
    values: &[(usize, Value)],
    recipe: &dyn Recipe,
    pool: &Arc<BufferPool>,
) -> Result<Buffer> {
    let size = recipe.layout().map_or(0, Dense::size_bytes);
    let size_bytes = size * kept.len();
    let mut copy = pool.take_lent(size_bytes).map_or_else(|| pool.take(size_bytes), Ok)?;
    let bytes = copy.bytes();
    for slot in (0..kept.len()).filter(|&slot| kept[slot]) {
        let target = &mut bytes[slot * size..][..size];
        match values.iter().find(|(at, _)| *at == slot) {
            Some((_, Value::Tensor(tensor))) => {
                recipe.place(tensor, target).map_err(|error| error.at_stage(Stage::Assemble))?;
            }
            Some((_, Value::Array(array))) if array.bytes.len() == target.len() => {
                target.copy_from_slice(&array.bytes);
            }
            Some((_, other)) => return Err(Error::internal(format!("a batch of tensors got {other:?}"))),
            // SAFETY: a slot that counts, and has no value of its own, was filled in time by the one thread that had it;
            // late threads have other slots. So nobody writes to these bytes any more.
            None => target.copy_from_slice(unsafe { batch.slot(slot * size, size) }),
        }
    }
    pool.leave(batch);
    Ok(copy)
}

/// Closes the gaps that skipped samples leave in a dense batch.
pub(crate) fn compact(buffer: &mut Buffer, slot_bytes: usize, keep: &[bool]) {
    let bytes = buffer.bytes();
    let kept = (0..keep.len()).filter(|&slot| keep[slot]);
    for (target, slot) in kept.enumerate().filter(|(target, slot)| target != slot) {
        bytes.copy_within(slot * slot_bytes..(slot + 1) * slot_bytes, target * slot_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    use forebay_decode::{Dtype, Op, Order, Output, Pipeline, Tensor, TensorData};

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
    fn who_waits_for_memory_is_told_when_some_is_back() {
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
    fn who_is_told_may_let_go_of_other_batches_and_have_others_told() {
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
    fn a_batch_with_a_late_writer_is_copied_and_its_memory_stays_the_writers() {
        let pipeline = Pipeline::new(vec![Op::CenterCrop { size: 2.into() }, Op::ToTensor]).unwrap();
        let size = pipeline.layout().unwrap().size_bytes();
        let tensor = Tensor { channels: 3, height: 2, width: 2, data: TensorData::F32(vec![1.5; 12]) };
        let pool = Arc::new(BufferPool::new(2));
        let batch = Arc::new(pool.take(4 * size).unwrap());
        for slot in [0, 2] {
            // SAFETY: the only reference to this slot.
            unsafe { batch.slot(slot * size, size) }.fill(slot as u8 + 1);
        }
        let writer = Arc::clone(&batch);
        // SAFETY: as above; the late thread has it for longer than the batch lives.
        let late = unsafe { writer.slot(size, size) };
        let (kept, values) = ([true, true, true, false], [(1, Value::Tensor(tensor))]);
        let mut copy = copy_apart(&batch, &kept, &values, &pipeline, &pool).unwrap();
        late.fill(9);
        drop(batch);
        let slots: Vec<&[u8]> = copy.bytes()[..4 * size].chunks(size).collect();
        assert!(slots[0].iter().all(|&byte| byte == 1) && slots[2].iter().all(|&byte| byte == 3));
        assert_eq!(slots[1], [1.5_f32.to_ne_bytes(); 12].concat());
        assert!(slots[3].iter().all(|&byte| byte == 0), "a slot that does not count is not looked at");
        let counts = || {
            let idle = pool.idle();
            (idle.own.len(), idle.own_in_use)
        };
        assert_eq!(counts(), (0, 1), "only the copy counts as in use");
        drop(writer);
        assert_eq!(counts(), (1, 1), "the late one is back");
        drop(copy);
        assert_eq!(counts(), (2, 0));
    }

    #[test]
    fn what_is_too_much_goes_as_it_comes_back() {
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

    #[test]
    fn tensors_of_one_shape_become_a_batch_of_the_type_asked_for() {
        let tensor = |values: [f32; 2]| {
            Value::Tensor(Tensor { channels: 2, height: 1, width: 1, data: TensorData::F32(values.to_vec()) })
        };
        let pool = Arc::new(BufferPool::new(2));
        let output = |dtype| Output { dtype: Some(dtype), order: Order::Interleaved };
        let pipeline = |dtype| Pipeline::new(vec![]).unwrap().with_output(output(dtype)).unwrap();
        let values = || vec![tensor([1.0, -2.0]), tensor([0.5, 65504.0])];
        let stacked = stack(values(), &pipeline(Dtype::F16), &pool).unwrap();
        let Payload::Dense { mut buffer, layout } = stacked else { panic!("a dense batch is expected") };
        assert_eq!((layout.element, layout.order), (Dtype::F16.element(), Order::Interleaved));
        let expected: Vec<u8> = [0x3C00u16, 0xC000, 0x3800, 0x7BFF].into_iter().flat_map(u16::to_ne_bytes).collect();
        assert_eq!(buffer.bytes(), expected);
        let error = stack(values(), &pipeline(Dtype::U8), &pool).unwrap_err();
        assert_eq!((error.kind(), error.stage()), (Kind::Config, Some(Stage::Assemble)));
        let other = Value::Tensor(Tensor { channels: 1, height: 1, width: 1, data: TensorData::F32(vec![0.0]) });
        let mixed = stack(vec![tensor([0.0; 2]), other], &pipeline(Dtype::F16), &pool).unwrap();
        assert!(matches!(mixed, Payload::Values(values) if values.len() == 2));
    }

    #[test]
    fn gaps_are_closed_in_order() {
        let mut buffer = Arc::new(BufferPool::new(2)).take(8).unwrap();
        buffer.bytes().copy_from_slice(&[1, 1, 2, 2, 3, 3, 4, 4]);
        compact(&mut buffer, 2, &[true, false, true, true]);
        assert_eq!(buffer.bytes()[..6], [1, 1, 3, 3, 4, 4]);
    }
}
