//! Graphs of the driver.

#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;

use cudarc::driver::{result, sys};

use crate::cuda::driver::{CaptureInfo, Driver, RawStream};
use crate::cuda::{Kernels, rewrite};
use crate::{Error, Result};

/// An instantiated graph.
pub(crate) struct RawGraph {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    /// Free bytes before the graph was instantiated, less those after the upload.
    driver_bytes: i64,
}

/// What the driver prints of a graph besides its nodes, their types and the names of kernels.
const PRINTED: [sys::CUgraphDebugDot_flags; 4] = [
    sys::CUgraphDebugDot_flags::CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS,
    sys::CUgraphDebugDot_flags::CU_GRAPH_DEBUG_DOT_FLAGS_MEMCPY_NODE_PARAMS,
    sys::CUgraphDebugDot_flags::CU_GRAPH_DEBUG_DOT_FLAGS_MEMSET_NODE_PARAMS,
    sys::CUgraphDebugDot_flags::CU_GRAPH_DEBUG_DOT_FLAGS_EXTRA_TOPO_INFO,
];

impl RawGraph {
    /// Ends a stream's capture and makes the graph ready to launch.
    pub(crate) fn end_capture(stream: &RawStream, kernels: &Kernels) -> Result<RawGraph> {
        let graph = stream.end_capture()?;
        // SAFETY: the graph was just captured and nothing else uses it.
        let rewritten = unsafe { rewrite::rewrite(graph, kernels) };
        let made = rewritten.and_then(|()| {
            let free = free_bytes()?;
            // Without this flag the whole graph has the priority of the stream that it is launched on.
            let flag = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
            // SAFETY: the graph lives.
            let exec = unsafe { result::graph::instantiate(graph, flag) }.driver("cuGraphInstantiate")?;
            Ok((exec, free))
        });
        let (exec, free) = made.inspect_err(|_| {
            // SAFETY: the graph lives, and nothing else has it.
            let _ = unsafe { result::graph::destroy(graph) };
        })?;
        // From here on both are destroyed with this value.
        let mut raw = RawGraph { graph, exec, driver_bytes: 0 };
        // SAFETY: the graph and the stream live.
        unsafe { result::graph::upload(raw.exec, stream.handle()) }.driver("cuGraphUpload")?;
        raw.driver_bytes = free - free_bytes()?;
        Ok(raw)
    }

    /// See [`Graph::driver_bytes`](crate::Graph::driver_bytes).
    pub(crate) fn driver_bytes(&self) -> i64 {
        self.driver_bytes
    }

    /// The driver's print of the graph, after it was rewritten.
    pub(crate) fn dot(&self) -> Result<String> {
        const CALL: &str = "cuGraphDebugDotPrint";
        let failed = |error: std::io::Error| Error::Driver {
            call: CALL,
            problem: format!("its temporary file: {error}. Fix: room in the folder that TMPDIR names"),
        };
        // The driver prints to a path alone.
        let file = tempfile::NamedTempFile::new().map_err(failed)?;
        let path = CString::new(file.path().as_os_str().as_bytes()).map_err(|error| failed(error.into()))?;
        let flags = PRINTED.iter().fold(0, |flags, flag| flags | *flag as u32);
        // SAFETY: the graph lives, and the path is a string that does too.
        unsafe { sys::cuGraphDebugDotPrint(self.graph, path.as_ptr(), flags) }.result().driver(CALL)?;
        std::fs::read_to_string(file.path()).map_err(failed)
    }

    /// Adds the graph, as a child graph, to the stream's capture. The driver refuses a launch there.
    pub(crate) fn add_to_capture(&self, stream: &RawStream) -> Result<()> {
        let CaptureInfo { graph, before, .. } = stream.capture_info()?;
        // SAFETY: the stream captures, and both graphs live.
        let child = unsafe { add_child(graph, &before, self.graph)? };
        stream.continue_after(child)
    }

    pub(crate) fn launch(&self, stream: &RawStream) -> Result<()> {
        // SAFETY: both live; addresses in the graph are checked to be alive by the caller.
        unsafe { result::graph::launch(self.exec, stream.handle()) }.driver("cuGraphLaunch")
    }
}

/// Adds a graph, as a child graph, to one that is not instantiated, after the nodes `before`. The driver copies the child.
///
/// # Safety
/// Both graphs live, and the nodes are the first one's.
///
/// # Errors
/// The driver's, also for a child with a conditional node.
pub(super) unsafe fn add_child(
    graph: sys::CUgraph,
    before: &[sys::CUgraphNode],
    child: sys::CUgraph,
) -> Result<sys::CUgraphNode> {
    let mut node = null_mut();
    // SAFETY: the caller promises it.
    unsafe { sys::cuGraphAddChildGraphNode(&mut node, graph, before.as_ptr(), before.len(), child) }
        .result()
        .driver("cuGraphAddChildGraphNode")?;
    Ok(node)
}

/// Adds a kernel to a graph that is not instantiated, after the nodes `before`. `arguments` point to the values of the
/// arguments that the kernel declares, in order; the driver copies them.
///
/// # Safety
/// The graph lives, the nodes are its own, and the function is loaded as long as the graph.
///
/// # Errors
/// The driver's.
pub(crate) unsafe fn add_kernel(
    graph: sys::CUgraph,
    before: &[sys::CUgraphNode],
    function: sys::CUfunction,
    (blocks, threads): (u32, u32),
    arguments: &mut [*mut c_void],
) -> Result<sys::CUgraphNode> {
    let kernel = sys::CUDA_KERNEL_NODE_PARAMS {
        func: function,
        gridDimX: blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: arguments.as_mut_ptr(),
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    };
    let mut node = null_mut();
    // SAFETY: the caller promises it.
    unsafe { sys::cuGraphAddKernelNode_v2(&mut node, graph, before.as_ptr(), before.len(), &kernel) }
        .result()
        .driver("cuGraphAddKernelNode")?;
    Ok(node)
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

/// Bytes of the GPU's memory that nobody has.
fn free_bytes() -> Result<i64> {
    result::mem_get_info().driver("cuMemGetInfo").map(|(free, _)| free as i64)
}
