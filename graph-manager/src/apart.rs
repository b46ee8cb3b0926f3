//! Memory in which every buffer of a step has bytes of its own. Nothing in it is planned, so no mistake of a plan shows in it.

use std::collections::HashMap;
use std::hash::Hash;

use device::{ALIGNMENT, Area, BufferId, DType, Device, Shape, Tensor};

use crate::error::Result;
use crate::recording::Recording;

/// Where the buffers of a recorded step lie, apart from each other.
pub(crate) struct Apart {
    area: Area,
    /// By visit and number within it.
    places: HashMap<(usize, usize), (BufferId, usize)>,
}

impl Apart {
    /// Allocates the memory of a recorded step.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn new<R: Copy + Eq + Hash + std::fmt::Display>(
        device: &Device,
        recording: &Recording<R>,
    ) -> Result<Apart> {
        let mut end = 0;
        let mut places = HashMap::new();
        for buffer in &recording.buffers {
            places.insert((buffer.visit, buffer.index), (buffer.buffer, end));
            end += buffer.bytes.next_multiple_of(ALIGNMENT);
        }
        Ok(Apart { area: device.allocate("memory of a step that is verified", end)?, places })
    }

    /// The bytes that a recorded step needs.
    pub(crate) fn bytes<R>(recording: &Recording<R>) -> usize {
        recording.buffers.iter().map(|buffer| buffer.bytes.next_multiple_of(ALIGNMENT)).sum()
    }

    /// The buffer of that number of a visit.
    pub(crate) fn place(&self, visit: usize, index: usize, shape: Shape, dtype: DType) -> Tensor {
        let (buffer, offset) = self.places[&(visit, index)];
        self.area.place(buffer, offset, shape, dtype)
    }

    /// The address of the buffer of that number of a visit.
    pub(crate) fn address(&self, visit: usize, index: usize) -> u64 {
        self.area.address() + self.places[&(visit, index)].1 as u64
    }
}
