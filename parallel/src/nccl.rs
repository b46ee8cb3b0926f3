//! Communicators over NCCL, for tensors in the memory of GPUs.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result as driver, sys as cuda};
use cudarc::nccl::sys;
use device::cuda::{Peers, StreamHandle};
use device::ops::CollectiveKind;
use device::{Communicator, DType, Error, Probe, Request, Result, SharedArea, Tensor};

use crate::mpi::MpiGroup;
use crate::nccl_library::{Done as _, NcclLibrary};
use crate::nccl_version::NcclVersion;
use crate::peer_link::PeerLink;

/// The version of the NCCL library. `None` if there is no library.
pub fn nccl_version() -> Option<NcclVersion> {
    NcclLibrary::get()?.version().ok().map(NcclVersion)
}

fn failed(call: &'static str, name: &str, code: sys::ncclResult_t) -> Error {
    let problem = format!("{code:?}; NCCL_DEBUG=INFO tells more");
    Error::Communication { collective: call, communicator: name.into(), problem }
}

/// Whether a stream captures.
fn captures(stream: StreamHandle) -> Result<bool> {
    let mut status = cuda::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream is the device's. The driver writes one value.
    unsafe { cuda::cuStreamIsCapturing(stream.0.cast(), &mut status) }
        .result()
        .map_err(|error| Error::Driver { call: "cuStreamIsCapturing", problem: format!("{:?}", error.0) })?;
    Ok(status != cuda::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// A communicator over the ranks of `group`. Their world ranks are `members`. See
/// [`World::nccl_communicator`](crate::World::nccl_communicator).
///
/// # Errors
/// A missing library, or NCCL's own errors.
pub(crate) fn communicator(group: &MpiGroup, name: &str, members: Vec<usize>) -> Result<NcclCommunicator> {
    let Some(library) = NcclLibrary::get() else {
        let searched = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        return Err(Error::Driver {
            call: "nccl",
            problem: format!(
                "libnccl.so.2 was not found (LD_LIBRARY_PATH={searched:?}, then the system's folders and Python \
                 packages beside the program). Fix: install NCCL (Debian: libnccl2; PyPI: nvidia-nccl-cu13, or \
                 nvidia-nccl-cu12 for drivers before 580)"
            ),
        });
    };
    let version = library.version().map_err(|error| failed("ncclGetVersion", name, error))?;
    let (rank, size) = (group.rank(), group.size());
    let mut id = [0u8; 128];
    if rank == 0 {
        let mut unique = sys::ncclUniqueId { internal: [0; 128] };
        // SAFETY: NCCL writes one id.
        unsafe { (library.unique_id)(&mut unique) }.done().map_err(|error| failed("ncclGetUniqueId", name, error))?;
        for (byte, value) in id.iter_mut().zip(unique.internal) {
            *byte = value as u8;
        }
    }
    group.broadcast(0, &mut id);
    let unique = sys::ncclUniqueId { internal: id.map(|byte| byte as std::ffi::c_char) };
    let mut handle = std::ptr::null_mut();
    // SAFETY: the id came from the group's first rank, and every rank of the group makes this call.
    unsafe { (library.init_rank)(&mut handle, size as i32, unique, rank as i32) }
        .done()
        .map_err(|error| failed("ncclCommInitRank", name, error))?;
    let alive = Arc::new(Mutex::new(Some(Handle(handle))));
    let (name, version) = (name.into(), NcclVersion(version));
    Ok(NcclCommunicator { name, library, version, handle, alive, rank, members, peers: None })
}

/// A communicator over NCCL.
pub(crate) struct NcclCommunicator {
    name: String,
    library: &'static NcclLibrary,
    version: NcclVersion,
    handle: sys::ncclComm_t,
    /// The communicator's handle for other threads, until the handle is destroyed.
    alive: Arc<Mutex<Option<Handle>>>,
    rank: usize,
    members: Vec<usize>,
    /// The link to other GPUs' memory, which makes the transfers that suit a link, in place of NCCL.
    peers: Option<Rc<PeerLink>>,
}

/// The handle as [`NcclCommunicator::probe`] uses it on another thread.
struct Handle(sys::ncclComm_t);

// SAFETY: any thread may read a communicator's asynchronous errors, at any time until it is destroyed.
unsafe impl Send for Handle {}

impl NcclCommunicator {
    /// The same communicator, with a link to other GPUs' memory that makes some transfers in place of NCCL.
    pub(crate) fn over(self, link: Option<PeerLink>) -> NcclCommunicator {
        let mut linked = self;
        linked.peers = link.map(Rc::new);
        linked
    }

    /// The first failure of sends and receives that go on at once, in any order.
    fn at_once(&self, messages: impl FnOnce() -> Vec<sys::ncclResult_t>) -> sys::ncclResult_t {
        // SAFETY: both calls have no arguments. A started group is always ended.
        let began = unsafe { (self.library.group_start)() };
        let codes = messages();
        // SAFETY: as above.
        let ended = unsafe { (self.library.group_end)() };
        let failed = |code: &sys::ncclResult_t| *code != sys::ncclResult_t::ncclSuccess;
        [began].into_iter().chain(codes).chain([ended]).find(failed).unwrap_or(ended)
    }
}

impl std::fmt::Debug for NcclCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NCCL communicator `{}`, rank {} of {}", self.name, self.rank, self.members.len())
    }
}

