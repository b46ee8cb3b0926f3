//! The memory plan of a step, for readers outside of this crate.

use std::fmt::Display;
use std::hash::Hash;

use device::Device;

use crate::memory::{AreaKind, Plan};
use crate::program::Program;

/// A buffer of a step. Its times are positions in the recorded step, both included. Two buffers that share bytes of an
/// area are never in use at the same time.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BufferUse {
    /// The buffer's name in the step.
    pub name: String,
    /// The region that takes the buffer.
    pub region: String,
    /// The buffer's area, named as in [`MemoryUse`](crate::MemoryUse).
    pub area: String,
    /// The buffer's place in the area, bytes.
    pub offset: usize,
    /// The buffer's size.
    pub bytes: usize,
    /// The position of the buffer's first use.
    pub first: usize,
    /// The position of the buffer's last use.
    pub last: usize,
}

impl<R: Copy + Eq + Hash + Display + 'static> Plan<R> {
    /// The buffers of a step, each with a place, in the order in which the step takes buffers. `planned` is the list
    /// that the plan is made from.
    pub(crate) fn buffers(&self, program: &Program<R>, planned: &Program<R>, device: &Device) -> Vec<BufferUse> {
        let placed = program.taken_in_order().enumerate().filter_map(|(at, (buffer, index))| {
            let visit = &program.visits[buffer.visit()];
            let stands_for_it = self.visit(&self.key(visit, program.microbatches))?;
            let (placement, name) = self.placement(planned, stands_for_it, index)?;
            let used = program.used(at);
            let used = match placement.area {
                AreaKind::Scratch(_) => used.in_its_stream().unwrap_or(used),
                AreaKind::Slot { .. } | AreaKind::Step(_) => used,
            };
            Some(BufferUse {
                name: name.into(),
                region: visit.name.to_string(),
                area: placement.area.name(device),
                offset: placement.offset,
                bytes: buffer.bytes,
                first: used.first as usize,
                last: used.last as usize,
            })
        });
        placed.collect()
    }
}
