//! A graph: operations with fixed addresses and their dependencies, launched as one operation of a stream.

use std::cell::Cell;
use std::rc::Rc;

use crate::checker::Effects;
use crate::cuda::RawGraph;
use crate::device::Core;
use crate::lane::Backend;
use crate::timeline::{Note, launched_label};
use crate::{Accesses, CaptureRule, Device, Error, Op, Progress, Request, Result, Stream, StreamId, host};

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
                let order = self.random_order(seed);
                core.reordered += u64::from(!order.is_sorted());
                self.run(core, order.into_iter())
            }
        }
    }

    /// Runs the nodes in `order`. A transfer goes on until a node that depends on it, or the end; as on a stream, transfers
    /// of unrelated memory go on side by side.
    fn run(&self, core: &Core, order: impl Iterator<Item = usize>) -> Result<()> {
        let Backend::Host(pool) = &core.backend else { unreachable!("on CUDA the driver runs graphs") };
        let mut under_way = UnderWay::default();
        let timed = core.recorder.is_running();
        for index in order {
            let node = &self.nodes[index];
            match &node.op {
                Op::Collective(_) => under_way.finish_conflicts(&self.nodes, node)?,
                // A mark says what has begun: transfers go on meanwhile.
                Op::Mark(_) => {}
                _ => node.dependencies.iter().try_for_each(|&before| under_way.finish(&self.nodes, before))?,
            }
            let note = if timed { self.note(core, node) } else { Note::Nothing };
            if let Op::Collective(collective) = &node.op {
                under_way.transfers.push((index, collective.start()?, note));
            } else {
                host::run(&node.op, pool);
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
        let transfer = |index: usize| matches!(self.nodes[index].op, Op::Collective(_));
        let mark = |index: usize| matches!(self.nodes[index].op, Op::Mark(_));
        // Whose followers wait for a transfer: marks pass that on.
        let mut leads = vec![false; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            leads[index] = transfer(index) || (mark(index) && node.dependencies.iter().any(|&before| leads[before]));
        }
        let mut ready: Vec<usize> = (0..self.nodes.len()).filter(|&index| waits_for[index] == 0).collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        // Mixed, or the draws of a launch would be those of the one before but for the first.
        let mut state = (seed ^ (seed >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        while !ready.is_empty() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let draw = (state >> 33) as usize;
            let mut at = draw % ready.len();
            // A node that waits for a transfer would hold up this one thread, on a GPU only its own stream: what other
            // ranks may need to send theirs goes first.
            let free = |index: usize| transfer(index) || mark(index);
            let waits = self.nodes[ready[at]].dependencies.iter().any(|&before| leads[before]);
            if waits && !free(ready[at]) {
                let first: Vec<usize> = (0..ready.len()).filter(|&at| free(ready[at])).collect();
                at = first.get(draw % first.len().max(1)).copied().unwrap_or(at);
            }
            let index = ready.swap_remove(at);
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

/// Transfers that were started and not yet waited for.
#[derive(Default)]
struct UnderWay {
    /// With the number of their nodes.
    transfers: Vec<(usize, Box<dyn Request>, Note)>,
}

impl UnderWay {
    fn has(&self, node: usize) -> bool {
        self.transfers.iter().any(|(index, ..)| *index == node)
    }

    /// Whether others may wait for transfers through this node: it is one, or it did not wait itself.
    fn passes(&self, nodes: &[Node], node: usize) -> bool {
        self.has(node) || matches!(nodes[node].op, Op::Mark(_))
    }

    /// Waits for a node, if it is one of these, and for those it depends on.
    fn finish(&mut self, nodes: &[Node], node: usize) -> Result<()> {
        if self.transfers.is_empty() || !self.passes(nodes, node) {
            return Ok(());
        }
        nodes[node].dependencies.iter().try_for_each(|&before| self.finish(nodes, before))?;
        match self.transfers.iter().position(|(index, ..)| *index == node) {
            Some(at) => self.transfers.remove(at).1.wait(),
            None => Ok(()),
        }
    }

    /// Waits for those that a transfer depends on and that touch its memory.
    fn finish_conflicts(&mut self, nodes: &[Node], transfer: &Node) -> Result<()> {
        let mut before = transfer.dependencies.clone();
        while let Some(node) = before.pop().filter(|_| !self.transfers.is_empty()) {
            if !self.passes(nodes, node) {
                continue;
            }
            if nodes[node].accesses.conflicts(&transfer.accesses) {
                self.finish(nodes, node)?;
            } else {
                before.extend(&nodes[node].dependencies);
            }
        }
        Ok(())
    }
}
