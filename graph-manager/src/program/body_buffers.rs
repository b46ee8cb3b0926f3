//! The buffers that bodies of `when`s have alone, and what else may not touch such a buffer.

use std::collections::HashSet;

use device::ops::When;
use device::{Accesses, BufferId, Op, Tensor};

use super::body::Work;
use super::refused::Refused;

/// The buffers that only the bodies of a step's `when`s use.
#[derive(Default)]
pub(super) struct BodyBuffers(HashSet<BufferId>);

impl BodyBuffers {
    /// The first of `tensors` that a body has alone, if one is there.
    pub(super) fn first_of(&self, tensors: &[Tensor]) -> Option<BufferId> {
        tensors.iter().map(|tensor| tensor.buffer).find(|buffer| self.0.contains(buffer))
    }

    /// Adds the bodies' buffers of the next entry of the list. Returns why it is refused: it uses a buffer of another
    /// body, or its own body alone would give values to a buffer that is `unused` so far. A `when` that comes again has
    /// the same buffers for itself: its body writes them anew.
    pub(super) fn add(
        &mut self,
        work: &Work,
        accesses: &Accesses,
        unused: impl Fn(BufferId) -> bool,
    ) -> Option<Refused> {
        let (name, when) = match work {
            Work::Op(op) => (op.name(), when_of(op)),
            Work::Host(call) => (call.name, None),
        };
        let is_left =
            |tensor: &&Tensor| self.0.contains(&tensor.buffer) && !when.is_some_and(|when| when.is_own(tensor));
        let left = accesses.reads.iter().chain(&accesses.writes).find(is_left);
        let left = left.map(|tensor| Refused::LeftBody(name, tensor.buffer));
        let Some(when) = when else { return left };
        self.0.extend(when.all_own().iter().map(|tensor| tensor.buffer));
        let mut written = accesses.writes.iter().map(|tensor| tensor.buffer);
        let unwritten = written.find(|buffer| unused(*buffer) && !self.0.contains(buffer));
        left.or(unwritten.map(|buffer| Refused::Unwritten(name, buffer)))
    }
}

fn when_of(op: &Op) -> Option<&When> {
    if let Op::When(when) = op { Some(when) } else { None }
}
