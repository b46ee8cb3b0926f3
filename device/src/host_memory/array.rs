//! Arrays on the host that a GPU can copy from asynchronously.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::block::HostBlock;
use crate::cuda::PrimaryContext;
use crate::{Element, Error};

/// A shared, immutable array in host memory. Its memory is ordinary, or page-locked memory of a [`Staging`]. A GPU
/// copies page-locked memory without the host's help.
pub struct HostArray<T> {
    memory: Arc<ArrayMemory<T>>,
}

/// Columns of an array, seen as a matrix.
#[derive(Clone, Copy)]
pub(crate) struct ArrayColumns {
    pub(crate) rows: usize,
    /// Values of a row of the array.
    pub(crate) width: usize,
    /// The first column.
    pub(crate) first: usize,
    /// The number of columns.
    pub(crate) count: usize,
}

impl ArrayColumns {
    /// Whether the columns are the whole array.
    pub(crate) fn is_all(self) -> bool {
        self.count == self.width
    }

    /// The values, row by row.
    pub(crate) fn of<T: Element>(self, values: &[T]) -> Cow<'_, [T]> {
        if self.is_all() {
            return values.into();
        }
        let rows = values.chunks_exact(self.width);
        rows.flat_map(|row| &row[self.first..self.first + self.count]).copied().collect()
    }
}

/// A [`HostArray`] of one of the types that training data have.
#[derive(Clone, Debug, PartialEq)]
pub enum HostValues {
    /// Token ids.
    I32(HostArray<i32>),
    /// Numbers.
    F32(HostArray<f32>),
}

enum ArrayMemory<T> {
    Pageable(Vec<T>),
    /// A block, and the number of values in it.
    Pinned(BorrowedMemory, usize),
}

/// A block that returns to its [`Staging`] when it is dropped.
pub(crate) struct BorrowedMemory {
    block: Option<HostBlock>,
    home: Staging,
}

/// Page-locked blocks for arrays and for copies. A block is reused once its array or copy is dropped. Empty on the host
/// device: ordinary memory serves as well there.
#[derive(Clone, Default)]
pub struct Staging {
    shared: Arc<Shared>,
}

/// Fields drop in order: the blocks, then the context.
#[derive(Default)]
struct Shared {
    free: Mutex<Vec<HostBlock>>,
    /// The context in which the driver unlocks memory. A thread may still write to a block when the device is gone.
    context: Option<Arc<PrimaryContext>>,
}

impl Staging {
    pub(crate) fn new(blocks: Vec<HostBlock>, context: Arc<PrimaryContext>) -> Staging {
        Staging { shared: Arc::new(Shared { free: Mutex::new(blocks), context: Some(context) }) }
    }

    /// An array of `count` values, written by `fill`. It is in page-locked memory if a block that is large enough is
    /// free, else in ordinary memory. Before `fill` the content of the memory is unspecified. Any thread may call this.
    ///
    /// # Errors
    /// The error of `fill`.
    pub fn array<T: Element, E>(
        &self,
        count: usize,
        fill: impl FnOnce(&mut [T]) -> Result<(), E>,
    ) -> Result<HostArray<T>, E> {
        let mut memory = match self.take(count * size_of::<T>()) {
            Some(block) => ArrayMemory::Pinned(block, count),
            None => ArrayMemory::Pageable(vec![T::zeroed(); count]),
        };
        fill(memory.values_mut())?;
        Ok(HostArray { memory: Arc::new(memory) })
    }

    /// Begins to lock more blocks, of `sizes` bytes, on another thread. Does nothing on the host device.
    pub fn grow(&self, sizes: Vec<usize>) -> Growth {
        let staging = self.clone();
        let Some(context) = self.shared.context.clone() else { return Growth { thread: Ok(None) } };
        let work = move || {
            let began = Instant::now();
            context.enter()?;
            for &bytes in &sizes {
                let block = HostBlock::locked(bytes)?;
                staging.shared.free.lock().unwrap_or_else(PoisonError::into_inner).push(block);
            }
            let (bytes, seconds) = (sizes.iter().sum::<usize>(), began.elapsed().as_secs_f64());
            tracing::info!(bytes, seconds, "host memory is page-locked");
            Ok(())
        };
        let thread = std::thread::Builder::new().name("page-locked memory".into()).spawn(work);
        Growth { thread: thread.map(Some).map_err(|error| Error::operation("staging", format!("no thread: {error}"))) }
    }

