//! Communicators over MPI, for tensors in host memory.
#![allow(unsafe_code)]

use device::ops::CollectiveKind;
use device::{Communicator, DType, Error, Request, Result, Tensor};

use super::abi::{Transfer, TransferKind};
use super::group::{MpiGroup, Started};
use crate::host_memory;

/// The error of a collective on a communicator.
fn failed(collective: &'static str, communicator: &str, problem: impl Into<String>) -> Error {
    Error::Communication { collective, communicator: communicator.into(), problem: problem.into() }
}

/// A group of processes. Everything is sent as f32, because MPI has no bf16.
///
/// Every sum over the group has one order, whatever the collective and the length (`trainer-mpi/src/group.rs`). So
/// ranks that divide a sum get the bits of ranks that each have all of it. A reduce-scatter is an all-reduce, and each
/// rank takes its part of the result; Open MPI's own moves as many bytes.
pub(crate) struct MpiCommunicator {
    name: String,
    group: MpiGroup,
    /// World ranks.
    members: Vec<usize>,
}

impl MpiCommunicator {
    pub(crate) fn new(name: &str, group: MpiGroup, members: Vec<usize>) -> MpiCommunicator {
        group.return_errors();
        MpiCommunicator { name: name.into(), group, members }
    }
}

impl Drop for MpiCommunicator {
    /// Waits for the other ranks, as NCCL does and MPI does not. So if ranks drop their communicators in different
    /// orders, the run hangs on any machine, not on GPUs only.
    fn drop(&mut self) {
        if self.group.size() > 1 && !std::thread::panicking() {
            self.group.barrier();
        }
    }
}

impl std::fmt::Debug for MpiCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MPI communicator `{}`, rank {} of {}", self.name, self.rank(), self.size())
    }
}

impl Communicator for MpiCommunicator {
    fn name(&self) -> &str {
        &self.name
    }

    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn members(&self) -> Vec<usize> {
        self.members.clone()
    }

    fn start(&self, kind: CollectiveKind, input: &Tensor, output: &Tensor) -> Result<Box<dyn Request>> {
        let count = |tensor: &Tensor| {
            let too_long = |_| failed(kind.name(), &self.name, "more than 2^31 elements; use smaller buckets");
            i32::try_from(tensor.elements()).map_err(too_long)
        };
        let (inputs, outputs) = (count(input)?, count(output)?);
        // In-place collectives would save this copy, but MPI_IN_PLACE is a C macro that the bindings do not have.
        let (rank, ranks) = (self.rank(), self.size());
        let receives = match kind {
            CollectiveKind::Receive { .. } => true,
            CollectiveKind::Broadcast { from } => from != rank,
            _ => false,
        };
        let gives = match kind {
            CollectiveKind::Send { .. } => false,
            CollectiveKind::ReduceSum { to } => to == rank,
            _ => true,
        };
        let sent = if receives { Vec::new() } else { host_memory::read(input) };
        let from = sent.as_ptr();
        // The index of the output's first element in the data that MPI delivers.
        let (delivered, first) = match kind {
            CollectiveKind::ReduceScatterSum => (input.elements(), rank * output.elements()),
            _ => (output.elements(), 0),
        };
        // MPI brings nothing to the rank that a broadcast comes from.
        let is_ours = matches!(kind, CollectiveKind::Broadcast { from } if from == rank);
        let direct = output.dtype == DType::F32 && delivered == output.elements() && gives && !is_ours;
        let mut received = if is_ours { sent.clone() } else { vec![0.0; if direct { 0 } else { delivered }] };
        let to = if direct { output.address as *mut f32 } else { received.as_mut_ptr() };
        let does = match kind {
            CollectiveKind::AllReduceSum | CollectiveKind::ReduceScatterSum | CollectiveKind::ReduceSum { .. } => {
                vec![(TransferKind::Sum, 0)]
            }
            CollectiveKind::AllReduceMax => vec![(TransferKind::Max, 0)],
            CollectiveKind::AllGather => vec![(TransferKind::Gather, 0)],
            CollectiveKind::AllToAll | CollectiveKind::Rows(_) => vec![(TransferKind::Exchange, 0)],
            CollectiveKind::ToNext => {
                vec![(TransferKind::Receive, (rank + ranks - 1) % ranks), (TransferKind::Send, (rank + 1) % ranks)]
            }
            CollectiveKind::Broadcast { from } if from == rank => {
                (0..ranks).filter(|to| *to != rank).map(|to| (TransferKind::Send, to)).collect()
            }
            CollectiveKind::Broadcast { from } => vec![(TransferKind::Receive, from)],
            CollectiveKind::Send { to } => vec![(TransferKind::Send, to)],
            CollectiveKind::Receive { from } => vec![(TransferKind::Receive, from)],
        };
        let (name, output) = (self.name.clone(), gives.then_some(*output));
        let mut request = MpiRequest { started: Vec::new(), sent, received, first, output, kind, name };
        for (kind, peer) in does {
            let transfer = Transfer { kind, peer: peer as i32, from, sent: inputs, to, received: outputs };
            // SAFETY: `sent` and `received` are the request's; their heap memory stays in place and outlives the
            // transfer. The device checked that the tensors are in live host memory and have the number of elements that
            // the kind requires. The trait requires that nobody touches them before the request was waited for.
            let started = unsafe { self.group.start(&transfer) };
            request.started.push(started.map_err(|problem| failed(request.kind.name(), &self.name, problem))?);
        }
        Ok(Box::new(request))
    }
}

struct MpiRequest {
    /// What was not yet waited for.
    started: Vec<Started>,
    /// Send buffer. MPI reads from it until the request is done.
    sent: Vec<f32>,
    /// Receive buffer, if the output is not f32 or is only a part of the data that MPI delivers. Written into the
    /// output when the request is done.
    received: Vec<f32>,
    /// The first element of `received` that belongs to the output.
    first: usize,
    /// `None` of a rank without an output.
    output: Option<Tensor>,
    kind: CollectiveKind,
    name: String,
}

impl Request for MpiRequest {
    fn wait(mut self: Box<Self>) -> Result<()> {
        let waited = self.started.drain(..).try_for_each(Started::wait);
        waited.map_err(|problem| failed(self.kind.name(), &self.name, problem))?;
        self.sent = Vec::new();
        let received = std::mem::take(&mut self.received);
        if let Some(output) = self.output.filter(|_| !received.is_empty()) {
            host_memory::write(&output, received.into_iter().skip(self.first));
        }
        Ok(())
    }
}

impl Drop for MpiRequest {
    /// Leaks the buffers of a request that failed or that nobody waited for: MPI may still use them, and a wait here
    /// could take forever.
    fn drop(&mut self) {
        std::mem::forget((std::mem::take(&mut self.sent), std::mem::take(&mut self.received)));
    }
}
