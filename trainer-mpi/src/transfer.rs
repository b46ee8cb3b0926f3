//! Transfers of f32 that go on while the caller does other work.

use std::ffi::c_int;

use mpi::ffi;
use mpi::traits::{AsRaw as _, Communicator as _};

use crate::abi::{self, Transfer, TransferKind};
use crate::group::Group;

/// One tag for all messages: those between two ranks are matched by their order.
const TAG: c_int = 0;

pub(crate) unsafe extern "C" fn start(
    group: *mut abi::Group,
    transfer: *const Transfer,
    request: *mut *mut abi::Request,
) -> c_int {
    // SAFETY: the handle and the caller's transfer live; an all-zero request is a valid place for MPI to write one to.
    // The buffers outlive the request. `RSMPI_FLOAT` and `RSMPI_MAX` are constants of the library.
    unsafe {
        let Transfer { kind, peer, from, sent, to, received } = *transfer;
        let (group, float) = (Group::of(group), ffi::RSMPI_FLOAT);
        let (from, to, ranks) = (from.cast(), to.cast(), group.communicator.as_raw());
        let mut started: Box<ffi::MPI_Request> = Box::new(std::mem::zeroed());
        let place = &mut *started;
        let code = match kind {
            TransferKind::Sum => ffi::MPI_Iallreduce(from, to, sent, float, group.sum.as_raw(), ranks, place),
            TransferKind::Max => ffi::MPI_Iallreduce(from, to, sent, float, ffi::RSMPI_MAX, ranks, place),
            TransferKind::Gather => ffi::MPI_Iallgather(from, sent, float, to, sent, float, ranks, place),
            TransferKind::Exchange => {
                let each = sent / group.communicator.size();
                ffi::MPI_Ialltoall(from, each, float, to, each, float, ranks, place)
            }
            TransferKind::Send => ffi::MPI_Issend(from, sent, float, peer, TAG, ranks, place),
            TransferKind::Receive => ffi::MPI_Irecv(to, received, float, peer, TAG, ranks, place),
        };
        if code == ffi::MPI_SUCCESS as c_int {
            *request = Box::into_raw(started).cast();
        }
        code
    }
}

pub(crate) unsafe extern "C" fn wait(request: *mut abi::Request) -> c_int {
    // SAFETY: made by `start`, and waited for once.
    let mut request = unsafe { Box::from_raw(request.cast::<ffi::MPI_Request>()) };
    // SAFETY: MPI wrote the request.
    unsafe { ffi::MPI_Wait(&mut *request, ffi::RSMPI_STATUS_IGNORE) }
}
