//! Tensors that a forward saves for the backward lie on the host in between.
//!
//! The large tensors that a layer saves leave beside the forward of the next layer, and come back beside the next layer's
//! backward, which runs right before their own. Each way has a queue of its own. The forward and the backward wait for
//! these moves at their end, so the moves are part of their graphs. A chunk's last layer keeps its tensors: its backward
//! comes first.
//!
//! Order that it removes: none. It adds moves, and the operations of a backward read the copies that came back.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use device::ops::Move;
use device::{Device, Home, Tensor};
use graph_manager::{Phase, Piece, PieceEntry, SideStream, StepPass, Then};

use super::name::PassName;
use crate::model::Chunk;
use crate::regions::Region;

/// The queues of moves to the host and back.
#[derive(Clone)]
pub(crate) struct HostQueues {
    pub(super) to_host: Rc<SideStream>,
    pub(super) from_host: Rc<SideStream>,
}

impl HostQueues {
    pub(crate) fn new(device: &Device) -> HostQueues {
        let (to_host, from_host) = (SideStream::new(device, "to the host"), SideStream::new(device, "from the host"));
        HostQueues { to_host, from_host }
    }
}

/// The saved tensors that lie on the host.
pub(crate) struct SavedOnHost {
    /// The number of layers of each chunk whose tensors leave, from the first one with blocks on.
    layers: usize,
    queues: HostQueues,
    /// By layer and microbatch: the tensors that the forward has saved.
    noted: Rc<RefCell<HashMap<LayerAndMicrobatch, Vec<Tensor>>>>,
}

/// A layer and a microbatch.
type LayerAndMicrobatch = (usize, usize);

impl SavedOnHost {
    /// Of so many layers of each chunk.
    pub(crate) fn new(queues: &HostQueues, layers: usize) -> SavedOnHost {
        SavedOnHost { layers, queues: queues.clone(), noted: Rc::default() }
    }

    /// Notes the tensors that the forward of a layer has saved.
    pub(crate) fn note(&self, layer: usize, microbatch: usize, saved: Vec<Tensor>) {
        let mut large: Vec<Tensor> = Vec::new();
        for tensor in saved.into_iter().filter(|tensor| tensor.elements() > 0) {
            // Two parts may save the same tensor, or a part of it.
            if !large.iter().any(|known| is_within(&tensor, known)) {
                large.retain(|known| !is_within(known, &tensor));
                large.push(tensor);
            }
        }
        self.noted.borrow_mut().insert((layer, microbatch), large);
    }
}

/// Whether all of a tensor's memory is that of another.
fn is_within(tensor: &Tensor, other: &Tensor) -> bool {
    let (inner, outer) = (tensor.range(), other.range());
    tensor.buffer == other.buffer && outer.start <= inner.start && inner.end <= outer.end
}

/// The pass, with the tensors that have left and come back in a step.
pub(crate) struct Present {
    queues: HostQueues,
    noted: Rc<RefCell<HashMap<LayerAndMicrobatch, Vec<Tensor>>>>,
    /// By layer: the layer before it, if the tensors of that one leave.
    before: HashMap<usize, usize>,
    /// By layer and microbatch: tensors, each with its copy on the host.
    away: HashMap<LayerAndMicrobatch, Vec<(Tensor, Tensor)>>,
    /// By layer and microbatch: tensors, each with the copy that came back.
    here: HashMap<LayerAndMicrobatch, Vec<(Tensor, Tensor)>>,
    /// The region under way has begun moves.
    begun: bool,
}

impl Present {
    /// The pass for a step of `chunks`.
    pub(crate) fn new(on_host: &SavedOnHost, chunks: &[Chunk]) -> Present {
        let SavedOnHost { layers, queues, noted } = on_host;
        noted.borrow_mut().clear();
        // The embedding saves nothing large.
        let leaving = |chunk: &Chunk| chunk.first.max(1)..(chunk.first + chunk.layers.len()).saturating_sub(1);
        let before = chunks.iter().flat_map(|chunk| leaving(chunk).take(*layers).map(|layer| (layer + 1, layer)));
        Present {
            queues: queues.clone(),
            noted: noted.clone(),
            before: before.collect(),
            away: HashMap::new(),
            here: HashMap::new(),
            begun: false,
        }
    }

    /// Begins to move the tensors that a forward has saved to the host.
    fn send(&mut self, piece: &mut Piece<Region>, at: LayerAndMicrobatch) {
        let saved = self.noted.borrow_mut().remove(&at).unwrap_or_default();
        let (moved, entries) =
            moves(piece, saved.into_iter().map(|saved| (saved, saved)), Home::Host, &self.queues.to_host);
        self.begin(piece, entries);
        self.away.insert(at, moved);
    }

    /// Begins to move a microbatch's saved tensors back.
    fn fetch(&mut self, piece: &mut Piece<Region>, at: LayerAndMicrobatch) {
        let away = self.away.remove(&at).unwrap_or_default();
        let (moved, entries) = moves(piece, away.into_iter(), Home::Device, &self.queues.from_host);
        self.begin(piece, entries);
        self.here.insert(at, moved);
    }

    fn begin(&mut self, piece: &mut Piece<Region>, moves: Vec<PieceEntry>) {
        self.begun = !moves.is_empty();
        piece.entries.splice(0..0, moves);
    }
}

/// Moves tensors to new buffers. Of each pair the first is the tensor of the layer's, and the second lies where it is now.
/// Returns the pairs with the new places, and the moves.
fn moves(
    piece: &mut Piece<Region>,
    tensors: impl Iterator<Item = (Tensor, Tensor)>,
    home: Home,
    queue: &Rc<SideStream>,
) -> (Vec<(Tensor, Tensor)>, Vec<PieceEntry>) {
    let one = |(saved, input): (Tensor, Tensor)| {
        let output = piece.buffer_like(&input, home, "saved");
        let mut entry = PieceEntry::moves(Move { input, output });
        entry.put_on(queue);
        ((saved, output), entry)
    };
    tensors.map(one).unzip()
}

impl StepPass<Region> for Present {
    fn name(&self) -> &'static str {
        PassName::Present.words()
    }

    fn apply(&mut self, piece: &mut Piece<Region>) {
        let region = piece.region();
        let of_backward = match region {
            Region::Backward { layer, microbatch }
            | Region::Module { phase: Phase::Backward, layer, microbatch, .. } => Some((layer, microbatch)),
            _ => None,
        };
        if let Some(copies) = of_backward.and_then(|at| self.here.get(&at)) {
            let entries = &mut piece.entries;
            entries.iter_mut().for_each(|entry| copies.iter().for_each(|(saved, copy)| entry.use_copy(saved, copy)));
        }
        let (layer, microbatch, queue) = match region {
            Region::Forward { layer, microbatch } => (layer, microbatch, self.queues.to_host.clone()),
            Region::Backward { layer, microbatch } => (layer, microbatch, self.queues.from_host.clone()),
            _ => return,
        };
        let Some(&before) = self.before.get(&layer) else { return };
        match region {
            Region::Forward { .. } if piece.begins() => self.send(piece, (before, microbatch)),
            Region::Backward { .. } if piece.begins() => self.fetch(piece, (before, microbatch)),
            _ => {}
        }
        if piece.then() == Then::End && std::mem::take(&mut self.begun) {
            piece.joins.push(queue);
        }
    }
}
