//! Arrays on the host that a GPU can copy from asynchronously.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Element;
use crate::cuda::{PinnedMemory, PrimaryContext};

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
    /// Whether they are the whole array.
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

/// A block that returns to its [`Staging`] when the last array in it is dropped.
struct BorrowedMemory {
    block: Option<PinnedMemory>,
    home: Staging,
}

/// Page-locked blocks for arrays. A block is reused once its array is dropped. Empty on the host device: ordinary
/// memory serves as well there.
#[derive(Clone, Default)]
pub struct Staging {
    shared: Arc<Shared>,
}

/// Fields drop in order: the blocks, then the context.
#[derive(Default)]
struct Shared {
    free: Mutex<Vec<PinnedMemory>>,
    /// The driver frees page-locked memory with its context. A thread may still write to a block when the device is gone.
    _context: Option<Arc<PrimaryContext>>,
}

impl Staging {
    pub(crate) fn new(blocks: Vec<PinnedMemory>, context: Arc<PrimaryContext>) -> Staging {
        Staging { shared: Arc::new(Shared { free: Mutex::new(blocks), _context: Some(context) }) }
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

    /// The smallest free block of at least `bytes` bytes.
    fn take(&self, bytes: usize) -> Option<BorrowedMemory> {
        let mut free = self.shared.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = (0..free.len()).filter(|&at| free[at].bytes() >= bytes).min_by_key(|&at| free[at].bytes())?;
        Some(BorrowedMemory { block: Some(free.swap_remove(fitting)), home: self.clone() })
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
    pub(crate) fn pinned(&self) -> Option<&PinnedMemory> {
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
