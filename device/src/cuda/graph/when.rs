//! `when`: conditional nodes in graphs.
//!
//! A kernel sets the node's condition from the flag. The node depends on it alone, and comes next on the stream. What the
//! body does is captured before, in graphs that are child graphs of the node's own. A capture could also continue into
//! the node's graph. If the driver then refuses something of the body, it destroys that graph together with the capture,
//! and the process ends when the stream's capture does, with CUDA 13.0 (<https://github.com/NVIDIA/cuda-python/issues/2918>).

#![allow(unsafe_code)]

use std::ptr::{null, null_mut};

use cudarc::driver::{result, sys};

use super::condition::{SetCondition, not_loaded};
use super::raw::add_child;
use crate::cuda::driver::{CaptureInfo, Driver, RawStream};
use crate::cuda::{CudaDevice, Queue};
use crate::ops::When;
use crate::{CaptureMode, Op, Result};

/// Adds an operation to the capture of the queue's stream. `captures` is a stream that nothing else uses.
///
/// # Errors
/// Those of an operation in the body, before anything is added. The driver's.
pub(crate) fn add_to_capture(when: &When, cuda: &CudaDevice, queue: &Queue<'_>, captures: &RawStream) -> Result<()> {
    let condition = cuda.condition.get().ok_or_else(not_loaded)?;
    let on_captures = Queue { kernels: queue.kernels, stream: captures, scratch: queue.scratch };
    let parts = parts(&when.body, cuda, &on_captures)?;
    let CaptureInfo { graph, before, .. } = queue.stream.capture_info()?;
    let adds = Adds { condition, priority: queue.stream.priority()?, context: context()? };
    let node = adds.when(graph, &before, when.flag.address, &parts)?;
    queue.stream.continue_after(node)
}

/// A part of a body. The next one comes after it.
enum Part {
    Captured(CapturedGraph),
    /// The flag's address, and the body.
    When(u64, Vec<Part>),
}

/// A graph that is not instantiated. It is destroyed when dropped.
struct CapturedGraph(sys::CUgraph);

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // SAFETY: from a capture, and nothing else has it. A failure has no cure here.
        let _ = unsafe { result::graph::destroy(self.0) };
    }
}

/// The parts of a body: `when`s, and the operations between them. The queue's stream captures them.
fn parts(body: &[Op], cuda: &CudaDevice, queue: &Queue<'_>) -> Result<Vec<Part>> {
    let part = |ops: &[Op]| match ops {
        [Op::When(when)] => Ok(Part::When(when.flag.address, parts(&when.body, cuda, queue)?)),
        ops => {
            queue.stream.begin_capture(CaptureMode::ThreadLocal)?;
            if let Err(error) = ops.iter().try_for_each(|op| op.on_cuda().launch(cuda, queue)) {
                queue.stream.abandon_capture();
                return Err(error);
            }
            Ok(Part::Captured(CapturedGraph(queue.stream.end_capture()?)))
        }
    };
    let is_when = |op: &Op| matches!(op, Op::When(_));
    body.chunk_by(|a, b| !is_when(a) && !is_when(b)).map(part).collect()
}

/// What all nodes of an operation are added with.
struct Adds<'a> {
    condition: &'a SetCondition,
    priority: i32,
    context: sys::CUcontext,
}

impl Adds<'_> {
    /// Adds a `when` to a graph that is not instantiated, after the nodes `before`: the kernel that sets the condition,
    /// and the conditional node, with its body. Returns that node.
    fn when(
        &self,
        graph: sys::CUgraph,
        before: &[sys::CUgraphNode],
        flag: u64,
        parts: &[Part],
    ) -> Result<sys::CUgraphNode> {
        let mut handle = 0;
        // SAFETY: the graph is the caller's. The handle is for the node below.
        unsafe {
            sys::cuGraphConditionalHandleCreate(&mut handle, graph, self.context, 0, sys::CU_GRAPH_COND_ASSIGN_DEFAULT)
                .result()
                .driver("cuGraphConditionalHandleCreate")?;
        }
        let set = self.condition.add(graph, before, self.priority, (handle, flag))?;
        let (node, body) = self.conditional(graph, set, handle)?;
        let mut last = Vec::new();
        for part in parts {
            last = vec![match part {
                // SAFETY: both graphs live, and the nodes are the body's.
                Part::Captured(captured) => unsafe { add_child(body, &last, captured.0)? },
                Part::When(flag, parts) => self.when(body, &last, *flag, parts)?,
            }];
        }
        Ok(node)
    }

    /// Adds a conditional node to a graph. Returns it, and the graph of its body, which lives as long as the node.
    fn conditional(
        &self,
        graph: sys::CUgraph,
        before: sys::CUgraphNode,
        handle: u64,
    ) -> Result<(sys::CUgraphNode, sys::CUgraph)> {
        let mut node = null_mut();
        // SAFETY: zeros are valid for the struct. The node before is the graph's. The driver writes the address of its
        // own array of one graph.
        unsafe {
            let mut parameters: sys::CUgraphNodeParams = std::mem::zeroed();
            parameters.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
            parameters.__bindgen_anon_1.conditional = sys::CUDA_CONDITIONAL_NODE_PARAMS {
                handle,
                type_: sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF,
                size: 1,
                phGraph_out: null_mut(),
                ctx: self.context,
            };
            sys::cuGraphAddNode_v2(&mut node, graph, &before, null(), 1, &mut parameters)
                .result()
                .driver("cuGraphAddNode")?;
            Ok((node, *parameters.__bindgen_anon_1.conditional.phGraph_out))
        }
    }
}

fn context() -> Result<sys::CUcontext> {
    Ok(result::ctx::get_current().driver("cuCtxGetCurrent")?.unwrap_or(null_mut()))
}
