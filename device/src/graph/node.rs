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
    /// The stream that the operation was submitted to.
    pub stream: StreamId,
    /// The indices of the nodes that the node waits for.
    pub dependencies: Vec<usize>,
}
