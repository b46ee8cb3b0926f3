//! Arrays on the host that a GPU can copy from while both go on.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Element;
use crate::cuda::PinnedBlock;

/// An array of host memory, shared and never changed: ordinary memory, or page-locked memory from a [`Staging`], which a
/// GPU copies without the host's help.
pub struct HostArray<T> {
    memory: Arc<ArrayMemory<T>>,
}

enum ArrayMemory<T> {
    Pageable(Vec<T>),
    Pinned(BorrowedBlock, usize),
}

/// A block that returns to where it came from once nothing reads it any more.
struct BorrowedBlock {
    block: Option<PinnedBlock>,
    home: Staging,
}

/// Page-locked blocks that arrays are made in, each used again when the array before is gone. Empty on the host device,
/// where ordinary memory does as well.
#[derive(Clone, Default)]
pub struct Staging {
    free: Arc<Mutex<Vec<PinnedBlock>>>,
}

impl Staging {
    pub(crate) fn new(blocks: Vec<PinnedBlock>) -> Staging {
        Staging { free: Arc::new(Mutex::new(blocks)) }
    }

    /// An array of these values; in page-locked memory if a block that holds them is free. Any thread may make one.
    pub fn array<T: Element>(&self, values: HostArray<T>) -> HostArray<T> {
        let bytes = size_of_val::<[T]>(&values);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = (0..free.len()).filter(|&at| free[at].bytes() >= bytes).min_by_key(|&at| free[at].bytes());
        let Some(mut block) = fitting.map(|at| free.swap_remove(at)) else { return values };
        drop(free);
        block.fill::<T>(&values);
        let borrowed = BorrowedBlock { block: Some(block), home: self.clone() };
        HostArray { memory: Arc::new(ArrayMemory::Pinned(borrowed, values.len())) }
    }
}

impl Drop for BorrowedBlock {
    fn drop(&mut self) {
        let mut free = self.home.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(self.block.take());
    }
}

impl<T: Element> HostArray<T> {
    /// The page-locked memory the values are in, if they are.
    pub(crate) fn pinned(&self) -> Option<&PinnedBlock> {
        match &*self.memory {
            ArrayMemory::Pageable(_) => None,
            ArrayMemory::Pinned(borrowed, _) => borrowed.block.as_ref(),
        }
    }

    /// Keeps the memory as it is for as long as the returned value lives.
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
        match &*self.memory {
            ArrayMemory::Pageable(values) => values,
            ArrayMemory::Pinned(borrowed, count) => borrowed.block.as_ref().map_or(&[], |block| block.slice(*count)),
        }
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

/// A step's inputs and targets on the host, `(microbatches, micro batch, ...)` each.
#[derive(Clone, Debug, PartialEq)]
pub enum Batch {
    /// Token ids; targets are the next tokens, negative where there is none.
    Tokens {
        /// `(microbatches, batch, seq)`.
        inputs: HostArray<i32>,
        /// `(microbatches, batch, seq)`.
        targets: HostArray<i32>,
    },
    /// Rows of a regression.
    Rows {
        /// `(microbatches, batch, features)`.
        inputs: HostArray<f32>,
        /// `(microbatches, batch, outputs)`.
        targets: HostArray<f32>,
    },
}

impl Batch {
    /// The same batch in page-locked memory, where some is free.
    pub fn staged(self, staging: &Staging) -> Batch {
        match self {
            Batch::Tokens { inputs, targets } => {
                Batch::Tokens { inputs: staging.array(inputs), targets: staging.array(targets) }
            }
            Batch::Rows { inputs, targets } => {
                Batch::Rows { inputs: staging.array(inputs), targets: staging.array(targets) }
            }
        }
    }
}