    /// Makes the GPU's context current on this thread, if there is a GPU.
    pub(crate) fn enter(&self) -> Result<(), Error> {
        self.shared.context.as_ref().map_or(Ok(()), |context| context.enter())
    }

    /// A block of at least `bytes` bytes: a free one, else ordinary memory.
    pub(crate) fn block(&self, bytes: usize) -> BorrowedMemory {
        let ordinary = || BorrowedMemory { block: Some(HostBlock::ordinary(bytes)), home: Staging::default() };
        self.take(bytes).unwrap_or_else(ordinary)
    }

    /// The smallest free block of at least `bytes` bytes.
    fn take(&self, bytes: usize) -> Option<BorrowedMemory> {
        let mut free = self.shared.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = (0..free.len()).filter(|&at| free[at].bytes() >= bytes).min_by_key(|&at| free[at].bytes())?;
        Some(BorrowedMemory { block: Some(free.swap_remove(fitting)), home: self.clone() })
    }
}

/// Memory of a [`Staging`] that is being locked.
pub struct Growth {
    thread: Result<Option<JoinHandle<Result<(), Error>>>, Error>,
}

impl Growth {
    /// Waits until the memory is locked.
    ///
    /// # Errors
    /// The system cannot lock that much, or has no more threads. The blocks that it did lock are there.
    pub fn wait(self) -> Result<(), Error> {
        let joined = self.thread?.map_or(Ok(Ok(())), JoinHandle::join);
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl BorrowedMemory {
    /// The block.
    pub(crate) fn block_mut(&mut self) -> &mut HostBlock {
        self.block.as_mut().unwrap_or_else(|| unreachable!("it is there until this is dropped"))
    }

    /// The memory's first bytes.
    pub(crate) fn bytes(&self, count: usize) -> &[u8] {
        self.block.as_ref().map_or(&[], |block| block.slice(count))
    }
}

impl Drop for BorrowedMemory {
    fn drop(&mut self) {
        let mut free = self.home.shared.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(self.block.take());
    }
}

impl<T: Element> ArrayMemory<T> {
    fn values(&self) -> &[T] {
        match self {
            ArrayMemory::Pageable(values) => values,
            ArrayMemory::Pinned(borrowed, count) => borrowed.block.as_ref().map_or(&[], |block| block.slice(*count)),
        }
    }

    fn values_mut(&mut self) -> &mut [T] {
        match self {
            ArrayMemory::Pageable(values) => values,
            ArrayMemory::Pinned(borrowed, count) => {
                borrowed.block.as_mut().map_or(&mut [], |block| block.slice_mut(*count))
            }
        }
    }
}

impl<T: Element> HostArray<T> {
    /// The page-locked memory of the values. `None` if they are in ordinary memory.
    pub(crate) fn pinned(&self) -> Option<&HostBlock> {
        match &*self.memory {
            ArrayMemory::Pageable(_) => None,
            ArrayMemory::Pinned(borrowed, _) => borrowed.block.as_ref(),
        }
    }

    /// Keeps the memory for as long as the returned value lives.
    pub(crate) fn hold(&self) -> Arc<dyn Any + Send + Sync> {
        self.memory.clone()
    }
}

impl<T> From<Vec<T>> for HostArray<T> {
    fn from(values: Vec<T>) -> HostArray<T> {
        HostArray { memory: Arc::new(ArrayMemory::Pageable(values)) }
    }
}

impl<T: Element> FromIterator<T> for HostArray<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> HostArray<T> {
        Vec::from_iter(values).into()
    }
}

impl<T: Element> Deref for HostArray<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.memory.values()
    }
}

impl<T> Clone for HostArray<T> {
    fn clone(&self) -> HostArray<T> {
        HostArray { memory: self.memory.clone() }
    }
}

impl<T: Element + PartialEq> PartialEq for HostArray<T> {
    fn eq(&self, other: &HostArray<T>) -> bool {
        **self == **other
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for HostArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
