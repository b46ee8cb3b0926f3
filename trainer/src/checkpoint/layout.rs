//! Which tensors a stage keeps in a checkpoint, and where they lie in memory.

use device::Tensor;

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

/// This rank's part of a tensor. Every data-parallel rank has all of it, so today parts are whole tensors.
pub(super) struct Stored {
    pub(super) role: Role,
    pub(super) file: &'static str,
    pub(super) name: String,
    /// The whole tensor, padding not counted.
    pub(super) shape: Vec<usize>,
    /// Where this rank's part begins, by axis.
    pub(super) offset: Vec<usize>,
    /// The part's shape.
    pub(super) sizes: Vec<usize>,
    /// The part in memory, f32, padding rows behind it.
    pub(super) memory: Tensor,
}

impl Stored {
    /// The part in memory without padding.
    pub(super) fn values(&self) -> Tensor {
        self.memory.view(0, [self.sizes.iter().product::<usize>()])
    }
}

/// All tensors of a stage, file by file, in the order of declaration.
pub(super) fn stored(stage: &Stage) -> Vec<Stored> {
    let params = stage.params();
    let whole = |role, file, name: String, index: usize, memory: Tensor| {
        let spec = &params.specs[index];
        let mut shape = spec.shape.sizes().to_vec();
        shape[0] = spec.rows;
        Stored { role, file, name, offset: vec![0; shape.len()], sizes: shape.clone(), shape, memory }
    };
    let mut all = Vec::new();
    for (index, (spec, param)) in params.iter().enumerate() {
        all.push(whole(Role::Weights(index), MODEL, spec.name.clone(), index, param.master));
    }
    for (moment, flat) in &stage.optimizer().state {
        for (index, (spec, _)) in params.iter().enumerate() {
            let name = format!("{}.{moment}", spec.name);
            all.push(whole(Role::Moment, OPTIMIZER, name, index, params.part_of(*flat, index)));
        }
    }
    all
}
