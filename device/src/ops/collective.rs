//! Communication as an operation of a stream.

use std::rc::Rc;

use super::{
    Accesses, HasTensors, Operation, RowsOfRanks, ensure, ensure_apart, ensure_dtype, ensure_elements, ensure_float,
};
use crate::communicator::CollectiveKind;
use crate::{Communicator, DType, Request, Result, Tensor};

/// A transfer between the ranks of a communicator. All of its ranks submit their collectives in the same order; sends
/// and receives match by sender and receiver, in order.
#[derive(Clone, Debug)]
pub struct Collective {
    /// The kind of transfer.
    pub kind: CollectiveKind,
    /// The group of ranks.
    pub communicator: Rc<dyn Communicator>,
    /// f32 or bf16, or another type but u16 if nothing is summed or compared; any shape. A receive has no input:
    /// the same tensor as `output`.
    pub input: Tensor,
    /// Of the same type; may be `input`, but not of an all-to-all or a step of a ring. As many elements as `input`, times the
    /// number of ranks for an all-gather, divided by it for a reduce-scatter. A send has no output: the same tensor as `input`.
    /// So it is on the ranks without an input of a broadcast, and on those without an output of a reduce.
    pub output: Tensor,
}

impl Collective {
    /// Whether kernels make this transfer if GPUs reach each other's memory. NCCL makes the others. Kind, type and size
    /// decide, so all ranks decide alike. Rows are never NCCL's.
    pub fn suits_kernels(&self) -> bool {
        let (bytes, ranks) = (self.input.bytes(), self.communicator.size());
        let in_words = match self.kind {
            CollectiveKind::AllReduceSum | CollectiveKind::AllGather => bytes > 0 && bytes.is_multiple_of(16),
            CollectiveKind::ReduceScatterSum => bytes > 0 && bytes.is_multiple_of(16 * ranks),
            CollectiveKind::Rows(_) => return true,
            CollectiveKind::AllReduceMax
            | CollectiveKind::Broadcast { .. }
            | CollectiveKind::ReduceSum { .. }
            | CollectiveKind::AllToAll
            | CollectiveKind::ToNext
            | CollectiveKind::Send { .. }
            | CollectiveKind::Receive { .. } => false,
        };
        in_words && (self.kind.only_moves() || matches!(self.input.dtype, DType::F32 | DType::Bf16))
    }

    /// A transfer in place: one tensor is input and output.
    pub fn in_place(kind: CollectiveKind, communicator: Rc<dyn Communicator>, tensor: Tensor) -> Collective {
        Collective { kind, communicator, input: tensor, output: tensor }
    }

    /// Bytes of the larger of input and output; of rows those of this rank's pairs, as many as a balanced rank receives.
    pub fn bytes(&self) -> usize {
        match &self.kind {
            CollectiveKind::Rows(rows) => rows.pairs.elements() * RowsOfRanks::line(&self.input),
            _ => self.input.bytes().max(self.output.bytes()),
        }
    }

    /// Starts the collective between tensors in host memory.
    ///
    /// # Errors
    /// See [`Communicator::start`].
    pub fn start(&self) -> Result<Box<dyn Request>> {
        match &self.kind {
            CollectiveKind::Rows(rows) => crate::host::start_rows(self, rows),
            kind => self.communicator.start(*kind, &self.input, &self.output),
        }
    }

    /// Whether this rank has an input, and whether it has an output.
    fn takes_and_gives(&self) -> (bool, bool) {
        let rank = self.communicator.rank();
        match self.kind {
            CollectiveKind::Send { .. } => (true, false),
            CollectiveKind::Receive { .. } => (false, true),
            CollectiveKind::Broadcast { from } => (from == rank, true),
            CollectiveKind::ReduceSum { to } => (true, to == rank),
            _ => (true, true),
        }
    }
}

/// Communicators are compared by identity.
impl PartialEq for Collective {
    fn eq(&self, other: &Collective) -> bool {
        let one = std::ptr::addr_eq(Rc::as_ptr(&self.communicator), Rc::as_ptr(&other.communicator));
        one && (self.kind, self.input, self.output) == (other.kind, other.input, other.output)
    }
}

impl Operation for Collective {
    const NAME: &'static str = "collective";

    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn check(&self) -> Result<()> {
        let (name, ranks) = (self.kind.name(), self.communicator.size());
        if let CollectiveKind::Rows(rows) = &self.kind {
            return rows.check(ranks, &self.input, &self.output);
        }
        let is_moved = |dtype: DType| dtype.is_fp8() || matches!(dtype, DType::I32 | DType::U8);
        if self.kind.only_moves() && is_moved(self.input.dtype) {
            ensure_dtype(name, "output", &self.output, self.input.dtype)?;
        } else {
            ensure_float(name, &[("input", self.input), ("output", self.output)])?;
        }
        let expected = match self.kind {
            CollectiveKind::AllGather => self.input.elements() * ranks,
            CollectiveKind::ReduceScatterSum => {
                ensure(name, self.input.elements().is_multiple_of(ranks), || {
                    format!("`input` of shape {:?} cannot be cut into {ranks} equal parts", self.input.shape)
                })?;
                self.input.elements() / ranks
            }
            CollectiveKind::AllToAll => {
                ensure(name, self.input.elements().is_multiple_of(ranks), || {
                    format!("`input` of shape {:?} cannot be cut into {ranks} equal parts", self.input.shape)
                })?;
                ensure_apart(name, ("input", &self.input), &self.output)?;
                self.input.elements()
            }
            CollectiveKind::ToNext => {
                ensure_apart(name, ("input", &self.input), &self.output)?;
                self.input.elements()
            }
            _ => self.input.elements(),
        };
        ensure_elements(name, "output", &self.output, expected)?;
        if let CollectiveKind::Broadcast { from: root } | CollectiveKind::ReduceSum { to: root } = self.kind {
            ensure(name, root < ranks, || format!("rank {root} is none of {ranks}"))?;
            let is_one = self.input.address == self.output.address;
            ensure(name, root == self.communicator.rank() || is_one, || {
                "this rank has either an input or an output: `input` and `output` are the same tensor".into()
            })?;
        }
        if let Some(peer) = self.kind.sender().or(self.kind.receiver()) {
            ensure(name, peer < ranks && peer != self.communicator.rank(), || {
                format!("rank {} of {ranks} cannot exchange with rank {peer}", self.communicator.rank())
            })?;
        }
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        let (takes, gives) = self.takes_and_gives();
        let of_rows = match &self.kind {
            CollectiveKind::Rows(rows) => rows.read().to_vec(),
            _ => Vec::new(),
        };
        Accesses::default().reads(takes.then_some(self.input)).reads(of_rows).writes(gives.then_some(self.output))
    }

    fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor)) {
        [&mut self.input, &mut self.output].into_iter().for_each(&mut *each);
        if let CollectiveKind::Rows(rows) = &mut self.kind {
            rows.each_tensor(each);
        }
    }
}
