#![doc = include_str!("../README.md")]
#![allow(unsafe_code)]

#[allow(dead_code)] // the trainer makes the values that this side reads
#[path = "../../parallel/src/mpi/abi.rs"]
mod abi;
mod group;
mod transfer;

use std::ffi::c_int;

use abi::{Table, Text, Universe};
use mpi::environment::library_version;
use mpi::ffi;

static TABLE: Table = Table {
    version,
    initialize,
    finalize,
    world: group::world,
    split: group::split,
    free: group::free,
    rank: group::rank,
    size: group::size,
    node_size: group::node_size,
    barrier: group::barrier,
    broadcast: group::broadcast,
    all_gather: group::all_gather,
    all_reduce: group::all_reduce,
    abort: group::abort,
    return_errors: group::return_errors,
    start: transfer::start,
    wait: transfer::wait,
    error,
};

/// The library's only symbol.
// SAFETY: no other library of the process has a symbol of this name.
#[unsafe(no_mangle)]
extern "C" fn trainer_mpi_2() -> *const Table {
    &TABLE
}

unsafe extern "C" fn version(to: Text) -> usize {
    // SAFETY: the caller's place.
    unsafe { write(library_version().unwrap_or_default().as_bytes(), to) }
}

unsafe extern "C" fn initialize() -> *mut Universe {
    match mpi::initialize_with_threading(mpi::Threading::Funneled) {
        Some((universe, _)) => Box::into_raw(Box::new(universe)).cast(),
        None => std::ptr::null_mut(),
    }
}

unsafe extern "C" fn finalize(universe: *mut Universe) {
    // SAFETY: made by `initialize`, and not used again.
    drop(unsafe { Box::from_raw(universe.cast::<mpi::environment::Universe>()) });
}

unsafe extern "C" fn error(code: c_int, to: Text) -> usize {
    let mut text = vec![0u8; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut length = 0;
    // SAFETY: the buffer is as long as MPI may write.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    text.truncate(length.max(0) as usize);
    // SAFETY: the caller's place.
    unsafe { write(&text, to) }
}

/// Copies as much of a text as there is room for; returns the number of bytes.
///
/// # Safety
/// `to` is a place of its capacity.
unsafe fn write(text: &[u8], to: Text) -> usize {
    let length = text.len().min(to.capacity);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to.bytes, length) };
    length
}
