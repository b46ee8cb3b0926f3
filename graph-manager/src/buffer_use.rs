//! The memory plan of a step as others read it.

use std::fmt::Display;
use std::hash::Hash;

use device::StreamId;

use crate::plan::{AreaKind, Plan};
use crate::policy::Policy;
use crate::recording::Recording;

/// A buffer of a step. Its times are positions in the recorded step, both included. Two buffers that share bytes of an area
/// are never in use at the same time.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BufferUse {
    /// What the step calls it.
    pub name: String,
    /// The region that takes it.
    pub region: String,
    /// The area that it lies in, as [`MemoryUse`](crate::MemoryUse) names it.
    pub area: String,
    /// Its place in the area, bytes.
    pub offset: usize,
    /// Its size.
    pub bytes: usize,
    /// When it is first used.
    pub first: usize,
    /// When it is last used.
    pub last: usize,
}

impl<R: Copy + Eq + Hash + Display + 'static> Plan<R> {
    /// Where the buffers of a recorded step lie, in the order in which the step takes them.
    pub(crate) fn buffers(
        &self,
        recording: &Recording<R>,
        policy: &impl Policy<Region = R>,
        compute: StreamId,
    ) -> Vec<BufferUse> {
        let placed = recording.buffers.iter().filter_map(|buffer| {
            let visit = &recording.order[buffer.visit];
            let key = self.key(policy, visit.region, recording.microbatches);
            let placement = self.placements.get(&(key, buffer.index))?;
            let used = recording.used(buffer, compute);
            let used = match placement.area {
                AreaKind::Scratch(_) => used.in_its_stream().unwrap_or(used),
                AreaKind::Slot { .. } | AreaKind::Step => used,
            };
            Some(BufferUse {
                name: buffer.name.into(),
                region: visit.name.to_string(),
                area: placement.area.to_string(),
                offset: placement.offset,
                bytes: buffer.bytes,
                first: used.first,
                last: used.last,
            })
        });
        placed.collect()
    }
}
