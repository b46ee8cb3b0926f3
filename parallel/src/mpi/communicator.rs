//! Communicators over MPI, for tensors in host memory.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::rc::Rc;

use device::ops::CollectiveKind;
use device::{Communicator, DType, Request, Result, Tensor};
use mpi::collective::{SystemOperation, UnsafeUserOperation};
use mpi::environment::Universe;
use mpi::ffi;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{AsRaw, Communicator as _, CommunicatorCollectives as _};

use super::error::{check, failed};
use crate::host_memory;

/// A group of processes. Everything is sent as f32, because MPI has no bf16.
///
/// Every sum over the group has one order, whatever the collective and the length. So ranks that divide a sum get the
/// bits of ranks that each have all of it. With `MPI_SUM`, Open MPI chooses among algorithms by collective, length and
/// number of ranks, and these sum in different orders. Two things prevent that. A sum is an operation of our own,
/// declared not commutative: Open MPI and MPICH always add up such an operation along the same tree of ranks. And a
/// reduce-scatter is an all-reduce, and each rank takes its part of the result; Open MPI's own moves as many bytes.
pub(crate) struct MpiCommunicator {
    name: String,
    group: SimpleCommunicator,
    sum: UnsafeUserOperation,
    max: SystemOperation,
    /// World ranks.
    members: Vec<usize>,
    /// Keeps MPI running: freeing `group` after MPI is finalized would be an error.
    _universe: Rc<Universe>,
}

impl MpiCommunicator {
    pub(crate) fn new(
        name: &str,
        group: SimpleCommunicator,
        members: Vec<usize>,
        universe: Rc<Universe>,
    ) -> MpiCommunicator {
        // SAFETY: the communicator is valid and MPI is initialised. From now on errors are return codes, and end no rank.
        unsafe { ffi::MPI_Comm_set_errhandler(group.as_raw(), ffi::RSMPI_ERRORS_RETURN) };
        // SAFETY: `add` has the type and the effect that MPI requires of such a function, and only f32 is ever summed.
        let sum = unsafe { UnsafeUserOperation::associative(add) };
        MpiCommunicator { name: name.into(), group, sum, max: SystemOperation::max(), members, _universe: universe }
    }
}

/// `into[i] = from[i] + into[i]` over `length` f32.
unsafe extern "C" fn add(from: *mut c_void, into: *mut c_void, length: *mut c_int, _: *mut ffi::MPI_Datatype) {
    // SAFETY: MPI passes a valid length.
    let length = unsafe { *length };
    if length <= 0 {
        return; // the addresses of no elements may be null
    }
    // SAFETY: MPI passes two arrays of as many f32, and they do not overlap.
    let (from, into) = unsafe {
        let length = length as usize;
        (
            std::slice::from_raw_parts(from.cast::<f32>(), length),
            std::slice::from_raw_parts_mut(into.cast::<f32>(), length),
        )
    };
    into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
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
        self.group.rank() as usize
    }

    fn size(&self) -> usize {
        self.group.size() as usize
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
        let receives = matches!(kind, CollectiveKind::Receive { .. });
        let mut sent = if receives { Vec::new() } else { host_memory::read(input) };
        let from = sent.as_mut_ptr();
        // The index of the output's first element in the data that MPI delivers.
        let (delivered, first) = match kind {
            CollectiveKind::ReduceScatterSum => (input.elements(), self.rank() * output.elements()),
            _ => (output.elements(), 0),
        };
        let direct = output.dtype == DType::F32 && delivered == output.elements();
        let mut received = vec![0.0; if direct { 0 } else { delivered }];
        let to = if direct { output.address as *mut f32 } else { received.as_mut_ptr() };
        let group = self.group.as_raw();
        // SAFETY: a static of the library, set when MPI was initialised.
        let float = unsafe { ffi::RSMPI_FLOAT };
        let sum = self.sum.as_raw();
        // SAFETY: an all-zero request is a valid place for MPI to write one to.
        let mut request: ffi::MPI_Request = unsafe { std::mem::zeroed() };
        // SAFETY: `sent` and `received` move into the request below; their heap memory stays in place and outlives the
        // transfer. The device checked that the tensors are in live host memory and have the number of elements that the
        // kind requires. The trait requires that nobody touches them before the request was waited for.
        let code = unsafe {
            match kind {
                CollectiveKind::AllReduceSum | CollectiveKind::ReduceScatterSum => {
                    ffi::MPI_Iallreduce(from.cast(), to.cast(), inputs, float, sum, group, &mut request)
                }
                CollectiveKind::AllReduceMax => {
                    ffi::MPI_Iallreduce(from.cast(), to.cast(), inputs, float, self.max.as_raw(), group, &mut request)
                }
                CollectiveKind::AllGather => {
                    ffi::MPI_Iallgather(from.cast(), inputs, float, to.cast(), inputs, float, group, &mut request)
                }
                CollectiveKind::Send { to } => {
                    received.clear();
                    ffi::MPI_Issend(from.cast(), inputs, float, to as i32, TAG, group, &mut request)
                }
                CollectiveKind::Receive { from } => {
                    ffi::MPI_Irecv(to.cast(), outputs, float, from as i32, TAG, group, &mut request)
                }
            }
        };
        let request = MpiRequest { request, sent, received, first, output: *output, kind, name: self.name.clone() };
        check(code, kind.name(), &self.name)?;
        Ok(Box::new(request))
    }
}

/// One tag for all messages: those between two ranks are matched by their order.
const TAG: i32 = 0;

struct MpiRequest {
    request: ffi::MPI_Request,
    /// Send buffer. MPI reads from it until the request is done.
    sent: Vec<f32>,
    /// Receive buffer, if the output is not f32 or is only a part of the data that MPI delivers. Written into the
    /// output when the request is done.
    received: Vec<f32>,
    /// The first element of `received` that belongs to the output.
    first: usize,
    output: Tensor,
    kind: CollectiveKind,
    name: String,
}

impl Request for MpiRequest {
    fn wait(mut self: Box<Self>) -> Result<()> {
        // SAFETY: the request was started by `start` and is waited for once.
        let code = unsafe { ffi::MPI_Wait(&mut self.request, ffi::RSMPI_STATUS_IGNORE) };
        check(code, self.kind.name(), &self.name)?;
        self.sent = Vec::new();
        let received = std::mem::take(&mut self.received);
        if !received.is_empty() {
            host_memory::write(&self.output, received.into_iter().skip(self.first));
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
