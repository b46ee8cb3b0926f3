//! The captured graphs as drawings.

use crate::error::{Error, Result};
use crate::manager::{CudaGraphManager, State};
use crate::policy::Policy;

/// A graph as a drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphDot {
    /// The graph's name: that of the region that it was captured from.
    pub name: String,
    /// One `digraph` in Graphviz's language. See [`device::Graph::dot`]: on a GPU it is what the driver launches.
    pub dot: String,
}

impl<P: Policy> CudaGraphManager<P> {
    /// All graphs captured so far as drawings, in the order of the [report](CudaGraphManager::report). Graphviz draws each
    /// on a page of its own if they are written to one file, one after the other.
    ///
    /// # Errors
    /// As [`device::Graph::dot`].
    pub fn dots(&self) -> Result<Vec<GraphDot>> {
        let graphs = self.states.values().flat_map(State::captured).map(|(_, captured)| &captured.graph);
        let dot = |graph: &device::Graph| {
            let dot = graph.dot().map_err(|error| Error::from(error).within(graph.name()))?;
            Ok(GraphDot { name: graph.name().into(), dot })
        };
        graphs.map(dot).collect()
    }
}
