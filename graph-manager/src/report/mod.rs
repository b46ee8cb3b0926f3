//! The report on captured graphs: a line to read, and JSON for tools.

mod buffer_use;
mod graph_dot;

use std::collections::HashMap;

use crate::words::counted;
use device::{Graph, Home};

use crate::error::mib;
use crate::manager::{CudaGraphManager, Forgotten, State};
use crate::policy::Policy;
pub use buffer_use::BufferUse;
pub use graph_dot::GraphDot;

/// The graphs, eager regions and memory of a manager.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Report {
    /// The graphs, in order of capture.
    pub graphs: Vec<GraphReport>,
    /// Regions that run eagerly, with the reasons.
    pub eager: Vec<EagerReport>,
    /// Bytes by area.
    pub memory: Vec<MemoryUse>,
    /// Bytes that the driver took to make the graphs ready to launch: the sum of [`device::Graph::driver_bytes`], at least
    /// 0. It is a difference of the GPU's free memory. `None` if it was not measured: on the host.
    #[serde(default)] // Older reports do not have it.
    pub driver_bytes: Option<usize>,
    /// The recorded kinds of steps.
    pub steps: Vec<StepReport>,
    /// Kinds of steps that `plan_limit` had forgotten.
    #[serde(default)] // Older reports do not have it.
    pub forgotten: Forgotten,
}

/// One recorded kind of step.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct StepReport {
    /// The step's mode.
    pub mode: String,
    /// The step's microbatches.
    pub microbatches: usize,
    /// Operations of the whole step.
    pub operations: usize,
    /// The operations that are not captured. The report's `eager` gives the reasons.
    pub eager_operations: usize,
    /// The regions that are launched as graphs or run eagerly, in order.
    pub order: Vec<Launch>,
    /// The memory plan: the place of each buffer of the step, and the time in which it is in use.
    pub buffers: Vec<BufferUse>,
}

/// A region's turn in a step.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Launch {
    /// The region.
    pub region: String,
    /// The region's microbatch.
    pub microbatch: Option<usize>,
    /// The index of the region's graph in the report. `None` for an eager region, or one that has not been captured yet.
    pub graph: Option<usize>,
    /// The position of the region's first operation in the recorded step.
    pub start: usize,
    /// The position after the region's last operation.
    pub end: usize,
}

/// One graph.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct GraphReport {
    /// The region that the graph was captured from.
    pub name: String,
    /// The mode of the steps that replay the graph.
    pub mode: String,
    /// The slot of memory that the graph's microbatches share. `None` if memory is planned over the whole step.
    pub slot: Option<usize>,
    /// The microbatches that the graph serves. Empty for a region that belongs to none.
    pub microbatches: Vec<usize>,
    /// Bytes of the buffers that the region takes, the buffers of inner regions included. Other graphs use the same
    /// memory at other times.
    pub bytes: usize,
    /// The graph's operations in order of capture, as `region/operation`.
    pub nodes: Vec<String>,
    /// For each node, the nodes that must end before.
    pub dependencies: Vec<Vec<usize>>,
    /// The stream of each node.
    pub streams: Vec<u32>,
}

impl GraphReport {
    /// For each node, whether the node waits for one of the nodes `from`, directly or through others.
    pub fn waits_for(&self, from: &[usize]) -> Vec<bool> {
        let mut waits: Vec<bool> = Vec::new();
        for dependencies in &self.dependencies {
            waits.push(dependencies.iter().any(|before| waits[*before] || from.contains(before)));
        }
        waits
    }
}

/// Bytes of one area.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MemoryUse {
    /// The area's name: `scratch of` a stream, `slot n`, `slot n of chunk c` or `step`; ` on the host` after a name of
    /// host memory.
    pub area: String,
    /// The area's size.
    pub bytes: usize,
}

/// Regions of one kind that have no graph.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EagerReport {
    /// The policy's name for the kind of region.
    pub region: String,
    /// The reason why the regions have no graph.
    pub reason: String,
}

