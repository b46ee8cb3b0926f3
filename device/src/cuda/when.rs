//! `when`: conditional nodes in graphs.
//!
//! A kernel sets the node's condition from the flag. The node depends on it alone, and comes next on the stream. The
//! body is captured on a stream of its own into the graph that the node has for it.

#![allow(unsafe_code)]

use std::ptr::{null, null_mut};

use cudarc::driver::{result, sys};

use super::condition::not_loaded;
use super::driver::{CaptureInfo, Driver, RawStream};
use super::{CudaDevice, Queue, ops};
use crate::ops::When;
use crate::{Op, Result};

/// Adds an operation to the capture of the queue's stream: the kernel, the node, and the body. `bodies` are streams that
/// nothing else uses, as many as bodies lie in one another.
///
/// # Errors
/// The driver's; those of an operation in the body.
pub(super) fn add_to_capture(when: &When, cuda: &CudaDevice, queue: &Queue<'_>, bodies: &[RawStream]) -> Result<()> {
    let (Some(condition), [stream, inner @ ..]) = (cuda.condition.get(), bodies) else {
        return Err(not_loaded());
    };
    let graph = queue.stream.capture_info()?.graph;
    let context = result::ctx::get_current().driver("cuCtxGetCurrent")?.unwrap_or(null_mut());
    let mut handle = 0;
    // SAFETY: the stream captures, so it has a graph. The handle is for the node below.
    unsafe {
        sys::cuGraphConditionalHandleCreate(&mut handle, graph, context, 0, sys::CU_GRAPH_COND_ASSIGN_DEFAULT)
            .result()
            .driver("cuGraphConditionalHandleCreate")?;
    }
    condition.launch(queue.stream, handle, when.flag.address)?;
    let body = add_node(queue.stream, handle, context)?;
    stream.begin_capture_to(body)?;
    let queue = Queue { kernels: queue.kernels, stream, scratch: queue.scratch };
    let run = |op: &Op| match op {
        Op::When(when) => add_to_capture(when, cuda, &queue, inner),
        op => ops::run(op, cuda, &queue),
    };
    let captured = when.body.iter().try_for_each(run);
    // Also after a failure. The graph is the node's.
    let ended = stream.end_capture();
    captured.and(ended.map(|_| ()))
}

/// Adds a conditional node to a stream's capture, after all its work so far. Returns the graph for the node's body.
fn add_node(stream: &RawStream, handle: u64, context: sys::CUcontext) -> Result<sys::CUgraph> {
    let CaptureInfo { graph, before, count, .. } = stream.capture_info()?;
    let mut node = null_mut();
    // SAFETY: zeros are valid for the struct. The stream captures; the array of nodes belongs to the capture and is read
    // before the next call on the stream. The driver writes the address of its own array of one graph, which lives as
    // long as the node.
    unsafe {
        let mut parameters: sys::CUgraphNodeParams = std::mem::zeroed();
        parameters.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
        parameters.__bindgen_anon_1.conditional = sys::CUDA_CONDITIONAL_NODE_PARAMS {
            handle,
            type_: sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF,
            size: 1,
            phGraph_out: null_mut(),
            ctx: context,
        };
        sys::cuGraphAddNode_v2(&mut node, graph, before, null(), count, &mut parameters)
            .result()
            .driver("cuGraphAddNode")?;
        stream.continue_after(node)?;
        Ok(*parameters.__bindgen_anon_1.conditional.phGraph_out)
    }
}
