//! Transfers of a replay on the host that are under way.

use super::Node;
use crate::dispatch::Note;
use crate::{Op, Request, Result};

/// Transfers that were started and not yet waited for.
#[derive(Default)]
pub(super) struct UnderWay {
    /// The transfers, each with the index of its node.
    pub(super) transfers: Vec<(usize, Box<dyn Request>, Note)>,
}

impl UnderWay {
    fn has(&self, node: usize) -> bool {
        self.transfers.iter().any(|(index, ..)| *index == node)
    }

    /// Whether a transfer can still be under way when this node has run: the node is one, or it is a mark. Marks wait
    /// for nothing.
    fn passes(&self, nodes: &[Node], node: usize) -> bool {
        self.has(node) || matches!(nodes[node].op, Op::ProgressMark(_))
    }

    /// Waits for the transfers that a node depends on, and for the node itself if it is one.
    pub(super) fn finish(&mut self, nodes: &[Node], node: usize) -> Result<()> {
        if self.transfers.is_empty() || !self.passes(nodes, node) {
            return Ok(());
        }
        nodes[node].dependencies.iter().try_for_each(|&before| self.finish(nodes, before))?;
        match self.transfers.iter().position(|(index, ..)| *index == node) {
            Some(at) => self.transfers.remove(at).1.wait(),
            None => Ok(()),
        }
    }

    /// Waits for the transfers that `transfer` depends on and that touch its memory.
    pub(super) fn finish_conflicts(&mut self, nodes: &[Node], transfer: &Node) -> Result<()> {
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