impl<P: Policy> CudaGraphManager<P> {
    /// Bytes of the device that the recorded modes need, by area.
    pub fn memory(&self) -> Vec<MemoryUse> {
        self.memory_in(Home::Device)
    }

    /// Bytes that the recorded modes need in the device's memory or the host's, by area.
    pub fn memory_in(&self, home: Home) -> Vec<MemoryUse> {
        let planned = self.planned().into_iter().filter(|(kind, _)| kind.home() == home);
        planned.map(|(kind, bytes)| MemoryUse { area: kind.name(self.pool.device()), bytes }).collect()
    }

    /// Graphs that recorded steps of the mode will have: each captured region has one for each slot, and for each
    /// different work that it does there.
    pub fn expected_graphs(&self, mode: P::Mode) -> usize {
        self.operations_of_graphs(mode).len()
    }

    /// Operations in all [graphs that recorded steps of the mode will have](CudaGraphManager::expected_graphs).
    pub fn expected_nodes(&self, mode: P::Mode) -> usize {
        self.operations_of_graphs(mode).into_iter().sum()
    }

    /// The number of operations of each graph that recorded steps of the mode will have.
    fn operations_of_graphs(&self, mode: P::Mode) -> Vec<usize> {
        let mut graphs = HashMap::new();
        for (kind, state) in self.states.iter().filter(|(kind, _)| kind.0 == mode) {
            for program in state.programs.values() {
                let captured = self.submitted(program).filter(|(_, eager)| eager.is_none()).map(|(visit, _)| visit);
                let captured: Vec<usize> = captured.collect();
                let keys = state.graph_keys(program, captured.iter().copied());
                let operations = |visit: usize| program.entries(program.visits[visit].positions());
                graphs.extend(keys.into_iter().zip(captured).map(|(key, visit)| ((kind.1, key), operations(visit))));
            }
        }
        graphs.into_values().collect()
    }

    /// See [`Report::driver_bytes`].
    fn driver_bytes(&self) -> Option<usize> {
        self.pool.device().gpu()?;
        let graphs = self.states.values().flat_map(State::captured).map(|(_, captured)| &captured.graph);
        let sum: i64 = graphs.filter_map(Graph::driver_bytes).sum();
        Some(sum.max(0) as usize)
    }

    /// The report on all graphs captured so far.
    pub fn report(&self) -> Report {
        let memory = [Home::Device, Home::Host].into_iter().flat_map(|home| self.memory_in(home)).collect();
        let forgotten = self.forgotten;
        let (driver_bytes, steps) = (self.driver_bytes(), Vec::new());
        let mut report = Report { graphs: Vec::new(), eager: Vec::new(), memory, driver_bytes, steps, forgotten };
        for (kind, state) in &self.states {
            let (mode, first) = (format!("{:?}", kind.0), report.graphs.len());
            let captured = |number: u32| state.graphs[number as usize].as_ref();
            for (key, captured) in state.captured() {
                report.graphs.push(GraphReport::new(&captured.graph, mode.clone(), key.region.slot));
            }
            for program in state.programs.values() {
                let (mut order, operations) = (Vec::new(), program.operations());
                let captured_visits = self.submitted(program).filter(|(_, eager)| eager.is_none());
                let keys = state.graph_keys(program, captured_visits.map(|(visit, _)| visit));
                let mut keys = keys.into_iter();
                let mut eager_operations = operations;
                for (visit, eager) in self.submitted(program) {
                    let region = program.visits[visit].region;
                    let microbatch = program.visits[visit].instance.map(|instance| instance.microbatch);
                    let mut graph = None;
                    match eager {
                        None => {
                            eager_operations -= program.entries(program.visits[visit].positions());
                            let number = keys.next().and_then(|key| state.graph_numbers.get(&key));
                            let captured = number.and_then(|number| captured(*number));
                            graph = captured.map(|captured| first + captured.number);
                        }
                        // A composite region is described by the regions in it.
                        Some(_) if program.is_composite(visit) => continue,
                        Some(reason) => report.add_eager(self.policy.kind(region), reason),
                    }
                    if let Some(graph) = graph {
                        report.graphs[graph].serve(microbatch, program.bytes(visit));
                    }
                    let positions = program.visits[visit].positions();
                    let (start, end) = (positions.start as usize, positions.end as usize);
                    order.push(Launch { region: region.to_string(), microbatch, graph, start, end });
                }
                let planned = &state.programs[&state.plan.microbatches];
                let buffers = state.plan.buffers(program, planned, self.pool.device());
                let (mode, microbatches) = (mode.clone(), program.microbatches);
                report.steps.push(StepReport { mode, microbatches, operations, eager_operations, order, buffers });
            }
        }
        report
    }
}

