//! The part of a parameter or of a bucket that a rank updates.

use std::ops::Range;

use device::Tensor;
use parallel::Place;

/// The elements of a parameter's stored values, or of a bucket, that this rank updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnedRange {
    /// The index of the first element.
    pub first: usize,
    /// The number of elements, possibly none.
    pub elements: usize,
}

impl OwnedRange {
    /// The part of `elements` that the rank at `place` updates: all or nothing if there is an `owner`, else an equal part.
    pub(super) fn of(elements: usize, place: Place, owner: Option<usize>) -> OwnedRange {
        let part = elements / place.count;
        match owner {
            None => OwnedRange { first: place.index * part, elements: part },
            Some(owner) if owner == place.index => OwnedRange { first: 0, elements },
            Some(_) => OwnedRange::default(),
        }
    }

    /// The owned elements of a tensor, flat.
    pub(crate) fn of_tensor(self, tensor: Tensor) -> Tensor {
        tensor.view(self.first, [self.elements])
    }

    /// The indices of the elements.
    pub fn range(self) -> Range<usize> {
        self.first..self.first + self.elements
    }

    /// The indices that also lie in `range`.
    pub fn within(self, range: Range<usize>) -> Range<usize> {
        let owned = self.range();
        let start = owned.start.max(range.start);
        start..owned.end.min(range.end).max(start)
    }
}
