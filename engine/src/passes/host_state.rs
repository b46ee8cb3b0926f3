//! State of the optimizer at rest on the host: each part comes in, is updated on the device, and goes out.
//!
//! The code updates the state in parts, as if it lay on the device. While a part is updated the next one comes in and the
//! one before goes out, each way on a queue of its own. So three parts are on the device at a time. A step without the pass
//! does the same on the region's own queue: operations do not compute in memory of the host.
//!
//! Order that it removes: none. It adds moves, and the updates work on the copies that came in.

use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use device::ops::Move;
use device::{BufferId, Home, Shape, Tensor};
use graph_manager::{Piece, PieceEntry, StepPass};

use super::name::PassName;
use super::present::HostQueues;
use crate::params::ALIGNMENT;
use crate::regions::Region;

/// The state on the host.
pub(crate) struct StateOnHost {
    /// The buffers that the state lies in.
    pub(crate) buffers: Rc<HashSet<BufferId>>,
    pub(crate) queues: HostQueues,
}

/// The pass.
pub(crate) struct HostState {
    buffers: Rc<HashSet<BufferId>>,
    /// `None` if moves are on the region's own queue.
    queues: Option<HostQueues>,
}

impl HostState {
    /// The pass with moves on `queues`, or on the region's own queue.
    pub(crate) fn new(buffers: &Rc<HashSet<BufferId>>, queues: Option<HostQueues>) -> HostState {
        HostState { buffers: buffers.clone(), queues }
    }

    /// The ranges of state that an operation uses.
    fn ranges(&self, entry: &PieceEntry) -> Vec<Tensor> {
        let accesses = entry.accesses();
        let is_there = |tensor: &&Tensor| self.buffers.contains(&tensor.buffer);
        let mut used: Vec<Tensor> = accesses.reads.iter().chain(&accesses.writes).filter(is_there).copied().collect();
        used.sort_by_key(|tensor| (tensor.buffer, tensor.address));
        let mut ranges: Vec<Tensor> = Vec::new();
        for tensor in used {
            let range = tensor.range();
            match ranges.last_mut().filter(|last| {
                // What lies between parameters is padding.
                let padding = (ALIGNMENT * tensor.dtype.size()) as u64;
                (last.buffer, last.dtype) == (tensor.buffer, tensor.dtype) && range.start < last.range().end + padding
            }) {
                Some(last) => {
                    let bytes = range.end.max(last.range().end) - last.address;
                    last.shape = Shape::new(&[bytes as usize / last.dtype.size()]);
                }
                None => ranges.push(tensor.reshape([tensor.elements()])),
            }
        }
        ranges
    }
}

/// An operation on state, with the moves before and after.
struct MovedEntry {
    comes: Vec<PieceEntry>,
    entry: PieceEntry,
    goes: Vec<PieceEntry>,
}

impl StepPass<Region> for HostState {
    fn name(&self) -> &'static str {
        PassName::HostState.words()
    }

    fn apply(&mut self, piece: &mut Piece<Region>) {
        if !piece.entries.iter().any(|entry| !self.ranges(entry).is_empty()) {
            return;
        }
        let given = std::mem::take(&mut piece.entries);
        let mut parts: Vec<MovedEntry> = Vec::with_capacity(given.len());
        for mut entry in given {
            let (mut comes, mut goes) = (Vec::new(), Vec::new());
            for range in self.ranges(&entry) {
                let copy = piece.buffer_like(&range, Home::Device, "state");
                entry.use_copy(&range, &copy);
                let mut into = PieceEntry::moves(Move { input: range, output: copy });
                let mut back = PieceEntry::moves(Move { input: copy, output: range });
                if let Some(queues) = &self.queues {
                    into.put_on(&queues.from_host);
                    back.put_on(&queues.to_host);
                }
                comes.push(into);
                goes.push(back);
            }
            parts.push(MovedEntry { comes, entry, goes });
        }
        let Some(queues) = &self.queues else {
            let in_turn = |MovedEntry { comes, entry, goes }| comes.into_iter().chain([entry]).chain(goes);
            return piece.entries.extend(parts.into_iter().flat_map(in_turn));
        };
        // The first part comes in beside what comes before its update, each other part beside the one before it.
        let mut coming: VecDeque<Vec<PieceEntry>> =
            parts.iter_mut().map(|part| std::mem::take(&mut part.comes)).filter(|comes| !comes.is_empty()).collect();
        piece.entries.extend(coming.pop_front().into_iter().flatten());
        let mut is_away = false;
        for MovedEntry { mut entry, goes, .. } in parts {
            if !goes.is_empty() {
                piece.entries.extend(coming.pop_front().into_iter().flatten());
                if std::mem::replace(&mut is_away, true) {
                    entry.wait_for(&queues.to_host);
                }
            }
            piece.entries.push(entry);
            piece.entries.extend(goes);
        }
        piece.joins.push(queues.to_host.clone());
    }
}
