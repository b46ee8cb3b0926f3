//! Host memory for copies, at fixed addresses until dropped.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

use crate::cuda::PageLocked;
use crate::{Element, Result};

/// The alignment of ordinary memory for copies.
const PAGE: usize = 4096;

/// A block of host memory for copies. Copies to and from page-locked memory do not block the host.
pub(crate) struct HostBlock {
    start: *mut u8,
    bytes: usize,
    _memory: Memory,
}

/// The owner of a block's memory.
#[allow(dead_code, reason = "held until the block is dropped")]
enum Memory {
    Locked(PageLocked),
    Ordinary(Ordinary),
}

/// Memory of the allocator.
struct Ordinary {
    start: *mut u8,
    layout: Layout,
}

impl HostBlock {
    /// Page-locked memory.
    ///
    /// # Errors
    /// The system cannot lock that much.
    pub(crate) fn locked(bytes: usize) -> Result<HostBlock> {
        let memory = PageLocked::new(bytes)?;
        Ok(HostBlock { start: memory.start(), bytes, _memory: Memory::Locked(memory) })
    }

    /// Ordinary memory in place of page-locked memory. It needs no GPU.
    pub(crate) fn ordinary(bytes: usize) -> HostBlock {
        let layout = Layout::from_size_align(bytes.max(1), PAGE).unwrap_or(Layout::new::<u8>());
        assert!(layout.size() >= bytes, "{bytes} bytes are more than a machine has");
        // SAFETY: the layout is not empty. Freed once, when dropped.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        HostBlock { start, bytes, _memory: Memory::Ordinary(Ordinary { start, layout }) }
    }

    /// The block's size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies values into the block, from the block's start on.
    ///
    /// # Panics
    /// If `data` is larger than the block.
    pub(crate) fn fill<T: Element>(&mut self, data: &[T]) {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        assert!(bytes.len() <= self.bytes, "{} bytes into a block of {}", bytes.len(), self.bytes);
        // SAFETY: within the block. Nothing else refers to the block while it is borrowed mutably.
        unsafe { self.start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// The first `count` values in the block.
    pub(crate) fn slice<T: Element>(&self, count: usize) -> &[T] {
        assert!(count * size_of::<T>() <= self.bytes, "{count} values from a block of {} bytes", self.bytes);
        // SAFETY: within the block. The block begins at a page, and plain bytes are valid for any `Element`.
        unsafe { std::slice::from_raw_parts(self.start.cast(), count) }
    }

    /// The first `count` values in the block, to write.
    pub(crate) fn slice_mut<T: Element>(&mut self, count: usize) -> &mut [T] {
        assert!(count * size_of::<T>() <= self.bytes, "{count} values in a block of {} bytes", self.bytes);
        // SAFETY: as in `slice`; nothing else refers to the block while it is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), count) }
    }

    /// The block's address, for the driver.
    pub(crate) fn as_ptr(&self) -> *mut std::ffi::c_void {
        self.start.cast()
    }
}

// SAFETY: plain memory that one value owns; nothing in it belongs to a thread.
unsafe impl Send for HostBlock {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for HostBlock {}

impl Drop for Ordinary {
    fn drop(&mut self) {
        // SAFETY: allocated in `HostBlock::ordinary` with that layout; no copy refers to it any more.
        unsafe { dealloc(self.start, self.layout) };
    }
}
