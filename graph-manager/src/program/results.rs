//! The tensors that a list writes.

use device::{BufferId, DType, Op, Shape, Tensor};

use super::body::Work;
use super::data::{OUTSIDE, Program};
use super::expand::{EntryOrJoin, Expanded};

/// A tensor that an entry writes. In a buffer that a region took it has an address of the recording's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) position: u32,
    /// The entry's name.
    pub(crate) op: &'static str,
    pub(crate) tensor: Tensor,
    /// Whether the tensor belongs to a body alone: its values mean nothing afterwards.
    pub(crate) is_own: bool,
}

impl<R: Copy + Eq + std::hash::Hash + std::fmt::Display> Program<R> {
    /// All writes of entries, in order.
    pub(crate) fn writes(&self) -> Vec<Write> {
        let mut writes = Vec::new();
        self.walk(|position, step| {
            let EntryOrJoin::Entry(Expanded { entry, table, .. }) = step else { return };
            let (op, tensors) = match &entry.work {
                Work::Op(op) => (op.name(), op.accesses().writes),
                Work::Host(call) => (call.name, call.accesses.writes.clone()),
            };
            let is_own = |tensor: &Tensor| match &entry.work {
                Work::Op(op) => matches!(&**op, Op::When(when) if when.is_own(tensor)),
                Work::Host(_) => false,
            };
            let write = |tensor: Tensor| {
                let is_own = is_own(&tensor);
                Write { position, op, tensor: self.recorded(table, tensor), is_own }
            };
            writes.extend(tensors.into_iter().map(write));
        });
        writes
    }

    /// The bytes outside of the plan that the step writes, each once: its state.
    pub(crate) fn state(&self) -> Vec<Tensor> {
        let mut ranges: Vec<(BufferId, u64, u64)> = Vec::new();
        self.walk(|_, step| {
            let EntryOrJoin::Entry(entry) = step else { return };
            let written = entry.uses().filter(|(index, each)| !Self::is_taken(*index) && each.writes);
            ranges.extend(written.map(|(index, each)| {
                let buffer = self.outside[(index & !OUTSIDE) as usize];
                (buffer, each.start, each.end)
            }));
        });
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
