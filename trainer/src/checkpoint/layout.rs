//! Which tensors a stage keeps in a checkpoint, and where they lie in memory.

use device::Tensor;

use crate::cut::Piece;
use crate::step::Stage;

/// The file of the weights.
pub(super) const MODEL: &str = "model.safetensors";
/// The file of the moments.
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";
/// The file of the configuration.
pub(super) const CONFIG: &str = "config.toml";

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
    /// Where what is here lies in the whole and in memory.
    pub(super) pieces: Vec<Piece>,
    /// Every rank of a tensor-parallel group has all of it.
    pub(super) everywhere: bool,
    /// f32, with padding rows.
    pub(super) memory: Tensor,
}

impl Stored {
    /// A piece in memory.
    pub(super) fn values(&self, piece: &Piece) -> Tensor {
        self.memory.view(piece.start, [piece.elements()])
    }
}

/// All tensors of a stage, file by file, in the order of declaration.
pub(super) fn stored(stage: &Stage) -> Vec<Stored> {
    let params = stage.params();
    let part = |role, file, name: String, index: usize, memory: Tensor| {
        let spec = &params.specs[index];
        let (shape, pieces, everywhere) = (spec.whole.clone(), spec.pieces(), spec.cut.is_none());
        Stored { role, file, name, shape, pieces, everywhere, memory }
    };
    let mut all = Vec::new();
    for (index, (spec, param)) in params.iter().enumerate() {
        all.push(part(Role::Weights(index), MODEL, spec.name.clone(), index, param.master));
    }
    for (moment, flat) in &stage.optimizer().state {
        for (index, (spec, _)) in params.iter().enumerate() {
            let name = format!("{}.{moment}", spec.name);
            all.push(part(Role::Moment, OPTIMIZER, name, index, params.part_of(*flat, index)));
        }
    }
    all
}
