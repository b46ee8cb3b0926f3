//! The memory that operations need.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use device::{Accesses, Device};
use engine::regions::Mode;
use engine::step::Stage;
use graph_manager::BufferUse;
use serde::{Deserialize, Serialize};
use trainer::report::replay_picture::largest_training_step;

/// The memory of all operations of one name, shape and type, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct OpMemory {
    /// The operation, such as `gemm`.
    pub name: String,
    /// Rows, columns and inner size of a product; otherwise the shape of the output.
    pub shape: String,
    /// The type of a product's factors. Empty for other operations.
    #[serde(rename = "type")]
    pub dtype: String,
    /// The tensors that one such operation reads and writes, weights included.
    pub tensors: usize,
    /// Scratch memory.
    pub scratch: usize,
    /// The largest sum of the plan's buffers on the device that are in use while one runs.
    pub in_use: usize,
}

/// The memory of the operations of a stage's training step, those first that run while most is in use.
pub(super) fn op_memory(stage: &mut Stage, microbatches: usize, device: &Device) -> Vec<OpMemory> {
    let report = stage.graphs().report();
    let buffers = largest_training_step(&report).map_or(&[][..], |step| &step.buffers);
    let in_use = InUse::of(buffers);
    let mut kinds: BTreeMap<(&'static str, String, String), OpMemory> = BTreeMap::new();
    stage.graphs().list(Mode::Train.into(), microbatches, |entry| {
        let Some(op) = &entry.op else { return };
        let (name, shape, dtype) = (op.name(), op.shape(), op.factor_type().map_or(String::new(), |of| of.to_string()));
        let known = kinds.entry((name, shape.clone(), dtype.clone())).or_insert_with(|| {
            let (tensors, scratch) = (bytes_of(&entry.accesses), device.scratch_bytes(op));
            OpMemory { name: name.into(), shape, dtype, tensors, scratch, in_use: 0 }
        });
        known.in_use = known.in_use.max(in_use.at(entry.position));
    });
    let mut all: Vec<OpMemory> = kinds.into_values().collect();
    all.sort_by_key(|kind| Reverse((kind.in_use, kind.tensors + kind.scratch)));
    all
}

/// Bytes of tensors, each counted once.
fn bytes_of(accesses: &Accesses) -> usize {
    let mut ranges: Vec<_> = accesses.reads.iter().chain(&accesses.writes).map(|tensor| tensor.range()).collect();
    ranges.sort_by_key(|range| (range.start, range.end));
    let (mut bytes, mut counted) = (0, 0);
    for range in ranges {
        bytes += range.end.saturating_sub(range.start.max(counted));
        counted = counted.max(range.end);
    }
    bytes as usize
}

/// Bytes in use from a position on, up to that of the next entry.
struct InUse(BTreeMap<usize, usize>);

impl InUse {
    fn of(buffers: &[BufferUse]) -> InUse {
        let mut changes: BTreeMap<usize, i64> = BTreeMap::new();
        for buffer in buffers.iter().filter(|buffer| !buffer.area.ends_with(" on the host")) {
            *changes.entry(buffer.first).or_default() += buffer.bytes as i64;
            *changes.entry(buffer.last + 1).or_default() -= buffer.bytes as i64;
        }
        let mut now = 0;
        InUse(
            changes
                .into_iter()
                .map(|(position, change)| {
                    now += change;
                    (position, now as usize)
                })
                .collect(),
        )
    }

    fn at(&self, position: usize) -> usize {
        self.0.range(..=position).next_back().map_or(0, |(_, bytes)| *bytes)
    }
}

#[cfg(test)]
mod tests {
    use device::{BufferId, DType, Tensor};

    use super::*;

    #[test]
    fn bytes_that_two_tensors_share_count_once() {
        let tensor = |address, elements: usize| Tensor {
            address,
            shape: [elements].into(),
            dtype: DType::F32,
            buffer: BufferId::NOTHING,
        };
        let whole = tensor(1024, 8);
        assert_eq!(bytes_of(&Accesses::new([whole, tensor(1040, 2)], [whole])), 32);
        assert_eq!(bytes_of(&Accesses::new([whole, tensor(1048, 4)], [tensor(4096, 1)])), 24 + 16 + 4);
        assert_eq!(bytes_of(&Accesses::default()), 0);
    }

    #[test]
    fn a_buffer_is_in_use_from_its_first_to_its_last_position() {
        let buffer = |bytes, first, last| BufferUse {
            name: "b".into(),
            region: "r".into(),
            area: "step".into(),
            offset: 0,
            bytes,
            first,
            last,
        };
        let in_use = InUse::of(&[buffer(10, 1, 3), buffer(5, 3, 3), buffer(7, 5, 9)]);
        assert_eq!([0, 1, 2, 3, 4, 5, 9, 10].map(|position| in_use.at(position)), [0, 10, 10, 15, 0, 7, 7, 0]);
    }
}
