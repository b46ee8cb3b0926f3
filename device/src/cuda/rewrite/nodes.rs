//! The nodes of a graph that is not instantiated yet, and the edges between them, as the driver gives them.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ptr::null_mut;

use cudarc::driver::sys;

use crate::Result;
use crate::cuda::driver::Driver;

/// Edges from or to a node: the nodes at their other ends, and the driver's data for each.
pub(in crate::cuda) type Neighbours = (Vec<sys::CUgraphNode>, Vec<sys::CUgraphEdgeData>);

/// All nodes and edges of a graph.
pub(super) struct GraphParts {
    pub(super) nodes: Vec<sys::CUgraphNode>,
    /// From and to, by indices of `nodes`.
    pub(super) edges: Vec<(usize, usize)>,
    /// The driver's data for each edge.
    pub(super) data: Vec<sys::CUgraphEdgeData>,
}

/// Whether an edge is a full dependency: its end begins when its start is done. Other edges let the end begin earlier.
pub(super) fn plain(data: &sys::CUgraphEdgeData) -> bool {
    data.from_port == 0 && data.to_port == 0 && data.type_ == 0
}

/// All nodes of a graph.
///
/// # Safety
/// The caller's graph. Nothing else uses it.
pub(super) unsafe fn nodes(graph: sys::CUgraph) -> Result<Vec<sys::CUgraphNode>> {
    let mut count = 0;
    // SAFETY: the caller's graph; the buffer has the size asked for. The driver refuses a buffer for no nodes.
    unsafe {
        sys::cuGraphGetNodes(graph, null_mut(), &mut count).result().driver("cuGraphGetNodes")?;
        let mut nodes = vec![null_mut(); count];
        if count > 0 {
            sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count).result().driver("cuGraphGetNodes")?;
        }
        Ok(nodes)
    }
}

/// All nodes and edges of a graph.
///
/// # Safety
/// As [`nodes`].
pub(super) unsafe fn whole(graph: sys::CUgraph) -> Result<GraphParts> {
    // SAFETY: the caller's graph; the buffers have the size asked for.
    let (nodes, from, to, data) = unsafe {
        let nodes = nodes(graph)?;
        let mut count = 0;
        sys::cuGraphGetEdges_v2(graph, null_mut(), null_mut(), null_mut(), &mut count)
            .result()
            .driver("cuGraphGetEdges")?;
        let (mut from, mut to) = (vec![null_mut(); count], vec![null_mut(); count]);
        let mut data: Vec<sys::CUgraphEdgeData> = vec![std::mem::zeroed(); count];
        if count > 0 {
            sys::cuGraphGetEdges_v2(graph, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut count)
                .result()
                .driver("cuGraphGetEdges")?;
        }
        (nodes, from, to, data)
    };
    let numbers: HashMap<sys::CUgraphNode, usize> = nodes.iter().enumerate().map(|(at, &node)| (node, at)).collect();
    let edges = from.iter().zip(&to).map(|(from, to)| (numbers[from], numbers[to])).collect();
    Ok(GraphParts { nodes, edges, data })
}

/// Whether a node is of a type. Types are compared as numbers, since newer drivers have types that our bindings lack.
///
/// # Safety
/// The node exists.
pub(in crate::cuda) unsafe fn is_of(node: sys::CUgraphNode, kind: sys::CUgraphNodeType) -> Result<bool> {
    let mut found = 0_u32;
    // SAFETY: the caller's node; the type is as large as a number.
    unsafe { sys::cuGraphNodeGetType(node, (&raw mut found).cast()) }.result().driver("cuGraphNodeGetType")?;
    Ok(found == kind as u32)
}

/// The edges that end in a node, or begin in it.
///
/// # Safety
/// The node exists.
pub(in crate::cuda) unsafe fn neighbours(node: sys::CUgraphNode, before: bool) -> Result<Neighbours> {
    let get = if before { sys::cuGraphNodeGetDependencies_v2 } else { sys::cuGraphNodeGetDependentNodes_v2 };
    let mut count = 0;
    // SAFETY: the caller's node; the buffers have the size asked for.
    unsafe {
        get(node, null_mut(), null_mut(), &mut count).result().driver("cuGraphNodeGetDependencies")?;
        let (mut nodes, mut data) = (vec![null_mut(); count], vec![std::mem::zeroed(); count]);
        if count > 0 {
            get(node, nodes.as_mut_ptr(), data.as_mut_ptr(), &mut count)
                .result()
                .driver("cuGraphNodeGetDependencies")?;
        }
        Ok((nodes, data))
    }
}

/// Adds an edge from `from[i]` to `to[i]` for every `i`.
///
/// # Safety
/// All nodes are the graph's.
pub(super) unsafe fn connect(
    graph: sys::CUgraph,
    from: &[sys::CUgraphNode],
    to: &[sys::CUgraphNode],
    data: &[sys::CUgraphEdgeData],
) -> Result<()> {
    assert!(from.len() == data.len() && to.len() == data.len(), "an edge has two ends");
    if data.is_empty() {
        return Ok(());
    }
    // SAFETY: the caller promises it, and the three are of one length.
    unsafe { sys::cuGraphAddDependencies_v2(graph, from.as_ptr(), to.as_ptr(), data.as_ptr(), data.len()) }
        .result()
        .driver("cuGraphAddDependencies")
}
