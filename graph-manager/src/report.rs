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
    /// What each recorded kind of step goes through, in order.
    pub steps: Vec<StepReport>,
}

/// One recorded kind of step.
#[derive(Clone, Debug, serde::Serialize)]
pub struct StepReport {
    /// What it is for.
    pub mode: String,
    /// Its microbatches.
    pub microbatches: usize,
    /// What is launched or run eagerly, in order.
    pub order: Vec<Launch>,
}

/// A region's turn in a step.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Launch {
    /// The region.
    pub region: String,
    /// The microbatch that it belongs to.
    pub microbatch: Option<usize>,
    /// Index of its graph in the report. `None` if it runs eagerly, or has not been captured yet.
    pub graph: Option<usize>,
}

/// One graph.
#[derive(Clone, Debug, serde::Serialize)]
pub struct GraphReport {
    /// Its region, and its variant unless that is the default.
    pub name: String,
    /// The mode of the steps that replay it.
    pub mode: String,
    /// The slot of memory that its microbatches share. `None` where memory is planned over the whole step.
    pub slot: Option<usize>,
    /// The microbatches that it serves. Empty for a region that belongs to none.
    pub microbatches: Vec<usize>,
    /// Bytes of the buffers that the region takes, those of inner regions included. Other graphs use the same memory at
    /// other times.
    pub bytes: usize,
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
    pub(crate) fn new(graph: &Graph, mode: String, slot: Option<usize>) -> GraphReport {
        GraphReport {
            name: graph.name().into(),
            mode,
            slot,
            microbatches: Vec::new(),
            bytes: 0,
            nodes: graph.nodes().iter().map(|node| node.label.to_string()).collect(),
            dependencies: graph.nodes().iter().map(|node| node.dependencies.clone()).collect(),
            streams: graph.nodes().iter().map(|node| node.stream.0).collect(),
        }
    }

    /// Notes a turn of its region, with the bytes that the region takes.
    pub(crate) fn serve(&mut self, microbatch: Option<usize>, bytes: usize) {
        self.bytes = bytes;
        if let Some(microbatch) = microbatch.filter(|microbatch| !self.microbatches.contains(microbatch)) {
            self.microbatches.push(microbatch);
        }
    }
}

impl Report {
    pub(crate) fn add_eager(&mut self, region: String, reason: &str) {
        let entry = EagerReport { region, reason: reason.into() };
        if !self.eager.contains(&entry) {
            self.eager.push(entry);
        }
    }

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
        if self.memory.is_empty() {
            return Ok(());
        }
        let memory: Vec<String> =
            self.memory.iter().map(|area| format!("{} {:.1} MiB", area.area, area.bytes as f64 / 1048576.0)).collect();
        write!(f, "; memory: {}", memory.join(", "))
    }
}
