//! A capture under way: the operations submitted so far, and the dependencies of each.

mod checker;
mod lent;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::{Accesses, CaptureRule, Error, Node, Op, Result, StreamId};
pub use checker::Checked;
pub(crate) use checker::{Checker, Effects, graph_effects};
pub(crate) use lent::Values;

pub(crate) struct Capture {
    origin: StreamId,
    nodes: Vec<Node>,
    /// For each stream of the capture, the nodes its next operation depends on.
    frontier: BTreeMap<StreamId, Vec<usize>>,
    /// The first mistake made during the capture.
    spoiled: Option<String>,
}

impl Capture {
    pub(crate) fn new(origin: StreamId) -> Capture {
        Capture { origin, nodes: Vec::new(), frontier: BTreeMap::from([(origin, Vec::new())]), spoiled: None }
    }

    pub(crate) fn origin(&self) -> StreamId {
        self.origin
    }

    /// Notes that a call failed: the capture cannot become a graph.
    pub(crate) fn spoil(&mut self, error: &Error) {
        self.spoiled.get_or_insert_with(|| error.to_string());
    }

    pub(crate) fn add(&mut self, stream: StreamId, op: Op, accesses: Accesses, label: Rc<str>) -> Result<()> {
        self.refuse_spoiled(&label)?;
        let dependencies = self.frontier(stream);
        self.frontier.insert(stream, vec![self.nodes.len()]);
        self.nodes.push(Node { op, accesses, label, stream, dependencies });
        Ok(())
    }

    /// Adds the nodes of a graph that is launched within the capture. They start after all earlier work of the stream,
    /// and its later work starts after all of them.
    pub(crate) fn add_child(&mut self, stream: StreamId, graph: &str, nodes: &[Node]) -> Result<()> {
        self.refuse_spoiled(graph)?;
        let (first, before) = (self.nodes.len(), self.frontier(stream));
        let mut last: BTreeSet<usize> = (first..first + nodes.len()).collect();
        for node in nodes {
            let inside = node.dependencies.iter().map(|dependency| first + dependency);
            inside.clone().for_each(|dependency| _ = last.remove(&dependency));
            let dependencies = if node.dependencies.is_empty() { before.clone() } else { inside.collect() };
            self.nodes.push(Node { dependencies, label: format!("{graph}: {}", node.label).into(), ..node.clone() });
        }
        if !nodes.is_empty() {
            self.frontier.insert(stream, last.into_iter().collect());
        }
        Ok(())
    }

    /// Fails with the first mistake if there was one.
    pub(crate) fn refuse_spoiled(&self, label: &str) -> Result<()> {
        match &self.spoiled {
            None => Ok(()),
            Some(first) => {
                Err(Error::capture(CaptureRule::Invalidated, format!("`{label}` was submitted after: {first}")))
            }
        }
    }

    pub(crate) fn frontier(&self, stream: StreamId) -> Vec<usize> {
        self.frontier.get(&stream).cloned().unwrap_or_default()
    }

    /// Makes the stream's next operation depend on `nodes` too.
    pub(crate) fn depend(&mut self, stream: StreamId, nodes: &[usize]) {
        let frontier = self.frontier.entry(stream).or_default();
        frontier.extend(nodes);
        frontier.sort_unstable();
        frontier.dedup();
    }

    /// The nodes, if the capture is sound: nothing failed and every fork is joined.
    pub(crate) fn finish(self, stream_name: impl Fn(StreamId) -> String) -> Result<Vec<Node>> {
        if let Some(first) = self.spoiled {
            return Err(Error::capture(CaptureRule::Invalidated, format!("the capture had failed before: {first}")));
        }
        let mut joined = vec![false; self.nodes.len()];
        let mut open = self.frontier[&self.origin].clone();
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut joined[node], true) {
                open.extend(&self.nodes[node].dependencies);
            }
        }
        for (stream, frontier) in &self.frontier {
            if let Some(&last) = frontier.iter().find(|&&node| !joined[node]) {
                let detail = format!(
                    "stream `{}` ends with `{}`, which `{}` does not wait for",
                    stream_name(*stream),
                    self.nodes[last].label,
                    stream_name(self.origin)
                );
                return Err(Error::capture(CaptureRule::Unjoined, detail));
            }
        }
        Ok(self.nodes)
    }
}