impl GraphReport {
    fn new(graph: &Graph, mode: String, slot: Option<usize>) -> GraphReport {
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

    /// Notes a turn of the graph's region, with the bytes that the region takes.
    fn serve(&mut self, microbatch: Option<usize>, bytes: usize) {
        self.bytes = bytes;
        if let Some(microbatch) = microbatch.filter(|microbatch| !self.microbatches.contains(microbatch)) {
            self.microbatches.push(microbatch);
        }
    }
}

impl StepReport {
    /// The share of the step's operations that is not captured, in words.
    fn eager_share(&self) -> String {
        let StepReport { mode, operations, eager_operations, .. } = self;
        let percent = 100.0 * *eager_operations as f64 / (*operations).max(1) as f64;
        format!("{percent:.1} % of {mode} ({eager_operations} of {})", counted(*operations, "operation"))
    }
}

impl Report {
    fn add_eager(&mut self, region: String, reason: &str) {
        let entry = EagerReport { region, reason: reason.into() };
        if !self.eager.contains(&entry) {
            self.eager.push(entry);
        }
    }

    /// Operations in all graphs.
    pub fn nodes(&self) -> usize {
        self.graphs.iter().map(|graph| graph.nodes.len()).sum()
    }
}

/// The coverage line. Of each mode it has the largest step.
impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", counted(self.graphs.len(), "graph"), counted(self.nodes(), "node"))?;
        if !self.eager.is_empty() {
            let steps = self.steps.chunk_by(|step, next| step.mode == next.mode).filter_map(|steps| steps.last());
            let shares: Vec<String> = steps.map(StepReport::eager_share).collect();
            let eager: Vec<String> = self.eager.iter().map(|e| format!("{} ({})", e.region, e.reason)).collect();
            write!(f, "; eager: {}: {}", shares.join(", "), eager.join(", "))?;
        }
        if let Some(words) = self.forgotten.in_words() {
            write!(f, "; {words}")?;
        }
        if !self.memory.is_empty() {
            let area = |area: &MemoryUse| format!("{} {}", area.area, mib(area.bytes));
            write!(f, "; memory: {}", self.memory.iter().map(area).collect::<Vec<_>>().join(", "))?;
        }
        self.driver_bytes.map_or(Ok(()), |bytes| write!(f, "; the driver took {} for graphs", mib(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_the_driver_s_memory_if_it_was_measured_and_older_reports_can_be_read() {
        let json = r#"{"graphs": [], "eager": [], "memory": [{"area": "step", "bytes": 1048576}], "steps": []}"#;
        let report: Report = serde_json::from_str(json).unwrap();
        assert_eq!(report.to_string(), "0 graphs, 0 nodes; memory: step 1.0 MiB");
        let measured = Report { driver_bytes: Some(3 << 20), ..report };
        assert_eq!(measured.to_string(), "0 graphs, 0 nodes; memory: step 1.0 MiB; the driver took 3.0 MiB for graphs");
    }
}
