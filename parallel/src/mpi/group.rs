//! Groups of ranks over MPI, and their control messages.
#![allow(unsafe_code)]

use std::rc::Rc;

use common::UserError;

use super::abi::{Group, Reduction, Request, Table, Transfer, Universe};
use super::library::{self, table};

/// MPI between start and end.
struct Running {
    table: &'static Table,
    universe: *mut Universe,
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: every group keeps this alive, so all groups were freed.
        unsafe { (self.table.finalize)(self.universe) }
    }
}

/// Some of the ranks that a launcher started. MPI is finalized when the last group is dropped.
///
/// The control messages are rare, and when one fails MPI prints why and ends all ranks.
pub(crate) struct MpiGroup {
    handle: *mut Group,
    running: Rc<Running>,
}

impl Drop for MpiGroup {
    fn drop(&mut self) {
        // SAFETY: the handle is not used again, and MPI runs.
        unsafe { (self.running.table.free)(self.handle) }
    }
}

// In all methods the handle lives, MPI runs, and this thread started it: the type has pointers, so it stays there.
impl MpiGroup {
    /// Starts MPI; the group of all ranks.
    ///
    /// # Errors
    /// MPI is missing.
    ///
    /// # Panics
    /// If MPI was started before.
    pub(crate) fn world() -> Result<MpiGroup, UserError> {
        let table = table()?;
        // SAFETY: the table's function has no conditions.
        let universe = unsafe { (table.initialize)() };
        assert!(!universe.is_null(), "MPI was initialised already");
        let running = Rc::new(Running { table, universe });
        // SAFETY: MPI runs.
        let handle = unsafe { (table.world)(universe) };
        Ok(MpiGroup { handle, running })
    }

    fn table(&self) -> &'static Table {
        self.running.table
    }

    pub(crate) fn rank(&self) -> usize {
        // SAFETY: see above.
        unsafe { (self.table().rank)(self.handle) as usize }
    }

    pub(crate) fn size(&self) -> usize {
        // SAFETY: see above.
        unsafe { (self.table().size)(self.handle) as usize }
    }

    /// The number of the group's ranks that are on this node.
    pub(crate) fn node_size(&self) -> usize {
        // SAFETY: see above.
        unsafe { (self.table().node_size)(self.handle) as usize }
    }

    pub(crate) fn barrier(&self) {
        // SAFETY: see above.
        unsafe { (self.table().barrier)(self.handle) }
    }

    /// Sends the bytes of one rank to all ranks. All pass the same number of bytes.
    pub(crate) fn broadcast(&self, rank: usize, bytes: &mut [u8]) {
        // SAFETY: see above, and the bytes are writable.
        unsafe { (self.table().broadcast)(self.handle, rank as i32, bytes.as_mut_ptr(), bytes.len()) }
    }

    pub(crate) fn broadcast_text(&self, rank: usize, text: String) -> String {
        let mut length = (text.len() as u64).to_le_bytes();
        self.broadcast(rank, &mut length);
        let mut bytes = text.into_bytes();
        bytes.resize(u64::from_le_bytes(length) as usize, 0);
        if !bytes.is_empty() {
            self.broadcast(rank, &mut bytes); // MPI refuses the address of an empty slice
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes of all ranks, in the ranks' order. All pass the same number of bytes.
    pub(crate) fn all_gather(&self, own: &[u8]) -> Vec<u8> {
        let mut all = vec![0; own.len() * self.size()];
        // SAFETY: see above, and there is room for the bytes of all ranks.
        unsafe { (self.table().all_gather)(self.handle, own.as_ptr(), own.len(), all.as_mut_ptr()) };
        all
    }

    pub(crate) fn max(&self, value: u64) -> u64 {
        self.reduce(Reduction::Max, value)
    }

    pub(crate) fn min(&self, value: u64) -> u64 {
        self.reduce(Reduction::Min, value)
    }

    pub(crate) fn sum(&self, value: u64) -> u64 {
        self.reduce(Reduction::Sum, value)
    }

    fn reduce(&self, reduction: Reduction, value: u64) -> u64 {
        // SAFETY: see above.
        unsafe { (self.table().all_reduce)(self.handle, reduction, value) }
    }

    /// Ends all ranks at once with this exit code.
    pub(crate) fn abort(&self, code: i32) -> ! {
        // SAFETY: see above.
        unsafe { (self.table().abort)(self.handle, code) };
        unreachable!("MPI ends the process");
    }

    /// Divides this group into others; `group` has the ranks of this rank's. All ranks call it together.
    ///
    /// # Panics
    /// If this rank is not in its group.
    pub(crate) fn split(&self, group: &[usize]) -> MpiGroup {
        let Some(rank) = group.iter().position(|&rank| rank == self.rank()) else {
            panic!("rank {} is not in its group {group:?}", self.rank());
        };
        // SAFETY: see above.
        let handle = unsafe { (self.table().split)(self.handle, group[0] as i32, rank as i32) };
        MpiGroup { handle, running: self.running.clone() }
    }

    /// From now on errors of the group's calls are results, and end no rank.
    pub(super) fn return_errors(&self) {
        // SAFETY: see above.
        unsafe { (self.table().return_errors)(self.handle) }
    }

    /// Begins a transfer.
    ///
    /// # Errors
    /// MPI's own text.
    ///
    /// # Safety
    /// The transfer's places stay valid, and nobody else uses them, until the transfer was waited for.
    pub(super) unsafe fn start(&self, transfer: &Transfer) -> Result<Started, String> {
        let mut request = std::ptr::null_mut();
        // SAFETY: see above, and the caller's promise.
        let code = unsafe { (self.table().start)(self.handle, transfer, &mut request) };
        result(self.table(), code).map(|()| Started { request, table: self.table() })
    }
}

/// A transfer under way.
pub(super) struct Started {
    request: *mut Request,
    table: &'static Table,
}

impl Started {
    /// # Errors
    /// MPI's own text.
    pub(super) fn wait(self) -> Result<(), String> {
        // SAFETY: the request was started and is waited for once. MPI runs, as long as this thread has a communicator.
        let code = unsafe { (self.table.wait)(self.request) };
        result(self.table, code)
    }
}

/// A return code as a result, with MPI's own text.
fn result(table: &Table, code: i32) -> Result<(), String> {
    match code {
        0 => Ok(()),
        // SAFETY: `text` gives a valid place.
        code => Err(library::text(|to| unsafe { (table.error)(code, to) })),
    }
}
