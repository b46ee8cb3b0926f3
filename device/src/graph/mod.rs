//! A graph: operations with fixed addresses and their dependencies, launched as one operation of a stream.

mod dot;
mod node;
mod replay_order;
mod under_way;

use std::cell::Cell;
use std::rc::Rc;

pub use node::Node;
use replay_order::{next_random, random_order};
use under_way::UnderWay;

use crate::capture::Effects;
use crate::cuda::RawGraph;
use crate::device::{Core, StreamHold};
use crate::dispatch::{DeviceBackend, Note};
use crate::timeline::launched_label;
use crate::{Device, Error, Op, Progress, Result, Stream, TraceEvent, host};

/// A captured piece of work. A launch starts after everything its stream did before and ends when all its nodes have.
pub struct Graph {
    name: String,
    nodes: Vec<Node>,
    /// The reads of a launch from outside, and the writes that it leaves. `None` without the checker.
    effects: Option<Effects>,
    /// The device's count of frees when the addresses were last checked.
    checked_at: Cell<u64>,
    /// The driver's graph. `None` on the host.
    raw: Option<RawGraph>,
    /// The streams that the graph was captured on. Its kernels may use what belongs to them, such as a lane of peers, so
    /// no other stream follows them meanwhile.
    _streams: Vec<Rc<StreamHold>>,
    device: Device,
}

/// A capture that has ended.
pub(crate) struct Captured {
    pub(crate) nodes: Vec<Node>,
    pub(crate) effects: Option<Effects>,
    pub(crate) raw: Option<RawGraph>,
    /// The streams of the capture, and those of its child graphs.
    pub(crate) streams: Vec<Rc<StreamHold>>,
}

impl Graph {
    /// A graph of what was captured, after so many frees of its device.
    pub(crate) fn new(device: Device, name: &str, captured: Captured, frees: u64) -> Graph {
        let Captured { nodes, effects, raw, streams } = captured;
        Graph { device, name: name.into(), nodes, effects, raw, _streams: streams, checked_at: Cell::new(frees) }
    }

    /// The graph's name, given at capture.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The graph's nodes, in the order of capture.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// What the driver took for the graph: bytes of the GPU's free memory before the graph was made ready to launch, less
    /// those after. The driver allocates in blocks, and graphs share them: most graphs take nothing, and one takes a
    /// block. Only a sum over many graphs means something. What other processes allocate meanwhile counts too. `None` on
    /// the host: there is no driver.
    pub fn driver_bytes(&self) -> Option<i64> {
        self.raw.as_ref().map(RawGraph::driver_bytes)
    }

    /// The graph in Graphviz's language. On a GPU it is the driver's print (`cuGraphDebugDotPrint`) of what it launches:
    /// the captured work after it was rewritten for a faster launch, with the symbols of kernels and their grids. On the
    /// host it has the captured operations with their regions and streams.
    ///
    /// # Errors
    /// The driver's; a temporary file, which the driver prints to, that cannot be made or read.
    pub fn dot(&self) -> Result<String> {
        match &self.raw {
            Some(raw) => Ok(dot::named(&self.name, &raw.dot()?)),
            None => {
                let core = self.device.core_for(|| format!("Graph::dot of `{}`", self.name))?;
                let streams: Vec<_> = core.streams.iter().map(|stream| stream.name.clone()).collect();
                Ok(dot::captured(&self.name, &self.nodes, &streams))
            }
        }
    }

