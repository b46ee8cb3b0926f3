//! Groups of ranks, and their messages.

use std::ffi::{c_int, c_void};

use mpi::collective::{SystemOperation, UnsafeUserOperation};
use mpi::ffi;
use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::{AsRaw, Communicator as _, CommunicatorCollectives as _, Root as _};

use crate::abi::{self, Reduction};

pub(crate) struct Group {
    pub(crate) communicator: SimpleCommunicator,
    /// The sum of f32 in one order, whatever the collective and the length. With `MPI_SUM`, Open MPI chooses among
    /// algorithms by collective, length and number of ranks, and these sum in different orders. An operation of our own
    /// is declared not commutative: Open MPI and MPICH always add it up along the same tree of ranks.
    pub(crate) sum: UnsafeUserOperation,
}

impl Group {
    fn handle(communicator: SimpleCommunicator) -> *mut abi::Group {
        // SAFETY: `add` has the type and the effect that MPI requires of such a function, and only f32 is summed by it.
        let sum = unsafe { UnsafeUserOperation::associative(add) };
        Box::into_raw(Box::new(Group { communicator, sum })).cast()
    }

    /// # Safety
    /// The handle was made by [`Group::handle`] and lives during the call.
    pub(crate) unsafe fn of<'a>(handle: *mut abi::Group) -> &'a Group {
        // SAFETY: the caller's promise.
        unsafe { &*handle.cast() }
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

/// # Safety
/// As the table of functions says, here and below: the handle lives, and places have the lengths given.
pub(crate) unsafe extern "C" fn world(universe: *mut abi::Universe) -> *mut abi::Group {
    // SAFETY: made by `initialize`.
    let universe = unsafe { &*universe.cast::<mpi::environment::Universe>() };
    Group::handle(universe.world())
}

pub(crate) unsafe extern "C" fn split(group: *mut abi::Group, color: c_int, key: c_int) -> *mut abi::Group {
    // SAFETY: the handle lives.
    let group = unsafe { Group::of(group) };
    match group.communicator.split_by_color_with_key(Color::with_value(color), key) {
        Some(communicator) => Group::handle(communicator),
        None => unreachable!("a rank with a colour gets a communicator"),
    }
}

pub(crate) unsafe extern "C" fn free(group: *mut abi::Group) {
    // SAFETY: made by `Group::handle`, and not used again.
    drop(unsafe { Box::from_raw(group.cast::<Group>()) });
}

pub(crate) unsafe extern "C" fn rank(group: *mut abi::Group) -> c_int {
    // SAFETY: the handle lives.
    unsafe { Group::of(group) }.communicator.rank()
}

pub(crate) unsafe extern "C" fn size(group: *mut abi::Group) -> c_int {
    // SAFETY: the handle lives.
    unsafe { Group::of(group) }.communicator.size()
}

pub(crate) unsafe extern "C" fn node_size(group: *mut abi::Group) -> c_int {
    // SAFETY: the handle lives.
    let communicator = unsafe { &Group::of(group).communicator };
    communicator.split_shared(communicator.rank()).size()
}

pub(crate) unsafe extern "C" fn barrier(group: *mut abi::Group) {
    // SAFETY: the handle lives.
    unsafe { Group::of(group) }.communicator.barrier();
}

pub(crate) unsafe extern "C" fn broadcast(group: *mut abi::Group, root: c_int, bytes: *mut u8, length: usize) {
    // SAFETY: the handle lives, and the caller's bytes are valid.
    let (group, bytes) = unsafe { (Group::of(group), std::slice::from_raw_parts_mut(bytes, length)) };
    group.communicator.process_at_rank(root).broadcast_into(bytes);
}

pub(crate) unsafe extern "C" fn all_gather(group: *mut abi::Group, own: *const u8, length: usize, all: *mut u8) {
    // SAFETY: the handle lives, and the caller's bytes are valid: in `all` those of each rank.
    let (group, own, all) = unsafe {
        let group = Group::of(group);
        let total = length * group.communicator.size() as usize;
        (group, std::slice::from_raw_parts(own, length), std::slice::from_raw_parts_mut(all, total))
    };
    group.communicator.all_gather_into(own, all);
}

pub(crate) unsafe extern "C" fn all_reduce(group: *mut abi::Group, reduction: Reduction, value: u64) -> u64 {
    let operation = match reduction {
        Reduction::Max => SystemOperation::max(),
        Reduction::Min => SystemOperation::min(),
        Reduction::Sum => SystemOperation::sum(),
    };
    let mut result = 0;
    // SAFETY: the handle lives.
    unsafe { Group::of(group) }.communicator.all_reduce_into(&value, &mut result, operation);
    result
}

pub(crate) unsafe extern "C" fn abort(group: *mut abi::Group, code: c_int) {
    // SAFETY: the handle lives.
    unsafe { Group::of(group) }.communicator.abort(code)
}

pub(crate) unsafe extern "C" fn return_errors(group: *mut abi::Group) {
    // SAFETY: the handle lives, and MPI is initialised.
    unsafe { ffi::MPI_Comm_set_errhandler(Group::of(group).communicator.as_raw(), ffi::RSMPI_ERRORS_RETURN) };
}
