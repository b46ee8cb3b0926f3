//! CUDA streams, events and graphs, each owned by one value that destroys it.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::rc::Rc;

use cudarc::driver::{result, sys};

use super::error::Driver;
use super::memory::PinnedBlock;
use super::{Kernels, rewrite};
use crate::lane::Priority;
use crate::{Element, Result};

/// A named stream of the driver's, not synchronising with the legacy default stream.
pub(crate) struct RawStream {
    handle: sys::CUstream,
}

impl RawStream {
    /// A stream that waits for no other by itself. Its kernels keep its priority in graphs.
    pub(crate) fn new(priority: Priority) -> Result<RawStream> {
        let (least, greatest) = result::stream::get_priority_range().driver("cuCtxGetStreamPriorityRange")?;
        let priority = if priority == Priority::Transfer { greatest } else { least };
        let kind = result::stream::StreamKind::NonBlocking;
        let handle = result::stream::create_with_priority(kind, priority).driver("cuStreamCreateWithPriority")?;
        Ok(RawStream { handle })
    }

    pub(crate) fn handle(&self) -> sys::CUstream {
        self.handle
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives as long as this value.
        unsafe { result::stream::synchronize(self.handle) }.driver("cuStreamSynchronize")
    }

    pub(crate) fn wait(&self, event: &RawEvent) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live.
        unsafe { result::stream::wait_event(self.handle, event.handle, flags) }.driver("cuStreamWaitEvent")
    }

    /// Copies from the start of pinned memory to `address`, in stream order.
    pub(crate) fn copy_in(&self, address: u64, from: &PinnedBlock, bytes: usize) -> Result<()> {
        // SAFETY: the caller keeps both memories alive and unchanged until an event recorded after this has passed.
        unsafe { sys::cuMemcpyHtoDAsync_v2(address, from.as_ptr(), bytes, self.handle) }
            .result()
            .driver("cuMemcpyHtoDAsync")
    }

    /// Copies from `address` to the start of pinned memory, in stream order.
    pub(crate) fn copy_out(&self, to: &PinnedBlock, address: u64, bytes: usize) -> Result<()> {
        // SAFETY: as `copy_in`.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_ptr(), address, bytes, self.handle) }
            .result()
            .driver("cuMemcpyDtoHAsync")
    }

    /// Copies within device memory, in stream order.
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: operations are checked to lie within live memory before they are submitted.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.handle) }.driver("cuMemcpyDtoDAsync")
    }

    /// Sets every byte, in stream order.
    pub(crate) fn set_bytes(&self, address: u64, value: u8, bytes: usize) -> Result<()> {
        // SAFETY: as `copy`.
        unsafe { result::memset_d8_async(address, value, bytes, self.handle) }.driver("cuMemsetD8Async")
    }

    /// Writes 64-bit words from `address` on, in stream order: the stream does it itself, without a kernel.
    pub(crate) fn write_words(&self, address: u64, words: &[u64]) -> Result<()> {
        let mut writes: Vec<sys::CUstreamBatchMemOpParams> = Vec::with_capacity(words.len());
        for (at, &word) in words.iter().enumerate() {
            // SAFETY: plain numbers, of which zeros are a value. Written as a member, the rest stays zero.
            let mut write: sys::CUstreamBatchMemOpParams = unsafe { std::mem::zeroed() };
            write.writeValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
                operation: sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64,
                address: address + 8 * at as u64,
                __bindgen_anon_1: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 {
                    value64: word,
                },
                flags: 0,
                alias: 0,
            };
            writes.push(write);
        }
        // SAFETY: as `copy`; the list is copied during the call.
        unsafe { sys::cuStreamBatchMemOp_v2(self.handle, writes.len() as u32, writes.as_mut_ptr(), 0) }
            .result()
            .driver("cuStreamBatchMemOp")
    }

    pub(crate) fn begin_capture(&self) -> Result<()> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        unsafe { result::stream::begin_capture(self.handle, mode) }.driver("cuStreamBeginCapture")
    }

    /// Ends the capture and makes the graph ready to launch.
    pub(crate) fn end_capture(&self, kernels: &Kernels) -> Result<RawGraph> {
        // SAFETY: the stream lives; the graph is destroyed below or with the returned value.
        unsafe {
            let graph = result::stream::end_capture(self.handle).driver("cuStreamEndCapture")?;
            let raw = rewrite::rewrite(graph, kernels).and_then(|()| {
                // Without this all of a graph has the priority of the stream that it is launched on.
                let flag = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
                let exec = result::graph::instantiate(graph, flag);
                exec.driver("cuGraphInstantiate").map(|exec| RawGraph { graph, exec })
            });
            if raw.is_err() {
                let _ = result::graph::destroy(graph);
            }
            let raw = raw?;
            result::graph::upload(raw.exec, self.handle).driver("cuGraphUpload")?;
            Ok(raw)
        }
    }

    /// Ends a capture whose graph nobody wants.
    pub(crate) fn abandon_capture(&self) {
        // SAFETY: the stream lives. A capture that had failed gives no graph and an error that says so: both are fine.
        unsafe {
            if let Ok(graph) = result::stream::end_capture(self.handle)
                && !graph.is_null()
            {
                let _ = result::graph::destroy(graph);
            }
        }
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        // SAFETY: created in `new`. A failure has no cure here.
        let _ = unsafe { result::stream::destroy(self.handle) };
    }
}

