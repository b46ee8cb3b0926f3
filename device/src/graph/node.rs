//! One captured operation.

use std::rc::Rc;

use crate::{Accesses, Op, StreamId};

/// One captured operation.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// The node's reads and writes.
    pub accesses: Accesses,
    /// The node's region and name.
    pub label: Rc<str>,
    /// The stream it was submitted to.
    pub stream: StreamId,
    /// Indices of the nodes that must be done before it starts.
    pub dependencies: Vec<usize>,
}
