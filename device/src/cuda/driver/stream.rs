//! Streams of the driver.

#![allow(unsafe_code)]

use std::any::Any;
use std::ptr::{null, null_mut};
use std::rc::Rc;

use cudarc::driver::{result, sys};

use super::{Driver, RawEvent};
use crate::gpu_types::StreamHandle;
use crate::host_memory::HostBlock;
use crate::priority::Priority;
use crate::{CaptureMode, Error, Result};

/// A stream of the driver that does not synchronise with the legacy default stream.
pub(crate) struct RawStream {
    owner: Rc<StreamOwner>,
}

/// The driver's stream, which is destroyed with this value unless other code owns it. The value tells the stream from all
/// others, also from one that later gets its handle.
pub(in crate::cuda) struct StreamOwner {
    handle: sys::CUstream,
    /// Of other code.
    other: Option<Box<dyn Any>>,
}

impl StreamOwner {
    pub(in crate::cuda) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives as long as this value.
        unsafe { result::stream::synchronize(self.handle) }.driver("cuStreamSynchronize")
    }
}

impl Drop for StreamOwner {
    fn drop(&mut self) {
        if self.other.is_none() {
            // SAFETY: created in `RawStream::new`. A failure has no cure here.
            let _ = unsafe { result::stream::destroy(self.handle) };
        }
    }
}

/// What the driver says of a stream's capture.
pub(in crate::cuda) struct CaptureInfo {
    pub(in crate::cuda) status: sys::CUstreamCaptureStatus,
    /// The graph so far; null if the stream does not capture.
    pub(in crate::cuda) graph: sys::CUgraph,
    /// The nodes that the next one depends on. None of a capture that is invalid.
    pub(in crate::cuda) before: Vec<sys::CUgraphNode>,
}

impl RawStream {
    /// A stream that waits for no other by itself. Its kernels keep its priority inside graphs.
    pub(crate) fn new(priority: Priority) -> Result<RawStream> {
        let (least, greatest) = result::stream::get_priority_range().driver("cuCtxGetStreamPriorityRange")?;
        let priority = match priority {
            Priority::Background => least,
            // Smaller numbers are served first. A GPU may have one priority only.
            Priority::Compute => (least - 1).max(greatest),
            Priority::Transfer => greatest,
        };
        let kind = result::stream::StreamKind::NonBlocking;
        let handle = result::stream::create_with_priority(kind, priority).driver("cuStreamCreateWithPriority")?;
        Ok(RawStream { owner: Rc::new(StreamOwner { handle, other: None }) })
    }

    /// A stream of other code. The caller promises that it lives as long as `owner`.
    ///
    /// # Errors
    /// The default stream, one that waits for it, or one of another context.
    pub(in crate::cuda) fn adopt(handle: StreamHandle, owner: Box<dyn Any>) -> Result<RawStream> {
        let handle: sys::CUstream = handle.0.cast();
        let refuse = |problem: &str, rule: &str, fix: &str| {
            Err(Error::operation("adopt_stream", format!("{problem}. Rule: {rule}. Fix: {fix}")))
        };
        if handle.is_null() {
            let rule = "the default stream waits for all others, which a capture cannot";
            return refuse("the default stream was given", rule, "make another (CudaContext::new_stream)");
        }
        let (mut flags, mut context) = (0, null_mut());
        // SAFETY: the caller's stream lives. The driver writes two values.
        unsafe {
            sys::cuStreamGetFlags(handle, &mut flags).result().driver("cuStreamGetFlags")?;
            sys::cuStreamGetCtx(handle, &mut context).result().driver("cuStreamGetCtx")?;
        }
        if flags & sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32 == 0 {
            let rule = "streams wait for each other by events alone";
            return refuse("the stream waits for the default stream", rule, "make it with CU_STREAM_NON_BLOCKING");
        }
        if result::ctx::get_current().driver("cuCtxGetCurrent")? != Some(context) {
            let rule = "a device works in its GPU's primary context";
            return refuse(
                "the stream is of another context",
                rule,
                "make it in the primary context (CudaContext::new)",
            );
        }
        Ok(RawStream { owner: Rc::new(StreamOwner { handle, other: Some(owner) }) })
    }

    /// Lives as long as the stream, and is no other stream's.
    pub(in crate::cuda) fn owner(&self) -> &Rc<StreamOwner> {
        &self.owner
    }

    pub(crate) fn handle(&self) -> sys::CUstream {
        self.owner.handle
    }

    /// The driver's number for the stream's priority.
    pub(in crate::cuda) fn priority(&self) -> Result<i32> {
        let mut priority = 0;
        // SAFETY: the stream lives.
        unsafe { sys::cuStreamGetPriority(self.handle(), &mut priority) }.result().driver("cuStreamGetPriority")?;
        Ok(priority)
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        self.owner.synchronize()
    }

