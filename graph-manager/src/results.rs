//! What a recorded step leaves written: after each of its regions, and at its end.

use std::collections::{BTreeMap, HashMap};

use device::{BufferId, DType, Shape, StreamId, Tensor};

use crate::manager::CudaGraphManager;
use crate::policy::Policy;
use crate::recording::{Recording, Write};

/// What is compared when a step is verified: groups of tensors, each as its last operation left it.
pub(crate) struct Results {
    /// By visit: what the region leaves that was submitted there, on its own or as a graph.
    pub(crate) after: BTreeMap<usize, Vec<Write>>,
    /// At the end of the step: what lies outside of its plan.
    pub(crate) at_end: Vec<Write>,
}

impl<R> Recording<R> {
    /// The buffers that regions took, each with its index in `buffers`.
    pub(crate) fn by_buffer(&self) -> HashMap<BufferId, usize> {
        self.buffers.iter().enumerate().map(|(at, taken)| (taken.buffer, at)).collect()
    }

    /// The bytes outside of the plan that the step writes, each once: its state.
    pub(crate) fn state(&self) -> Vec<Tensor> {
        let planned = self.by_buffer();
        let outside = self.writes.iter().filter(|write| !planned.contains_key(&write.tensor.buffer));
        let mut ranges: Vec<(BufferId, u64, u64)> =
            outside.map(|Write { tensor, .. }| (tensor.buffer, tensor.range().start, tensor.range().end)).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(BufferId, u64, u64)> = Vec::new();
        for (buffer, start, end) in ranges {
            match merged.last_mut().filter(|(of, _, until)| *of == buffer && start <= *until) {
                Some((.., until)) => *until = end.max(*until),
                None => merged.push((buffer, start, end)),
            }
        }
        let bytes = |(buffer, address, end): (BufferId, u64, u64)| {
            let shape = Shape::new(&[(end - address) as usize]);
            Tensor { address, shape, dtype: DType::U8, buffer }
        };
        merged.into_iter().map(bytes).collect()
    }
}

impl<P: Policy> CudaGraphManager<P> {
    /// What the step of a recording leaves written at its end.
    pub(crate) fn results_at_end(&self, recording: &Recording<P::Region>) -> Results {
        let planned = recording.by_buffer();
        let outside = recording.writes.iter().filter(|write| !planned.contains_key(&write.tensor.buffer));
        Results { after: BTreeMap::new(), at_end: last_of_each(outside.copied().collect()) }
    }

    /// What the step of a recording leaves written after each region. Where the memory of a buffer is used again within the
    /// region, its values are gone at the region's end. `place` says where a tensor of the recording lies in the plan.
    pub(crate) fn results_by_region(
        &self,
        recording: &Recording<P::Region>,
        planned: &HashMap<BufferId, usize>,
        place: impl Fn(&Tensor) -> Tensor,
    ) -> Results {
        let compute = self.pool.compute().id();
        let mut after = BTreeMap::new();
        for (visit, eager) in self.submitted(recording) {
            let of = &recording.order[visit];
            let first = recording.writes.partition_point(|write| write.position < of.start);
            let end = recording.writes.partition_point(|write| write.position < of.end);
            // The regions inside an eager one are submitted on their own.
            let own = |write: &&Write| eager.is_none() || recording.innermost(write.position) == Some(visit);
            let writes = last_of_each(recording.writes[first..end].iter().filter(own).copied().collect());
            let placed: Vec<Tensor> = writes.iter().map(|write| place(&write.tensor)).collect();
            let survives = |at: &usize| {
                let mut later = placed[at + 1..].iter();
                let overwritten = later.any(|later| later.buffer != placed[*at].buffer && overlap(later, &placed[*at]));
                !overwritten && !self.is_poisoned(recording, planned, &writes[*at], of.end, compute)
            };
            after.insert(visit, (0..writes.len()).filter(survives).map(|at| writes[at]).collect());
        }
        Results { after, ..self.results_at_end(recording) }
    }

    /// Whether poison lies over a buffer at that position.
    fn is_poisoned(
        &self,
        recording: &Recording<P::Region>,
        planned: &HashMap<BufferId, usize>,
        write: &Write,
        position: usize,
        compute: StreamId,
    ) -> bool {
        let buffer = planned.get(&write.tensor.buffer).map(|&at| &recording.buffers[at]);
        self.options.poison && buffer.is_some_and(|buffer| recording.used(buffer, compute).last < position)
    }
}

fn overlap(a: &Tensor, b: &Tensor) -> bool {
    a.range().start < b.range().end && b.range().start < a.range().end
}

/// The last write of each tensor, in order.
fn last_of_each(writes: Vec<Write>) -> Vec<Write> {
    let last: HashMap<_, usize> =
        writes.iter().enumerate().map(|(at, write)| ((write.tensor.address, write.tensor.bytes()), at)).collect();
    let is_last = |(at, write): &(usize, &Write)| last[&(write.tensor.address, write.tensor.bytes())] == *at;
    writes.iter().enumerate().filter(is_last).map(|(_, write)| *write).collect()
}
