//! Memory in which every buffer of a step has bytes of its own. Nothing in it is planned, so no mistake of a plan shows in it.

use device::{ALIGNMENT, Area, BufferId, DType, Device, Shape, Tensor};

use crate::error::Result;
use crate::program::{Program, Taken};

/// Where the buffers of a recorded step lie, apart from each other.
pub(crate) struct Apart {
    area: Area,
    /// By index in the list's buffers.
    offsets: Vec<usize>,
}

impl Apart {
    /// Allocates the memory of a recorded step.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn new<R>(device: &Device, program: &Program<R>) -> Result<Apart> {
        let mut end = 0;
        let offset = |buffer: &Taken| {
            end += buffer.bytes.next_multiple_of(ALIGNMENT);
            end - buffer.bytes.next_multiple_of(ALIGNMENT)
        };
        let offsets = program.buffers.iter().map(offset).collect();
        Ok(Apart { area: device.allocate("memory of a step that is verified", end)?, offsets })
    }

    /// The bytes that a recorded step needs.
    pub(crate) fn bytes<R>(program: &Program<R>) -> usize {
        program.buffers.iter().map(|buffer| buffer.bytes.next_multiple_of(ALIGNMENT)).sum()
    }

    /// The buffer of that index, which is `taken`.
    pub(crate) fn place(&self, index: usize, taken: BufferId, shape: Shape, dtype: DType) -> Tensor {
        self.area.place(taken, self.offsets[index], shape, dtype)
    }

    /// The address of the buffer of that index.
    pub(crate) fn address(&self, index: usize) -> u64 {
        self.area.address() + self.offsets[index] as u64
    }
}
