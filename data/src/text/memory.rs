//! Memory that a thread's work may take, counted by the allocator.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

thread_local! {
    /// Bytes that this thread's work may still take.
    static LEFT: Cell<isize> = const { Cell::new(0) };
    /// What a thread with a limit sets when its work asks for more. `None`: the thread has no limit.
    static EXCEEDED: Cell<Option<&'static AtomicBool>> = const { Cell::new(None) };
}

/// Limits this thread to so many more bytes. A request for more sets `exceeded` and never returns: nothing can go on
/// without the memory, and the thread that waits for the work tells the error.
pub(crate) fn limit(bytes: usize, exceeded: &'static AtomicBool) {
    LEFT.set(isize::try_from(bytes).unwrap_or(isize::MAX));
    EXCEEDED.set(Some(exceeded));
}

/// Lets this thread take any memory again.
pub(crate) fn unlimit() {
    EXCEEDED.set(None);
}

/// Counts bytes that are asked for, and bytes that are given back. Most threads have no limit: they only look.
#[inline(always)]
fn count(asked: usize, given: usize) {
    if let Some(exceeded) = EXCEEDED.get() {
        count_within(exceeded, asked, given);
    }
}

#[cold]
fn count_within(exceeded: &AtomicBool, asked: usize, given: usize) {
    let left = LEFT.get().saturating_sub_unsigned(asked);
    LEFT.set(left.saturating_add_unsigned(given));
    if left < 0 {
        exceeded.store(true, Ordering::Relaxed);
        loop {
            sleep(Duration::MAX);
        }
    }
}

/// The system's allocator. It counts the bytes of threads with a limit, before the system is asked for them.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: each function hands its arguments to the system's allocator and returns what that returns. Counting allocates
// nothing and does not unwind: its variables need no set-up and no clean-up.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the rules of this trait.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}
