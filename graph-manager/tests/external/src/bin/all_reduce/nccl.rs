//! Sums over two GPUs, through NCCL. It enqueues them on the stream that it gets; a stream that captures records them.

use std::ffi::c_char;
use std::io::{Read, Write};
use std::rc::Rc;

use cudarc::nccl::{result, sys};
use graph_manager::device::cuda::StreamHandle;
use graph_manager::device::ops::CollectiveKind;
use graph_manager::device::{Communicator, DType, Error, Request, Result, Tensor};

use crate::AnyResult;
use crate::ranks::Other;

#[derive(Debug)]
struct NcclRanks {
    rank: usize,
    handle: sys::ncclComm_t,
}

/// A communicator of rank 0 and rank 1. The GPU is open on this thread, and is so for as long as the communicator. Rank 0
/// makes NCCL's id and sends it to rank 1.
pub fn communicator(rank: usize, other: &Other) -> AnyResult<Rc<dyn Communicator>> {
    // SAFETY: only looks whether the library can be loaded.
    if !unsafe { sys::is_culib_present() } {
        return Err("libnccl.so was not found. Fix: install NCCL, or add its folder to LD_LIBRARY_PATH".into());
    }
    let mut socket = &other.socket;
    let mut id = [0; 128];
    if rank == 0 {
        id = result::get_uniqueid().map_err(|error| failed("ncclGetUniqueId", error))?.internal.map(|byte| byte as u8);
        socket.write_all(&id)?;
    } else {
        socket.read_exact(&mut id)?;
    }
    let id = sys::ncclUniqueId { internal: id.map(|byte| byte as c_char) };
    let mut handle = std::ptr::null_mut();
    // SAFETY: the id is rank 0's, and both ranks make this call.
    unsafe { result::comm_init_rank(&mut handle, 2, id, rank as i32) }
        .map_err(|error| failed("ncclCommInitRank", error))?;
    Ok(Rc::new(NcclRanks { rank, handle }))
}

fn failed(call: &'static str, error: result::NcclError) -> Error {
    Error::Communication { collective: call, communicator: "nccl".into(), problem: format!("{:?}", error.0) }
}

impl Communicator for NcclRanks {
    fn name(&self) -> &str {
        "nccl"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        2
    }

    fn start(&self, kind: CollectiveKind, _: &Tensor, _: &Tensor) -> Result<Box<dyn Request>> {
        Err(Error::operation(kind.name(), "NCCL sums memory of GPUs, and this tensor is in host memory"))
    }

    fn enqueue(&self, kind: CollectiveKind, input: &Tensor, output: &Tensor, stream: StreamHandle) -> Result<()> {
        if kind != CollectiveKind::AllReduceSum || input.dtype != DType::F32 {
            return Err(Error::operation(kind.name(), format!("of {} is not written", input.dtype)));
        }
        let (from, to, stream) = (input.address as *const _, output.address as *mut _, stream.0.cast());
        let (f32s, sum) = (sys::ncclDataType_t::ncclFloat32, sys::ncclRedOp_t::ncclSum);
        // SAFETY: the device checked that both tensors are f32 in its live memory, and the stream is its own.
        unsafe { result::all_reduce(from, to, input.elements(), f32s, sum, self.handle, stream) }
            .map(drop)
            .map_err(|error| failed("all_reduce", error))
    }
}

impl Drop for NcclRanks {
    fn drop(&mut self) {
        // SAFETY: made in `communicator`; graphs and operations that hold it are gone. A failure has no cure here.
        let _ = unsafe { result::comm_destroy(self.handle) };
    }
}
