//! The table of functions through which the trainer calls MPI. The trainer and its library `trainer-mpi` both compile
//! this file. With a change of the table goes another name of the library's symbol: see `library.rs`.

use std::ffi::c_int;

/// MPI from start to end.
#[repr(C)]
pub struct Universe([u8; 0]);

/// Some of the ranks, numbered from 0.
#[repr(C)]
pub struct Group([u8; 0]);

/// A transfer under way.
#[repr(C)]
pub struct Request([u8; 0]);

/// The combination of one number of each rank.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum Reduction {
    Max,
    Min,
    Sum,
}

/// The kinds of transfers.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum TransferKind {
    Sum,
    Max,
    Gather,
    /// Each rank gets an equal part of what every other one gives.
    Exchange,
    Send,
    Receive,
}

/// A transfer of f32. Both places stay valid until the request was waited for.
#[repr(C)]
pub struct Transfer {
    pub kind: TransferKind,
    /// The rank that is sent to or received from.
    pub peer: c_int,
    pub from: *const f32,
    /// Elements that this rank gives: to a gather its part.
    pub sent: c_int,
    pub to: *mut f32,
    /// Elements that [`TransferKind::Receive`] takes.
    pub received: c_int,
}

/// The place of a text, and the place's size in bytes.
#[repr(C)]
pub struct Text {
    pub bytes: *mut u8,
    pub capacity: usize,
}

/// MPI's calls. Except for `version` they are made by one thread, between `initialize` and `finalize`. Those with a
/// group are collective, but for `rank`, `size`, `return_errors`, `abort`, and `start` of a message. Unless errors are
/// returned, MPI prints them and ends all ranks.
#[repr(C)]
pub struct Table {
    /// Writes the name and version of the MPI; returns the number of bytes written.
    pub version: unsafe extern "C" fn(Text) -> usize,
    /// Starts MPI. Null if it was started before.
    pub initialize: unsafe extern "C" fn() -> *mut Universe,
    /// Ends MPI. All groups were freed.
    pub finalize: unsafe extern "C" fn(*mut Universe),
    /// The group of all ranks.
    pub world: unsafe extern "C" fn(*mut Universe) -> *mut Group,
    /// The ranks that pass the same colour, in the order of the ranks' keys.
    pub split: unsafe extern "C" fn(*mut Group, color: c_int, key: c_int) -> *mut Group,
    pub free: unsafe extern "C" fn(*mut Group),
    pub rank: unsafe extern "C" fn(*mut Group) -> c_int,
    pub size: unsafe extern "C" fn(*mut Group) -> c_int,
    /// The number of the group's ranks on this node.
    pub node_size: unsafe extern "C" fn(*mut Group) -> c_int,
    pub barrier: unsafe extern "C" fn(*mut Group),
    /// Copies the bytes of rank `root`; all pass the same number.
    pub broadcast: unsafe extern "C" fn(*mut Group, root: c_int, bytes: *mut u8, length: usize),
    /// Copies `length` bytes of each rank to all, in the order of ranks.
    pub all_gather: unsafe extern "C" fn(*mut Group, own: *const u8, length: usize, all: *mut u8),
    pub all_reduce: unsafe extern "C" fn(*mut Group, Reduction, u64) -> u64,
    /// Ends all ranks.
    pub abort: unsafe extern "C" fn(*mut Group, code: c_int),
    /// From now on errors of the group's calls are return codes.
    pub return_errors: unsafe extern "C" fn(*mut Group),
    /// Begins a transfer. A code other than 0 is an error, and then there is no request.
    pub start: unsafe extern "C" fn(*mut Group, *const Transfer, *mut *mut Request) -> c_int,
    /// Waits for a transfer, once. A code other than 0 is an error.
    pub wait: unsafe extern "C" fn(*mut Request) -> c_int,
    /// Writes the meaning of an error's code; returns the number of bytes written.
    pub error: unsafe extern "C" fn(c_int, Text) -> usize,
}
