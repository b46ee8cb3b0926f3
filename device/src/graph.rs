//! A graph: operations with fixed addresses and their dependencies, launched as one operation of a stream.

use std::cell::Cell;
use std::rc::Rc;

use crate::checker::Effects;
use crate::cuda::RawGraph;
use crate::device::Core;
use crate::lane::Backend;
use crate::timeline::{Note, launched_label};
use crate::{Accesses, CaptureRule, Device, Error, Op, Request, Result, Stream, StreamId, host};

/// One captured operation.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// What it reads and writes.
    pub accesses: Accesses,
    /// Its region and name.
    pub label: Rc<str>,
    /// The stream it was submitted to.
    pub stream: StreamId,
    /// Indices of the nodes that must be done before it starts.
    pub dependencies: Vec<usize>,
}

/// A captured piece of work. A launch starts after everything its stream did before and ends when all its nodes have.
pub struct Graph {
    name: String,
    nodes: Vec<Node>,
    /// What a launch reads from and leaves to the outside; known when the checker is on.
    effects: Option<Effects>,
    /// The device's count of frees when the addresses were last found alive.
    checked_at: Cell<u64>,
    /// The driver's graph, on CUDA.
    raw: Option<RawGraph>,
    device: Device,
}

impl Graph {
    pub(crate) fn new(
        device: Device,
        name: &str,
        nodes: Vec<Node>,
        effects: Option<Effects>,
        raw: Option<RawGraph>,
        frees: u64,
    ) -> Graph {
        Graph { device, name: name.into(), nodes, effects, raw, checked_at: Cell::new(frees) }
    }

    /// The name it was given at capture.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its nodes, in the order of capture.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Runs the graph as the next operation of `stream`.
    ///
    /// # Errors
    /// A checker's finding, freed memory, a failed collective, or a capture under way on the stream.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        let mut core = self.device.core();
        let core = &mut *core;
        stream.refuse_default(core, &self.name)?;
        if core.streams[stream.id().index()].capture.is_some() {
            let detail = format!("graph `{}` was launched on a capturing stream", self.name);
            return Err(Error::capture(CaptureRule::Synchronization, detail));
        }
        if self.checked_at.get() != core.frees {
            for node in &self.nodes {
                for tensor in node.accesses.reads.iter().chain(&node.accesses.writes) {
                    core.check_live(&format!("graph {}: {}", self.name, node.label), tensor)?;
                }
            }
            self.checked_at.set(core.frees);
        }
        if let (Some(checker), Some(effects)) = (&mut core.checker, &self.effects) {
            checker.launch(stream.id(), &self.name, effects, &core.buffers)?;
        }
        let _note = core.recorder.launch(&self.name, &core.scope);
        if let (Some(raw), Backend::Cuda(cuda)) = (&self.raw, &core.backend) {
            cuda.counters.borrow_mut().graph_launches += 1;
            return core.streams[stream.id().index()].lane.launch(raw);
        }
        core.streams[stream.id().index()].lane.finish()?;
        match core.shuffle {
            None => self.run(core, 0..self.nodes.len()),
            Some(seed) => {
                core.shuffle = Some(seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
                self.run(core, self.random_order(seed).into_iter())
            }
        }
    }

    /// Runs the nodes in `order`. A collective goes on until a node that depends on it, or the end.
    fn run(&self, core: &Core, order: impl Iterator<Item = usize>) -> Result<()> {
        let Backend::Host(pool) = &core.backend else { unreachable!("on CUDA the driver runs graphs") };
        let mut under_way: Vec<(usize, Box<dyn Request>, Note)> = Vec::new();
        let timed = core.recorder.is_running();
        for index in order {
            let node = &self.nodes[index];
            for dependency in &node.dependencies {
                if let Some(at) = under_way.iter().position(|(node, ..)| node == dependency) {
                    under_way.remove(at).1.wait()?;
                }
            }
            let note = if timed { self.note(core, node) } else { Note::Nothing };
            if let Op::Collective(collective) = &node.op {
                under_way.push((index, collective.start()?, note));
            } else {
                host::run(&node.op, pool);
            }
        }
        for (_, request, _note) in under_way {
            request.wait()?;
        }
        Ok(())
    }

    /// Times a node of the launch under way.
    fn note(&self, core: &Core, node: &Node) -> Note {
        let label = launched_label(&node.label, &self.name, &core.scope);
        core.recorder.operation(&core.streams[node.stream.index()].name, &label, false)
    }

    /// A random order that respects the dependencies and, per communicator, the order of capture.
    fn random_order(&self, seed: u64) -> Vec<usize> {
        let mut waits_for: Vec<usize> = self.nodes.iter().map(|node| node.dependencies.len()).collect();
        let mut followers = vec![Vec::new(); self.nodes.len()];
        let mut last_collective: Vec<(*const (), usize)> = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            for &dependency in &node.dependencies {
                followers[dependency].push(index);
            }
            if let Op::Collective(collective) = &node.op {
                let communicator = Rc::as_ptr(&collective.communicator).cast::<()>();
                match last_collective.iter_mut().find(|(known, _)| *known == communicator) {
                    Some((_, last)) => {
                        followers[*last].push(index);
                        waits_for[index] += 1;
                        *last = index;
                    }
                    None => last_collective.push((communicator, index)),
                }
            }
        }
        let mut ready: Vec<usize> = (0..self.nodes.len()).filter(|&index| waits_for[index] == 0).collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut state = seed;
        while !ready.is_empty() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let index = ready.swap_remove((state >> 33) as usize % ready.len());
            order.push(index);
            for &follower in &followers[index] {
                waits_for[follower] -= 1;
                if waits_for[follower] == 0 {
                    ready.push(follower);
                }
            }
        }
        order
    }
}
