//! The tensors that an operation reads and writes.

use crate::Tensor;

/// The tensors an operation reads and those it writes; one that is updated in place is in both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Read.
    pub reads: Vec<Tensor>,
    /// Written.
    pub writes: Vec<Tensor>,
}

impl Accesses {
    /// Starts from the tensors that are always read and written.
    pub fn new(reads: impl IntoIterator<Item = Tensor>, writes: impl IntoIterator<Item = Tensor>) -> Accesses {
        Accesses { reads: reads.into_iter().collect(), writes: writes.into_iter().collect() }
    }

    /// Adds optional reads.
    pub fn reads(mut self, tensors: impl IntoIterator<Item = Tensor>) -> Accesses {
        self.reads.extend(tensors);
        self
    }

    /// Adds optional writes.
    pub fn writes(mut self, tensors: impl IntoIterator<Item = Tensor>) -> Accesses {
        self.writes.extend(tensors);
        self
    }

    /// All tensors: those read, then those written.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.reads.iter().chain(&self.writes)
    }

    /// Whether one operation writes memory that the other reads or writes, so that the order of the two matters.
    pub fn conflicts(&self, other: &Accesses) -> bool {
        let meet = |a: &[Tensor], b: &[Tensor]| a.iter().any(|a| b.iter().any(|b| overlap(a, b)));
        meet(&self.writes, &other.writes) || meet(&self.writes, &other.reads) || meet(&self.reads, &other.writes)
    }
}

/// Whether two tensors have bytes in common. Tensors beyond the end of addresses have none: they are refused elsewhere.
pub(crate) fn overlap(a: &Tensor, b: &Tensor) -> bool {
    let (Some(a), Some(b)) = (a.checked_range(), b.checked_range()) else { return false };
    a.start < b.end && b.start < a.end
}
