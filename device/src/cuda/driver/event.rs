//! Events of the driver.

#![allow(unsafe_code)]

use cudarc::driver::{result, sys};

use super::Driver;
use crate::Result;

/// An event of the driver.
pub(crate) struct RawEvent {
    handle: sys::CUevent,
}

impl RawEvent {
    /// An event that cannot be timed. It costs less than a timed one.
    pub(crate) fn new() -> Result<RawEvent> {
        RawEvent::with(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event that can be timed.
    pub(crate) fn timed() -> Result<RawEvent> {
        RawEvent::with(sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(flags: sys::CUevent_flags) -> Result<RawEvent> {
        Ok(RawEvent { handle: result::event::create(flags).driver("cuEventCreate")? })
    }

    pub(super) fn handle(&self) -> sys::CUevent {
        self.handle
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(self.handle) }.driver("cuEventSynchronize")
    }

    /// Waits for the work before the event, asleep most of the time. A thread in `cuEventSynchronize` holds up the
    /// launches of others.
    pub(crate) fn await_asleep(&self) -> Result<()> {
        while !self.passed()? {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whether the work before the event is done.
    pub(crate) fn passed(&self) -> Result<bool> {
        // SAFETY: the event lives.
        match unsafe { result::event::query(self.handle) } {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => result.driver("cuEventQuery").map(|()| true),
        }
    }

    /// Milliseconds between two timed events that have passed.
    pub(crate) fn elapsed_ms(&self, end: &RawEvent) -> Result<f32> {
        // SAFETY: both live.
        unsafe { result::event::elapsed(self.handle, end.handle) }.driver("cuEventElapsedTime")
    }
}

// SAFETY: the driver's calls take events from any thread that uses the context.
unsafe impl Send for RawEvent {}
// SAFETY: as above; the driver guards an event that several threads use.
unsafe impl Sync for RawEvent {}

impl Drop for RawEvent {
    fn drop(&mut self) {
        // SAFETY: created in `with`. A failure has no cure here.
        let _ = unsafe { result::event::destroy(self.handle) };
    }
}
