//! Device memory that other processes of this node map into their own address space (CUDA IPC).

#![allow(unsafe_code)]

use cudarc::driver::sys;

use super::error::Driver;
use crate::Result;

/// A handle of device memory of this process. Another process maps the memory by it.
pub type PeerHandle = [u8; 64];

/// The handle of memory from `cuMemAlloc`, by its first address.
///
/// # Errors
/// The driver's: some containers and virtual GPUs do not allow it.
pub(in crate::cuda) fn handle_of(address: u64) -> Result<PeerHandle> {
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: writes the handle; the driver refuses an address that is not the start of an allocation.
    unsafe { sys::cuIpcGetMemHandle(&mut handle, address) }.result().driver("cuIpcGetMemHandle")?;
    Ok(handle.reserved.map(|byte| byte as u8))
}

/// Another process's device memory in this process's addresses.
pub(in crate::cuda) struct MappedMemory {
    address: u64,
}

impl MappedMemory {
    /// Maps memory by its handle. Its owner must not free it before this value is dropped.
    ///
    /// # Errors
    /// The driver's: the two GPUs cannot reach each other, or this process may not see the other.
    pub(in crate::cuda) fn open(handle: PeerHandle) -> Result<MappedMemory> {
        let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as std::ffi::c_char) };
        let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: writes the address; closed once, when dropped.
        unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, flags) }.result().driver("cuIpcOpenMemHandle")?;
        Ok(MappedMemory { address })
    }

    /// The address of the mapped memory's first byte in this process.
    pub(in crate::cuda) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY: opened in `open`; nothing reads or writes it any more. A failure has no cure here.
        let _ = unsafe { sys::cuIpcCloseMemHandle(self.address) };
    }
}
