//! MPI as the data plane of the host device.
#![allow(unsafe_code)]

use std::rc::Rc;

use device::ops::CollectiveKind;
use device::{Communicator, DType, Request, Result, Tensor};
use mpi::environment::Universe;
use mpi::ffi;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{AsRaw, Communicator as _, CommunicatorCollectives as _};

use crate::host_memory;
use crate::mpi_world::{check, failed};

/// A group of processes. Everything travels as f32: MPI knows no bf16.
pub(crate) struct MpiCommunicator {
    name: String,
    group: SimpleCommunicator,
    /// World ranks.
    members: Vec<usize>,
    /// Freeing `group` after MPI is finalized would be an error.
    _universe: Rc<Universe>,
}

impl MpiCommunicator {
    pub(crate) fn new(
        name: &str,
        group: SimpleCommunicator,
        members: Vec<usize>,
        universe: Rc<Universe>,
    ) -> MpiCommunicator {
        // SAFETY: the communicator is valid and MPI is initialised. Errors become return codes instead of aborting.
        unsafe { ffi::MPI_Comm_set_errhandler(group.as_raw(), ffi::RSMPI_ERRORS_RETURN) };
        MpiCommunicator { name: name.into(), group, members, _universe: universe }
    }
}

impl Drop for MpiCommunicator {
    /// MPI has the ranks of a group free it together, and lets them off without waiting; NCCL does not. Waiting here shows
    /// on any machine that two ranks let go of their groups in different orders.
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
        // In place would spare the copy, but MPI_IN_PLACE is a C macro that the bindings do not have.
        let receives = matches!(kind, CollectiveKind::Receive { .. });
        let mut sent = if receives { Vec::new() } else { host_memory::read(input) };
        let from = sent.as_mut_ptr();
        let direct = output.dtype == DType::F32;
        let mut landing = vec![0.0; if direct { 0 } else { output.elements() }];
        let to = if direct { output.address as *mut f32 } else { landing.as_mut_ptr() };
        let group = self.group.as_raw();
        // SAFETY: statics of the library, set since MPI was initialised.
        let (float, sum) = unsafe { (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM) };
        // SAFETY: an all-zero request is a valid place for MPI to write one to.
        let mut request: ffi::MPI_Request = unsafe { std::mem::zeroed() };
        // SAFETY: `sent` and `landing` move into the request below, their heap memory stays where it is and outlives the
        // transfer. The device checked that the tensors lie in live host memory and have the elements that the kind
        // demands; they are not touched before the request has been waited for, as the trait demands.
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
                    landing.clear();
                    ffi::MPI_Issend(from.cast(), inputs, float, to as i32, TAG, group, &mut request)
                }
                CollectiveKind::Receive { from } => {
                    ffi::MPI_Irecv(to.cast(), outputs, float, from as i32, TAG, group, &mut request)
                }
            }
        };
        let request = MpiRequest { request, sent, landing, output: *output, kind, name: self.name.clone() };
        check(code, kind.name(), &self.name)?;
        Ok(Box::new(request))
    }
}

/// Messages between two ranks are told apart by their order alone.
const TAG: i32 = 0;

struct MpiRequest {
    request: ffi::MPI_Request,
    /// What MPI reads from until the request is done; emptied then.
    sent: Vec<f32>,
    /// What MPI writes to where the output is not f32; rounded into it then.
    landing: Vec<f32>,
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
        let landing = std::mem::take(&mut self.landing);
        if !landing.is_empty() {
            host_memory::write(&self.output, landing.into_iter());
        }
        Ok(())
    }
}

impl Drop for MpiRequest {
    /// MPI may still use the memory of a request that failed or that nobody waited for, and waiting here could take for
    /// ever.
    fn drop(&mut self) {
        std::mem::forget((std::mem::take(&mut self.sent), std::mem::take(&mut self.landing)));
    }
}
