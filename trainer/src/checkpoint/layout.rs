//! Which tensors a stage keeps in a checkpoint, and where they lie in memory.

use device::Tensor;
use engine::params::{Held, Param, ParamSpec, Piece, Twin};
use engine::step::Stage;

use super::manifest::MANIFEST;

/// The file of the weights.
pub(super) const MODEL: &str = "model.safetensors";
/// The file of the moments.
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";
/// The file of the configuration.
pub(super) const CONFIG: &str = "config.toml";

/// Whether a file in a checkpoint's folder may have that name, while it is written too.
pub(super) fn is_file_name(name: &str) -> bool {
    let between = |start: &str, end: &str| name.strip_prefix(start).is_some_and(|rest| rest.ends_with(end));
    [CONFIG, MANIFEST].contains(&name)
        || between("model", ".safetensors")
        || between("optimizer", ".safetensors")
        || between("rank-", ".json")
}

/// What a tensor is to the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Master weights of the parameter of that number.
    Weights(usize),
    /// A moment of the optimizer.
    Moment,
}

/// What this rank has of a tensor.
pub(super) struct Stored {
    pub(super) role: Role,
    /// The file it belongs to; ranks that each have their own part add their number.
    pub(super) file: &'static str,
    pub(super) name: String,
    /// The whole tensor, padding not counted.
    pub(super) shape: Vec<usize>,
    /// Where what layers here compute with lies in the whole, and in the parameter as it is stored.
    pub(super) pieces: Vec<Piece>,
    /// Those parts of the pieces that this rank updates, and writes.
    pub(super) held: Vec<Piece>,
    /// Every rank of a tensor-parallel group has all of it.
    pub(super) everywhere: bool,
    /// Another stage has it too, and writes it.
    pub(super) replica: bool,
    /// What this rank updates of the parameter as it is stored, padding rows included: f32, flat, from this element on.
    pub(super) memory: Tensor,
    pub(super) first: usize,
    /// Elements of the parameter as it is stored.
    pub(super) elements: usize,
}

impl Stored {
    /// A held piece in memory.
    pub(super) fn values(&self, piece: &Piece) -> Tensor {
        self.memory.view(piece.start - self.first, [piece.elements()])
    }
}

/// Names of the tensors that other stages alone have.
pub(super) fn elsewhere(stage: &Stage) -> impl Iterator<Item = String> {
    stage.params().elsewhere.iter().flat_map(|name| {
        let moments = stage.optimizer().state.iter().map(move |(moment, _)| format!("{name}.{moment}"));
        std::iter::once(name.clone()).chain(moments)
    })
}

/// All tensors of a stage, file by file, in the order of declaration.
pub(super) fn stored(stage: &Stage) -> Vec<Stored> {
    let params = stage.params();
    let part = |role, file, name: String, (spec, param): (&ParamSpec, &Param), memory: Tensor| {
        let (shape, pieces, everywhere) = (spec.whole.clone(), spec.pieces(), spec.cut.is_none());
        let Held { first, elements, .. } = param.held;
        let held = pieces.iter().flat_map(|piece| piece.within(first..first + elements)).collect();
        let (elements, replica) = (spec.shape.elements(), spec.twin == Some(Twin::Replica));
        Stored { role, file, name, shape, pieces, held, everywhere, replica, memory, first, elements }
    };
    let mut all = Vec::new();
    for (index, each) in params.iter().enumerate() {
        all.push(part(Role::Weights(index), MODEL, each.0.name.clone(), each, each.1.master));
    }
    for (moment, flat) in &stage.optimizer().state {
        for (index, each) in params.iter().enumerate() {
            let name = format!("{}.{moment}", each.0.name);
            all.push(part(Role::Moment, OPTIMIZER, name, each, params.part_of(*flat, index)));
        }
    }
    all
}
