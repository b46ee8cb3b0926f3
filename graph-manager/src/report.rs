//! What was captured: a line to read, JSON and Graphviz for tools.

use std::fmt::Write;

use device::Graph;

use crate::area::MemoryUse;

/// What a manager captured.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// The graphs, in order of capture.
    pub graphs: Vec<GraphReport>,
    /// Regions that run eagerly, and why.
    pub eager: Vec<EagerReport>,
    /// Bytes by area.
    pub memory: Vec<MemoryUse>,
}

/// One graph.
#[derive(Clone, Debug, serde::Serialize)]
pub struct GraphReport {
    /// Its region, and its variant unless that is the default.
    pub name: String,
    /// Its operations in order of capture, as `region/operation`.
    pub nodes: Vec<String>,
    /// For each node, the nodes it waits for.
    pub dependencies: Vec<Vec<usize>>,
    /// For each node, its stream.
    pub streams: Vec<u32>,
}

/// Regions of one kind that have no graph.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct EagerReport {
    /// What the policy calls the kind of region.
    pub region: String,
    /// Why they have no graph.
    pub reason: String,
}

impl GraphReport {
    pub(crate) fn new(graph: &Graph) -> GraphReport {
        GraphReport {
            name: graph.name().into(),
            nodes: graph.nodes().iter().map(|node| node.label.to_string()).collect(),
            dependencies: graph.nodes().iter().map(|node| node.dependencies.clone()).collect(),
            streams: graph.nodes().iter().map(|node| node.stream.0).collect(),
        }
    }
}

impl Report {
    /// Operations in all graphs.
    pub fn nodes(&self) -> usize {
        self.graphs.iter().map(|graph| graph.nodes.len()).sum()
    }

    /// Bytes of all areas.
    pub fn bytes(&self) -> usize {
        self.memory.iter().map(|area| area.bytes).sum()
    }

    /// All graphs as one Graphviz document, with a cluster for each.
    pub fn dot(&self) -> String {
        let mut dot = String::from("digraph graphs {\n  rankdir=LR;\n  node [shape=box];\n");
        for (g, graph) in self.graphs.iter().enumerate() {
            let _ = writeln!(dot, "  subgraph cluster_{g} {{\n    label=\"{}\";", graph.name);
            for (n, label) in graph.nodes.iter().enumerate() {
                let _ = writeln!(dot, "    n{g}_{n} [label=\"{label}\\nstream {}\"];", graph.streams[n]);
                for dependency in &graph.dependencies[n] {
                    let _ = writeln!(dot, "    n{g}_{dependency} -> n{g}_{n};");
                }
            }
            dot.push_str("  }\n");
        }
        dot.push_str("}\n");
        dot
    }
}

/// The coverage line.
impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        write!(f, "{}, {}", counted(self.graphs.len(), "graph"), counted(self.nodes(), "node"))?;
        if !self.eager.is_empty() {
            let eager: Vec<String> = self.eager.iter().map(|e| format!("{} ({})", e.region, e.reason)).collect();
            write!(f, "; eager: {}", eager.join(", "))?;
        }
        let memory: Vec<String> =
            self.memory.iter().map(|area| format!("{} {:.1} MiB", area.area, area.bytes as f64 / 1048576.0)).collect();
        write!(f, "; memory: {}", memory.join(", "))
    }
}