impl Communicator for NcclCommunicator {
    fn name(&self) -> &str {
        &self.name
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn members(&self) -> Vec<usize> {
        self.members.clone()
    }

    fn peers(&self) -> Option<&Peers> {
        self.peers.as_ref().and_then(|link| link.peers())
    }

    fn share(&self, area: Range<u64>) -> Result<Option<SharedArea>> {
        let shared = self.peers.as_ref().map(|link| link.share(area)).transpose();
        shared.map_err(|problem| Error::Communication {
            collective: "the sharing of memory",
            communicator: self.name.clone(),
            problem,
        })
    }

    fn open(&self) -> Result<()> {
        let driver_failed = |error: driver::DriverError| Error::Driver {
            call: "the first transfer",
            problem: format!("{:?}", error.0),
        };
        let (rank, last) = (self.rank as i32, self.members.len() as i32 - 1);
        let dtype = sys::ncclDataType_t::ncclFloat32;
        // SAFETY: memory and stream live until the stream has finished all work that uses them. A started group is always
        // ended, also after an error.
        unsafe {
            let stream = driver::stream::create(driver::stream::StreamKind::NonBlocking).map_err(driver_failed)?;
            let memory = driver::malloc_sync(8).map_err(driver_failed)?;
            let (from, to) = (memory as *const c_void, (memory + 4) as *mut c_void);
            let (nccl, group, queue) = (self.library, self.handle, stream.cast());
            let done = (nccl.group_start)().done().and_then(|()| {
                let sent = (rank < last).then(|| (nccl.send)(from, 1, dtype, rank + 1, group, queue));
                let received = (rank > 0).then(|| (nccl.receive)(to, 1, dtype, rank - 1, group, queue));
                let ended = (nccl.group_end)();
                [sent, received, Some(ended)].into_iter().flatten().try_for_each(|code| code.done())
            });
            driver::stream::synchronize(stream).map_err(driver_failed)?;
            driver::free_sync(memory).map_err(driver_failed)?;
            driver::stream::destroy(stream).map_err(driver_failed)?;
            done.map_err(|error| failed("the first transfer", &self.name, error))
        }
    }

    fn start(&self, kind: CollectiveKind, _input: &Tensor, _output: &Tensor) -> Result<Box<dyn Request>> {
        Err(Error::operation(
            kind.name(),
            format!("{self:?} transfers device memory, and this tensor is in host memory"),
        ))
    }

    fn enqueue(&self, kind: CollectiveKind, input: &Tensor, output: &Tensor, stream: StreamHandle) -> Result<()> {
        let dtype = match input.dtype {
            DType::F32 => sys::ncclDataType_t::ncclFloat32,
            DType::Bf16 => sys::ncclDataType_t::ncclBfloat16,
            // The device allows these types for transfers that only move data.
            DType::F8E4M3 | DType::F8E5M2 | DType::U8 => sys::ncclDataType_t::ncclUint8,
            DType::I32 => sys::ncclDataType_t::ncclInt32,
            other => return Err(Error::operation(kind.name(), format!("{other} cannot be transferred"))),
        };
        let sum = sys::ncclRedOp_t::ncclSum;
        let (inputs, outputs) = (input.elements(), output.elements());
        let (from, to) = (input.address as *const c_void, output.address as *mut c_void);
        if !self.version.works_in_graphs() && captures(stream)? {
            self.version.refuse_capture(kind, &self.name)?;
        }
        let (nccl, group, stream) = (self.library, self.handle, stream.0.cast());
        // SAFETY: the device checked that the tensors are in its live memory and have the number of elements that the kind
        // requires. The stream is the device's. A started group is always ended, also after an error.
        let code = unsafe {
            match kind {
                CollectiveKind::AllReduceSum => (nccl.all_reduce)(from, to, inputs, dtype, sum, group, stream),
                CollectiveKind::AllReduceMax => {
                    let max = sys::ncclRedOp_t::ncclMax;
                    (nccl.all_reduce)(from, to, inputs, dtype, max, group, stream)
                }
                CollectiveKind::AllGather => (nccl.all_gather)(from, to, inputs, dtype, group, stream),
                CollectiveKind::ReduceScatterSum => (nccl.reduce_scatter)(from, to, outputs, dtype, sum, group, stream),
                CollectiveKind::Broadcast { from: root } => {
                    (nccl.broadcast)(from, to, inputs, dtype, root as i32, group, stream)
                }
                CollectiveKind::ReduceSum { to: root } => {
                    (nccl.reduce)(from, to, inputs, dtype, sum, root as i32, group, stream)
                }
                CollectiveKind::AllToAll => {
                    let (ranks, part) = (self.members.len(), inputs / self.members.len());
                    let first = |rank: usize| rank * part * input.dtype.size();
                    let exchange = |rank: usize| {
                        let sent = (nccl.send)(from.byte_add(first(rank)), part, dtype, rank as i32, group, stream);
                        let received =
                            (nccl.receive)(to.byte_add(first(rank)), part, dtype, rank as i32, group, stream);
                        [sent, received]
                    };
                    self.at_once(|| (0..ranks).flat_map(exchange).collect())
                }
                CollectiveKind::ToNext => {
                    let (rank, ranks) = (self.rank(), self.members.len());
                    let [next, before] = [rank + 1, rank + ranks - 1].map(|rank| (rank % ranks) as i32);
                    self.at_once(|| {
                        let sent = (nccl.send)(from, inputs, dtype, next, group, stream);
                        vec![sent, (nccl.receive)(to, outputs, dtype, before, group, stream)]
                    })
                }
                CollectiveKind::Rows(_) => unreachable!("kernels exchange rows"),
                CollectiveKind::Send { to } => (nccl.send)(from, inputs, dtype, to as i32, group, stream),
                CollectiveKind::Receive { from } => (nccl.receive)(to, outputs, dtype, from as i32, group, stream),
            }
        };
        code.done().map_err(|error| failed(kind.name(), &self.name, error))
    }

    fn probe(&self) -> Option<Probe> {
        let (name, alive, library) = (self.name.clone(), self.alive.clone(), self.library);
        Some(Box::new(move || {
            let alive = alive.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(Handle(handle)) = *alive else { return Ok(()) };
            let mut state = sys::ncclResult_t::ncclSuccess;
            // SAFETY: the communicator is not destroyed while the lock is held. NCCL writes one value.
            unsafe { (library.async_error)(handle, &mut state) }
                .done()
                .map_err(|error| failed("ncclCommGetAsyncError", &name, error))?;
            // An operation under way is no error.
            if state == sys::ncclResult_t::ncclInProgress {
                return Ok(());
            }
            state.done().map_err(|error| failed("a collective", &name, error))
        }))
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner).take();
        // SAFETY: the handle is from `ncclCommInitRank`, and nothing uses it any more. There is no way to handle a failure.
        let _ = unsafe { (self.library.destroy)(self.handle) };
    }
}
