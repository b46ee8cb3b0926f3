//! Safe access to the tensors of a custom operation.

use std::ops::Range;

use super::{Pool, view};
use crate::ops::{Custom, Operation};
use crate::{Element, Error, Result, Tensor};

/// The tensors that a custom operation declared, as slices of host memory, and the device's threads.
///
/// A slice can be taken of a declared tensor or of a part of one. Memory that is taken to write is taken once and by
/// nobody else. For an update in place take only [`HostTensors::write`]: its slice holds the values so far.
pub struct HostTensors<'a> {
    op: &'a Custom,
    pool: &'a Pool,
    /// Placed memory that slices were taken of, and whether to write.
    taken: Vec<(Range<u64>, bool)>,
}

impl<'a> HostTensors<'a> {
    pub(super) fn new(op: &'a Custom, pool: &'a Pool) -> HostTensors<'a> {
        HostTensors { op, pool, taken: Vec::new() }
    }

    /// The device's threads.
    pub fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// The elements of a tensor that the operation declared to read.
    ///
    /// # Errors
    /// The tensor is not declared so, is of another type than `T`, or was taken to write.
    pub fn read<T: Element>(&mut self, tensor: &Tensor) -> Result<&'a [T]> {
        let placed = self.take::<T>(tensor, false)?;
        Ok(view::read(&placed))
    }

    /// The elements of a tensor that the operation declared to write. They hold its values so far. These mean something
    /// only if the operation declared to read them too.
    ///
    /// # Errors
    /// The tensor is not declared so, is of another type than `T`, or was taken before.
    pub fn write<T: Element>(&mut self, tensor: &Tensor) -> Result<&'a mut [T]> {
        let placed = self.take::<T>(tensor, true)?;
        Ok(view::write(&placed))
    }

    /// Checks that a slice may be taken, and notes it. Returns the tensor at its place.
    fn take<T: Element>(&mut self, tensor: &Tensor, to_write: bool) -> Result<Tensor> {
        let (verb, placed) = match to_write {
            true => ("write", self.op.placed_write(tensor)),
            false => ("read", self.op.placed_read(tensor)),
        };
        let refuse = |problem: String| Err(Error::operation(self.op.name(), problem));
        let shape = tensor.shape;
        if tensor.dtype != T::DTYPE {
            return refuse(format!("took a tensor {shape:?} of {} as {}", tensor.dtype, T::DTYPE));
        }
        let Some(placed) = placed else {
            return Err(self.op.undeclared(tensor, verb));
        };
        let range = placed.range();
        if !range.start.is_multiple_of(align_of::<T>() as u64) {
            return refuse(format!("took a tensor {shape:?} that does not begin at a whole {}", T::DTYPE));
        }
        let overlaps = |other: &Range<u64>| range.start < other.end && other.start < range.end;
        if self.taken.iter().any(|(other, written)| (to_write || *written) && overlaps(other)) {
            let rule = "Rule: memory that is written is taken once. Fix: for an update in place take HostTensors::write \
                        alone";
            return refuse(format!("took a tensor {shape:?} to {verb}, and took its memory before. {rule}"));
        }
        self.taken.push((range, to_write));
        Ok(placed)
    }
}
