//! MPI: the control plane of every run, and the data plane of the host device.
#![allow(unsafe_code)]

use std::rc::Rc;

use device::{Communicator, DType, Error, Request, Result, Tensor};
use mpi::collective::SystemOperation;
use mpi::environment::Universe;
use mpi::ffi;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{AsRaw, Communicator as _, CommunicatorCollectives, Root};

/// All ranks of the run. Made once, on the main thread, which then makes all MPI calls; finalizes MPI when dropped.
pub struct MpiWorld {
    world: SimpleCommunicator,
    _universe: Universe,
}

fn failed(collective: &'static str, communicator: &str, problem: impl Into<String>) -> Error {
    Error::Communication { collective, communicator: communicator.into(), problem: problem.into() }
}

impl MpiWorld {
    /// Starts MPI; without mpirun the world is this process alone.
    ///
    /// # Errors
    /// When MPI was started before, or cannot be.
    pub fn initialize() -> Result<MpiWorld> {
        let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Funneled)
            .ok_or_else(|| failed("MPI_Init", "world", "MPI was initialised already"))?;
        let world = universe.world();
        // SAFETY: the communicator is valid; MPI is initialised. Errors become return codes instead of aborting.
        unsafe { ffi::MPI_Comm_set_errhandler(world.as_raw(), ffi::RSMPI_ERRORS_RETURN) };
        Ok(MpiWorld { world, _universe: universe })
    }

    /// This process.
    pub fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    /// Processes of the run.
    pub fn size(&self) -> usize {
        self.world.size() as usize
    }

    /// Waits for all ranks.
    pub fn barrier(&self) {
        self.world.barrier();
    }

    /// Gives all ranks the bytes of rank 0; they must have as many.
    pub fn broadcast(&self, bytes: &mut [u8]) {
        self.world.process_at_rank(0).broadcast_into(bytes);
    }

    /// The text of rank 0, on all ranks.
    pub fn text_of_rank_0(&self, text: String) -> String {
        let mut length = (text.len() as u64).to_le_bytes();
        self.broadcast(&mut length);
        let mut bytes = text.into_bytes();
        bytes.resize(u64::from_le_bytes(length) as usize, 0);
        self.broadcast(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The largest value of all ranks.
    pub fn max(&self, value: u64) -> u64 {
        let mut result = 0;
        self.world.all_reduce_into(&value, &mut result, SystemOperation::max());
        result
    }

    /// Ends all ranks at once with this exit code; nothing is torn down.
    pub fn abort(&self, code: i32) -> ! {
        self.world.abort(code)
    }

    /// A communicator over all ranks, apart from all others.
    pub fn communicator(&self, name: &str) -> Rc<dyn Communicator> {
        let group = self.world.duplicate();
        // SAFETY: as in `initialize`; a duplicate inherits the handler, but standards differ, so it is set again.
        unsafe { ffi::MPI_Comm_set_errhandler(group.as_raw(), ffi::RSMPI_ERRORS_RETURN) };
        Rc::new(MpiCommunicator { name: name.into(), group })
    }
}

struct MpiCommunicator {
    name: String,
    group: SimpleCommunicator,
}

impl std::fmt::Debug for MpiCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MPI communicator `{}`, rank {} of {}", self.name, self.rank(), self.size())
    }
}

/// What an MPI return code means, as a result.
fn check(code: i32, collective: &'static str, communicator: &str) -> Result<()> {
    if code == ffi::MPI_SUCCESS as i32 {
        return Ok(());
    }
    let mut text = vec![0u8; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut length = 0;
    // SAFETY: the buffer is as long as MPI may write, and outlives the call.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    text.truncate(length.max(0) as usize);
    Err(failed(collective, communicator, String::from_utf8_lossy(&text).into_owned()))
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

    fn start_all_reduce_sum(&self, tensor: &Tensor) -> Result<Box<dyn Request>> {
        let count = i32::try_from(tensor.elements())
            .map_err(|_| failed("all-reduce", &self.name, "more than 2^31 elements; use smaller buckets"))?;
        assert_eq!(tensor.dtype, DType::F32, "checked at submission");
        let address = tensor.address as *mut f32;
        // SAFETY: the device checked that the tensor lies in live host memory; only this thread touches it.
        let send = unsafe { std::slice::from_raw_parts(address, tensor.elements()) }.to_vec();
        // SAFETY: an all-zero request is a valid place for MPI to write one to.
        let mut request: ffi::MPI_Request = unsafe { std::mem::zeroed() };
        // SAFETY: `send` moves into the request below with its heap memory in place, and the tensor's memory is not
        // touched before the request has been waited for, as the trait demands.
        let code = unsafe {
            ffi::MPI_Iallreduce(
                send.as_ptr().cast(),
                address.cast(),
                count,
                ffi::RSMPI_FLOAT,
                ffi::RSMPI_SUM,
                self.group.as_raw(),
                &mut request,
            )
        };
        check(code, "all-reduce", &self.name)?;
        Ok(Box::new(MpiRequest { request, _send: send, name: self.name.clone() }))
    }
}

struct MpiRequest {
    request: ffi::MPI_Request,
    /// What MPI reads from until the request is done.
    _send: Vec<f32>,
    name: String,
}

impl Request for MpiRequest {
    fn wait(mut self: Box<Self>) -> Result<()> {
        // SAFETY: the request was started by `start_all_reduce_sum` and is waited for once.
        let code = unsafe { ffi::MPI_Wait(&mut self.request, ffi::RSMPI_STATUS_IGNORE) };
        check(code, "all-reduce", &self.name)
    }
}
