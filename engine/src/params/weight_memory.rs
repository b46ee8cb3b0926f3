//! The memory of the weights that layers read.

use device::DType;

use super::flat_layout::OptimizerShard;
use super::spec::ParamSpec;

/// The share of a parameter's weights that a rank has, and their type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightMemory {
    /// All, at any time. f32 weights are their own masters.
    Kept(DType),
    /// The part that this rank updates. The whole is gathered in a buffer that many parameters share. It is there for a
    /// short time, while the 8-bit copies are made.
    Passing(DType),
    /// All, at any time, without masters: nothing updates them.
    Frozen(DType),
}

impl WeightMemory {
    /// The memory that a parameter needs. Products read the copies of an 8-bit weight, so it needs no other memory than
    /// its masters. If several ranks divide these they gather the weights, in `spec.dtype` or in 8 bits. The weights of
    /// the first layer are gathered after the update and must last until the next forward, so they stay.
    pub(super) fn of(spec: &ParamSpec, first_layer: usize, shard: OptimizerShard) -> WeightMemory {
        if spec.frozen {
            return WeightMemory::Frozen(spec.dtype);
        }
        match (spec.fp8, shard.is_part()) {
            (Some(fp8), true) if spec.layer > first_layer => {
                let in_8_bits = fp8.gathers_weights && fp8.recipe.has_one_scale();
                WeightMemory::Passing(if in_8_bits { fp8.input() } else { spec.dtype })
            }
            (Some(_), false) => WeightMemory::Kept(DType::F32),
            _ => WeightMemory::Kept(spec.dtype),
        }
    }

    /// The type of the weights.
    pub(super) fn dtype(self) -> DType {
        match self {
            WeightMemory::Kept(dtype) | WeightMemory::Passing(dtype) | WeightMemory::Frozen(dtype) => dtype,
        }
    }
}
