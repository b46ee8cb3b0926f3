//! Graphs of the driver.

#![allow(unsafe_code)]

use std::ptr::null_mut;

use cudarc::driver::{result, sys};

use super::driver::{CaptureInfo, Driver, RawStream};
use super::{Kernels, rewrite};
use crate::Result;

/// An instantiated graph.
pub(crate) struct RawGraph {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
}

impl RawGraph {
    /// Ends a stream's capture and makes the graph ready to launch.
    pub(crate) fn end_capture(stream: &RawStream, kernels: &Kernels) -> Result<RawGraph> {
        let graph = stream.end_capture()?;
        // SAFETY: the stream lives; the graph is destroyed below or with the returned value.
        unsafe {
            let raw = rewrite::rewrite(graph, kernels).and_then(|()| {
                // Without this flag the whole graph has the priority of the stream that it is launched on.
                let flag = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
                let exec = result::graph::instantiate(graph, flag);
                exec.driver("cuGraphInstantiate").map(|exec| RawGraph { graph, exec })
            });
            if raw.is_err() {
                let _ = result::graph::destroy(graph);
            }
            let raw = raw?;
            result::graph::upload(raw.exec, stream.handle()).driver("cuGraphUpload")?;
            Ok(raw)
        }
    }

    /// Adds the graph, as a child graph, to the stream's capture. The driver refuses a launch there.
    pub(crate) fn add_to_capture(&self, stream: &RawStream) -> Result<()> {
        let CaptureInfo { graph, before, count, .. } = stream.capture_info()?;
        let mut child = null_mut();
        // SAFETY: the stream captures, and both graphs live. The arrays belong to the capture and are read before the next
        // call on the stream. The driver copies the child graph.
        unsafe {
            sys::cuGraphAddChildGraphNode(&mut child, graph, before, count, self.graph)
                .result()
                .driver("cuGraphAddChildGraphNode")?;
        }
        stream.continue_after(child)
    }

    pub(crate) fn launch(&self, stream: &RawStream) -> Result<()> {
        // SAFETY: both live; addresses in the graph are checked to be alive by the caller.
        unsafe { result::graph::launch(self.exec, stream.handle()) }.driver("cuGraphLaunch")
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