/// An event of the driver's, without timing unless asked for.
pub(crate) struct RawEvent {
    handle: sys::CUevent,
}

impl RawEvent {
    pub(crate) fn new() -> Result<RawEvent> {
        RawEvent::with(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// One that knows when it passed.
    pub(crate) fn timed() -> Result<RawEvent> {
        RawEvent::with(sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(flags: sys::CUevent_flags) -> Result<RawEvent> {
        Ok(RawEvent { handle: result::event::create(flags).driver("cuEventCreate")? })
    }

    pub(crate) fn record(&self, stream: &RawStream) -> Result<()> {
        // SAFETY: both live.
        unsafe { result::event::record(self.handle, stream.handle) }.driver("cuEventRecord")
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(self.handle) }.driver("cuEventSynchronize")
    }

    /// Whether the work before it is done.
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

impl Drop for RawEvent {
    fn drop(&mut self) {
        // SAFETY: created in `with`. A failure has no cure here.
        let _ = unsafe { result::event::destroy(self.handle) };
    }
}

/// An instantiated graph.
pub(crate) struct RawGraph {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
}

impl RawGraph {
    pub(crate) fn launch(&self, stream: &RawStream) -> Result<()> {
        // SAFETY: both live; addresses in the graph are checked to be alive by the caller.
        unsafe { result::graph::launch(self.exec, stream.handle) }.driver("cuGraphLaunch")
    }
}

impl Drop for RawGraph {
    fn drop(&mut self) {
        // SAFETY: made in `end_capture`. A failure has no cure here.
        unsafe {
            let _ = result::graph::exec_destroy(self.exec);
            let _ = result::graph::destroy(self.graph);
        }
    }
}

/// Values on their way from the GPU: pinned memory, and the event after the copy into it.
pub(crate) struct Arriving {
    block: PinnedBlock,
    done: RawEvent,
    /// Its number among the stream's read-backs.
    number: Cell<u64>,
    /// The newest number that arrived.
    arrived: Rc<Cell<u64>>,
}

impl Arriving {
    pub(crate) fn new(bytes: usize, arrived: Rc<Cell<u64>>) -> Result<Arriving> {
        Ok(Arriving { block: PinnedBlock::new(bytes)?, done: RawEvent::new()?, number: Cell::new(0), arrived })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.block.bytes()
    }

    /// Starts a copy from `address`, in stream order, as the stream's read-back of that number.
    pub(crate) fn start(&self, stream: &RawStream, address: u64, bytes: usize, number: u64) -> Result<()> {
        self.number.set(number);
        stream.copy_out(&self.block, address, bytes)?;
        self.done.record(stream)
    }

    /// Waits for the copy.
    pub(crate) fn wait<T: Element>(&self, count: usize) -> Result<Vec<T>> {
        self.done.synchronize()?;
        self.arrived.set(self.arrived.get().max(self.number.get()));
        Ok(self.block.slice(count).to_vec())
    }
}