    pub(crate) fn wait(&self, event: &RawEvent) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live.
        unsafe { result::stream::wait_event(self.handle(), event.handle(), flags) }.driver("cuStreamWaitEvent")
    }

    /// Records an event after everything submitted so far.
    pub(crate) fn record(&self, event: &RawEvent) -> Result<()> {
        // SAFETY: both live.
        unsafe { result::event::record(event.handle(), self.handle()) }.driver("cuEventRecord")
    }

    /// Copies pinned memory, from its byte `at` on, to `address`, in stream order.
    pub(crate) fn copy_in(&self, address: u64, (from, at): (&HostBlock, usize), bytes: usize) -> Result<()> {
        assert!(at + bytes <= from.bytes(), "{bytes} bytes at {at} in a block of {}", from.bytes());
        // SAFETY: the source lies within the block, see above. The caller keeps both memories alive and unchanged until an
        // event recorded after this has passed.
        unsafe { self.copy_raw(address, from.as_ptr().byte_add(at).expose_provenance() as u64, bytes) }
    }

    /// Copies rows of `row` bytes from pinned memory to neighbouring rows at `address`, in stream order. In pinned
    /// memory the first begins `first` bytes after the start, and the others `pitch` bytes apart.
    pub(crate) fn copy_rows_in(
        &self,
        address: u64,
        from: &HostBlock,
        (first, pitch): (usize, usize),
        (rows, row): (usize, usize),
    ) -> Result<()> {
        assert!(rows == 0 || first + (rows - 1) * pitch + row <= from.bytes(), "rows outside of pinned memory");
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: first,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: from.as_ptr(),
            srcDevice: 0,
            srcArray: std::ptr::null_mut(),
            srcPitch: pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: address,
            dstArray: std::ptr::null_mut(),
            dstPitch: row,
            WidthInBytes: row,
            Height: rows,
        };
        // SAFETY: the source lies within the block, see above; the rest as in `copy_in`.
        unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.handle()) }.result().driver("cuMemcpy2DAsync")
    }

    /// Copies from `address` to a block of host memory, from its byte `at` on, in stream order. Ordinary memory blocks the
    /// host until the copy is done.
    pub(crate) fn copy_out(&self, (to, at): (&HostBlock, usize), address: u64, bytes: usize) -> Result<()> {
        assert!(at + bytes <= to.bytes(), "{bytes} bytes at {at} in a block of {}", to.bytes());
        // SAFETY: the target lies within the block, see above; the rest as in `copy_in`.
        unsafe { self.copy_raw(to.as_ptr().byte_add(at).expose_provenance() as u64, address, bytes) }
    }

    /// Copies device memory or page-locked memory of the host, in stream order. The driver knows both by their addresses.
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: operations are checked to lie within live memory before they are submitted.
        unsafe { self.copy_raw(to, from, bytes) }
    }

    /// # Safety
    /// Both memories are as large, and alive and unchanged until the copy is done.
    unsafe fn copy_raw(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as above. The driver finds out which of the two is the host's.
        unsafe { sys::cuMemcpyAsync(to, from, bytes, self.handle()) }.result().driver("cuMemcpyAsync")
    }

    /// Sets every byte, in stream order.
    pub(crate) fn set_bytes(&self, address: u64, value: u8, bytes: usize) -> Result<()> {
        // SAFETY: as `copy`.
        unsafe { result::memset_d8_async(address, value, bytes, self.handle()) }.driver("cuMemsetD8Async")
    }

    /// The capture of the stream, if it captures.
    pub(in crate::cuda) fn capture_info(&self) -> Result<CaptureInfo> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut graph, mut before, mut data, mut count) = (null_mut(), null(), null(), 0);
        // SAFETY: the stream lives; all is written to variables of their types. The driver's array of so many nodes lives
        // until the next call on the stream.
        let before = unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                self.handle(),
                &mut status,
                null_mut(),
                &mut graph,
                &mut before,
                &mut data,
                &mut count,
            )
            .result()
            .driver("cuStreamGetCaptureInfo")?;
            // The driver says nothing of other captures.
            match status {
                sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE if count > 0 => {
                    std::slice::from_raw_parts(before, count).to_vec()
                }
                _ => Vec::new(),
            }
        };
        Ok(CaptureInfo { status, graph, before })
    }

    pub(crate) fn begin_capture(&self, mode: CaptureMode) -> Result<()> {
        let mode = match mode {
            CaptureMode::ThreadLocal => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CaptureMode::Global => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            CaptureMode::Relaxed => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        };
        // SAFETY: the stream lives.
        unsafe { result::stream::begin_capture(self.handle(), mode) }.driver("cuStreamBeginCapture")
    }

    /// The next work of the stream's capture comes after this node, and so after all that the node comes after.
    pub(in crate::cuda) fn continue_after(&self, mut node: sys::CUgraphNode) -> Result<()> {
        let set = sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_SET_CAPTURE_DEPENDENCIES as u32;
        // SAFETY: the stream captures, and the node is its graph's.
        unsafe { sys::cuStreamUpdateCaptureDependencies_v2(self.handle(), &mut node, null(), 1, set) }
            .result()
            .driver("cuStreamUpdateCaptureDependencies")
    }

    /// Ends the capture. The caller destroys the graph.
    pub(crate) fn end_capture(&self) -> Result<sys::CUgraph> {
        // SAFETY: the stream lives.
        unsafe { result::stream::end_capture(self.handle()) }.driver("cuStreamEndCapture")
    }

    /// Ends a capture and discards its graph.
    pub(crate) fn abandon_capture(&self) {
        // SAFETY: the stream lives. A failed capture gives an error and no graph. Both may be ignored here.
        unsafe {
            if let Ok(graph) = result::stream::end_capture(self.handle())
                && !graph.is_null()
            {
                let _ = result::graph::destroy(graph);
            }
        }
    }
}