    /// Runs the graph as the next operation of `stream`. On a stream that captures, the graph becomes part of the new one:
    /// a child graph.
    ///
    /// # Errors
    /// A checker's finding, freed memory, a failed collective.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        if !self.device.is(stream.device()) {
            return Err(Error::other_device(&format!("stream {}", stream.id().0), &format!("graph `{}`", self.name)));
        }
        let mut core = self.device.core_for(|| format!("Graph::launch of `{}`", self.name))?;
        let core = &mut *core;
        if let Some(trace) = &mut core.trace {
            let operation = |Node { op, accesses, .. }: &Node| {
                let (op, accesses, scope) = (Box::new(op.clone()), accesses.clone(), core.scope.clone());
                TraceEvent::Operation { stream: stream.id(), op, accesses, scope }
            };
            trace.extend(self.nodes.iter().map(operation));
            return Ok(());
        }
        if core.dry {
            return Ok(());
        }
        stream.refuse_default(core, &self.name)?;
        if self.checked_at.get() != core.frees {
            for node in &self.nodes {
                for tensor in node.accesses.reads.iter().chain(&node.accesses.writes) {
                    core.check_live(&format!("graph {}: {}", self.name, node.label), tensor)?;
                }
            }
            self.checked_at.set(core.frees);
        }
        if let Some(id) = core.streams[stream.id().index()].capture {
            return core.with_capture(id, |core, capture| {
                self.refuse_as_child()?;
                capture.add_child(stream.id(), &self.name, &self.nodes)?;
                match &self.raw {
                    Some(raw) => core.streams[stream.id().index()].backend.add_to_capture(raw),
                    None => Ok(()),
                }
            });
        }
        stream.refuse_outside(core, &self.name)?;
        if let (Some(checker), Some(effects)) = (&mut core.checker, &self.effects) {
            checker.launch(stream.id(), &self.name, effects, &core.buffers)?;
        }
        let _range = core.nvtx_range(|| format!("launch {}", self.name));
        let _note = core.recorder.launch(&self.name, &core.scope);
        if let (Some(raw), DeviceBackend::Cuda(cuda)) = (&self.raw, &core.backend) {
            cuda.counters.borrow_mut().graph_launches += 1;
            return core.streams[stream.id().index()].backend.launch(raw);
        }
        core.streams[stream.id().index()].backend.finish()?;
        match core.shuffle {
            None => self.run(core, 0..self.nodes.len()),
            Some(seed) => {
                core.shuffle = Some(next_random(seed));
                let order = random_order(&self.nodes, seed);
                core.reordered += u64::from(!order.is_sorted());
                self.run(core, order.into_iter())
            }
        }
    }

    /// Fails if the graph cannot be a child of another one.
    fn refuse_as_child(&self) -> Result<()> {
        let Some(node) = self.nodes.iter().find(|node| matches!(node.op, Op::When(_))) else { return Ok(()) };
        let problem = format!("graph `{}`, which contains `{}`, was launched in a capture", self.name, node.label);
        let rule =
            "Rule: CUDA takes no child graph with a conditional node. Fix: submit the graph's operations themselves";
        Err(Error::operation(node.op.name(), format!("{problem}. {rule}")))
    }

    /// Runs the nodes in `order`. A transfer runs asynchronously until a node that depends on it, or until the end. As
    /// on a stream, transfers of unrelated memory overlap.
    fn run(&self, core: &Core, order: impl Iterator<Item = usize>) -> Result<()> {
        let DeviceBackend::Host(host) = &core.backend else { unreachable!("on CUDA the driver runs graphs") };
        let mut under_way = UnderWay::default();
        let timed = core.recorder.is_running();
        for index in order {
            let node = &self.nodes[index];
            match &node.op {
                Op::Collective(_) => under_way.finish_conflicts(&self.nodes, node)?,
                // A progress mark announces work that has begun. It does not wait for transfers.
                Op::ProgressMark(_) => {}
                _ => node.dependencies.iter().try_for_each(|&before| under_way.finish(&self.nodes, before))?,
            }
            let note = if timed { self.note(core, node) } else { Note::Nothing };
            if let Op::Collective(collective) = &node.op {
                under_way.transfers.push((index, collective.start()?, note));
            } else {
                host::run(&node.op, host)?;
                core.progress.iter().for_each(Progress::advance);
            }
        }
        for (_, request, _note) in under_way.transfers {
            request.wait()?;
        }
        Ok(())
    }

    /// Times a node of the launch under way.
    fn note(&self, core: &Core, node: &Node) -> Note {
        let label = launched_label(&node.label, &self.name, &core.scope);
        core.recorder.operation(&core.streams[node.stream.index()].name, &label, Some(&node.op), false)
    }
}
