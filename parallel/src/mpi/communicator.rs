//! Communicators over MPI, for tensors in host memory.
#![allow(unsafe_code)]

use std::rc::Rc;

use device::ops::CollectiveKind;
use device::{Communicator, DType, Request, Result, Tensor};
use mpi::environment::Universe;
use mpi::ffi;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{AsRaw, Communicator as _, CommunicatorCollectives as _};

use super::error::{check, failed};
use crate::host_memory;

/// A group of processes. Everything is sent as f32, because MPI has no bf16.
pub(crate) struct MpiCommunicator {
    name: String,
    group: SimpleCommunicator,
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
        MpiCommunicator { name: name.into(), group, members, _universe: universe }
    }
}

impl Drop for MpiCommunicator {
    /// Waits for the other ranks, as NCCL does and MPI does not. So a run whose ranks drop their communicators in different
    /// orders hangs on any machine, and not on GPUs only.
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
        let direct = output.dtype == DType::F32;
        let mut received = vec![0.0; if direct { 0 } else { output.elements() }];
        let to = if direct { output.address as *mut f32 } else { received.as_mut_ptr() };
        let group = self.group.as_raw();
        // SAFETY: statics of the library, set when MPI was initialised.
        let (float, sum) = unsafe { (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM) };
        // SAFETY: an all-zero request is a valid place for MPI to write one to.
        let mut request: ffi::MPI_Request = unsafe { std::mem::zeroed() };
        // SAFETY: `sent` and `received` move into the request below; their heap memory stays in place and outlives the
        // transfer. The device checked that the tensors are in live host memory and have the number of elements that the
        // kind requires. The trait requires that nobody touches them before the request was waited for.
        let code = unsafe {
            match kind {
                CollectiveKind::AllReduceSum => {
                    ffi::MPI_Iallreduce(from.cast(), to.cast(), inputs, float, sum, group, &mut request)
                }
                CollectiveKind::AllGather => {
                    ffi::MPI_Iallgather(from.cast(), inputs, float, to.cast(), inputs, float, group, &mut request)
                }
                CollectiveKind::ReduceScatterSum => {
                    ffi::MPI_Ireduce_scatter_block(from.cast(), to.cast(), outputs, float, sum, group, &mut request)
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
        let request = MpiRequest { request, sent, received, output: *output, kind, name: self.name.clone() };
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
    /// Receive buffer where the output is not f32. Rounded into the output when the request is done.
    received: Vec<f32>,
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
            host_memory::write(&self.output, received.into_iter());
        }
        Ok(())
    }
}

impl Drop for MpiRequest {
    /// Leaks the buffers of a request that failed or that nobody waited for: MPI may still use them, and waiting here could
    /// take forever.
    fn drop(&mut self) {
        std::mem::forget((std::mem::take(&mut self.sent), std::mem::take(&mut self.received)));
    }
}
