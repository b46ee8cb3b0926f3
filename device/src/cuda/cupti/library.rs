//! The library: found, loaded, and called.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

pub(super) use cudarc::cupti::result::activity;
use cudarc::cupti::result::{self, CuptiError};
pub(super) use cudarc::cupti::sys;
use cudarc::driver;

use crate::cuda::driver::RawStream;
use crate::{Error, Result};

const CORRELATION: sys::CUpti_ExternalCorrelationKind =
    sys::CUpti_ExternalCorrelationKind::CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

/// Adds the name of the action to a result of CUPTI.
pub(super) fn call<T>(call: &'static str, result: std::result::Result<T, CuptiError>) -> Result<T> {
    result.map_err(|error| {
        let text = error.error_string().map_or("unknown".into(), |text| text.to_string_lossy());
        failed(call, format!("{:?}: {text}", error.0))
    })
}

/// An error of CUPTI.
fn failed(call: &'static str, problem: impl Into<String>) -> Error {
    Error::Driver { call, problem: problem.into() }
}

/// The process's one subscription to callbacks.
pub(super) struct Subscription(sys::CUpti_SubscriberHandle);

/// The callback for every graph node that is created or cloned, on the thread of that call.
pub(super) type OnResource =
    unsafe extern "C" fn(*mut c_void, sys::CUpti_CallbackDomain, sys::CUpti_CallbackId, *const c_void);

impl Subscription {
    /// # Errors
    /// Another profiler is subscribed.
    pub(super) fn new(on_resource: OnResource) -> Result<Subscription> {
        use sys::CUpti_CallbackIdResource as Id;
        let domain = sys::CUpti_CallbackDomain::CUPTI_CB_DOMAIN_RESOURCE;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the callback is a function that lives forever and needs no data.
        let subscribed = unsafe { result::subscribe(&mut handle, Some(on_resource), std::ptr::null_mut()) };
        call("cuptiSubscribe", subscribed).map_err(|error| match error {
            Error::Driver { call, problem } if problem.contains("MULTIPLE_SUBSCRIBERS") => {
                failed(call, format!("{problem}. Fix: run without the other profiler, such as nsys or ncu"))
            }
            error => error,
        })?;
        let subscription = Subscription(handle);
        for id in [Id::CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, Id::CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED] {
            // SAFETY: subscribed above.
            let enabled = unsafe { result::enable_callback(1, subscription.0, domain, id as u32) };
            call("cuptiEnableCallback", enabled)?;
        }
        Ok(subscription)
    }

    /// The number that records have for a stream.
    pub(super) fn stream_id(&self, stream: &RawStream) -> Result<u32> {
        let mut id = 0;
        let context = driver::result::ctx::get_current().ok().flatten().unwrap_or(std::ptr::null_mut());
        // SAFETY: the stream lives, in the current context.
        let got = unsafe { result::get_stream_id_ex(context, stream.handle(), 0, &mut id) };
        call("cuptiGetStreamIdEx", got)?;
        Ok(id)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // SAFETY: made in `new`. A failure has no cure here.
        let _ = unsafe { result::unsubscribe(self.0) };
    }
}

/// The number that records have for a node of a graph.
///
/// # Safety
/// The node exists.
pub(super) unsafe fn node_id(node: driver::sys::CUgraphNode) -> Option<u64> {
    let mut id = 0;
    // SAFETY: the caller's promise.
    unsafe { result::get_graph_node_id(node, &mut id) }.ok().map(|()| id)
}

/// CUPTI's clock, in nanoseconds.
pub(super) fn now() -> Result<u64> {
    let mut now = 0;
    // SAFETY: writes one integer.
    call("cuptiGetTimestamp", unsafe { result::get_timestamp(&mut now) })?;
    Ok(now)
}

/// Makes CUPTI hand over all records, including those of unfinished work.
pub(super) fn flush() -> Result<()> {
    const FORCED: u32 = 1;
    call("cuptiActivityFlushAll", activity::flush_all(FORCED))
}

/// Correlates this thread's calls with `id` until it is popped.
pub(super) fn push_correlation(id: u64) -> std::result::Result<(), CuptiError> {
    activity::push_external_correlation_id(CORRELATION, id)
}

/// Ends the last correlation.
pub(super) fn pop_correlation() {
    let mut last = 0;
    // SAFETY: writes one integer. A failure costs names, nothing else.
    let _ = unsafe { activity::pop_external_correlation_id(CORRELATION, &mut last) };
}

/// The name of a call of the driver (`driver`) or the runtime, such as `cuGraphLaunch`.
pub(super) fn callback_name(driver: bool, id: u32) -> String {
    use sys::CUpti_CallbackDomain as Domain;
    let domain = if driver { Domain::CUPTI_CB_DOMAIN_DRIVER_API } else { Domain::CUPTI_CB_DOMAIN_RUNTIME_API };
    let mut name = std::ptr::null();
    // SAFETY: writes a pointer to a string that lives as long as the library.
    unsafe {
        match result::get_callback_name(domain, id, &mut name) {
            Ok(()) if !name.is_null() => CStr::from_ptr(name).to_string_lossy().into_owned(),
            _ => format!("call {id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::libraries::Library;

    #[test]
    fn calls_have_the_names_that_cuda_documents() {
        Library::Cupti.load().unwrap_or_else(|error| panic!("{error}\nor run `./x test`, which installs it"));
        let graph_launch = sys::CUpti_driver_api_trace_cbid::CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch as u32;
        assert_eq!(callback_name(true, graph_launch), "cuGraphLaunch");
        assert_eq!(callback_name(true, u32::MAX), format!("call {}", u32::MAX));
    }
}
