//! Page-locked memory of the host. `cuMemHostAlloc` would make its pages on one thread, inside the driver, while other
//! threads' calls wait. So pages are made here first, on several cores, and the driver locks them. PyTorch offers the same
//! for that reason (`pinned_use_cuda_host_register`, <https://docs.pytorch.org/docs/stable/notes/cuda.html>).

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use cudarc::driver::sys;
use rustix::io::{self, Errno};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::error::Driver;
use super::numa;
use crate::{Error, Result};

/// One thread makes so many bytes of pages at a time.
const PIECE: usize = 16 << 20;
/// At most so many threads make pages: more would wait for the memory.
const THREADS: usize = 16;

/// Page-locked memory, zeros at first, at a fixed address until dropped.
pub(crate) struct PageLocked {
    memory: ManuallyDrop<Mapping>,
}

impl PageLocked {
    /// # Errors
    /// The system has or can lock less memory.
    pub(crate) fn new(bytes: usize) -> Result<PageLocked> {
        let failed = |error| Error::operation("staging", format!("{bytes} bytes of host memory: {error}"));
        let memory = Mapping::new(bytes.max(1)).map_err(failed)?;
        if let Some(node) = numa::nearest()
            && let Err(error) = numa::prefer(memory.start, memory.bytes, node)
        {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                tracing::warn!("page-locked memory may lie far from the GPU, whose node is {node}: {error}");
            });
        }
        memory.make_pages().map_err(failed)?;
        // SAFETY: the mapping is there until it is unregistered. Nothing else in it is registered.
        unsafe { sys::cuMemHostRegister_v2(memory.start, memory.bytes, 0) }.result().driver("cuMemHostRegister")?;
        Ok(PageLocked { memory: ManuallyDrop::new(memory) })
    }

    /// The block's first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.memory.start.cast()
    }
}

impl Drop for PageLocked {
    fn drop(&mut self) {
        // SAFETY: registered in `new`; no copy refers to it any more.
        let unregistered = unsafe { sys::cuMemHostUnregister(self.memory.start) }.result();
        // After a failure, as without a context, the driver may still use these addresses: they stay mapped.
        if unregistered.is_ok() {
            // SAFETY: it is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// Pages of this process alone.
struct Mapping {
    start: *mut c_void,
    bytes: usize,
}

impl Mapping {
    /// Memory without pages. A page is made when it is first written to.
    fn new(bytes: usize) -> io::Result<Mapping> {
        // SAFETY: the system chooses the address, so no memory is mapped over.
        let start =
            unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
        Ok(Mapping { start, bytes })
    }

    /// Makes all pages, large ones where the system has them. A system that refuses, such as Linux before 5.14, leaves them
    /// to the driver, which makes them when it locks them.
    ///
    /// # Errors
    /// There is too little memory.
    fn make_pages(&self) -> io::Result<()> {
        // A system without large pages refuses this. Small ones serve as well.
        let _ = self.advise(0, self.bytes, Advice::LinuxHugepage);
        let pieces = self.bytes.div_ceil(PIECE);
        let next = AtomicUsize::new(0);
        let make = || -> io::Result<()> {
            while let piece = next.fetch_add(1, Ordering::Relaxed)
                && piece < pieces
            {
                let first = piece * PIECE;
                self.advise(first, PIECE.min(self.bytes - first), Advice::LinuxPopulateWrite)?;
            }
            Ok(())
        };
        let others = available_parallelism().map_or(1, usize::from).min(THREADS).min(pieces) - 1;
        let made = std::thread::scope(|scope| {
            // A thread that cannot be started is not missed: this one does the rest.
            let threads: Vec<_> =
                (0..others).filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, make).ok()).collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap_or(Ok(())));
            joined.fold(make(), |made, other| made.and(other))
        });
        made.or_else(|error| if error == Errno::NOMEM { Err(error) } else { Ok(()) })
    }

    /// Advises the system on `count` bytes from the byte `first`, the start of a page.
    fn advise(&self, first: usize, count: usize, advice: Advice) -> io::Result<()> {
        assert!(first + count <= self.bytes, "{first} + {count} bytes of {}", self.bytes);
        // SAFETY: within the mapping. Neither advice changes or takes away what is in it.
        unsafe { madvise(self.start.byte_add(first), count, advice) }
    }
}

// SAFETY: its fields are numbers for the system, which takes them from any thread.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and nothing refers to it any more. A failure has no cure here.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a mapping with large pages that have pages, as the system tells.
    fn resident(mapping: &Mapping) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = format!("{:x}-", mapping.start.addr());
        let line = maps.lines().skip_while(|line| !line.starts_with(&begins)).find(|line| line.starts_with("Rss:"));
        line.unwrap().split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
    }

    #[test]
    fn all_pages_are_there_and_zero() {
        // Three pieces, and a part of a page.
        let mapping = Mapping::new(3 * PIECE + 1).unwrap();
        mapping.make_pages().unwrap();
        let there = resident(&mapping);
        assert!((3 * PIECE + 1..4 * PIECE).contains(&there), "{there}");
        // SAFETY: within the mapping, and nothing writes to it.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.start.cast::<u8>(), mapping.bytes) };
        assert!(bytes.iter().all(|&byte| byte == 0));
    }
}
