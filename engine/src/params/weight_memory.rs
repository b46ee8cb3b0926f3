//! The memory of the weights that layers read.

use device::DType;
use device::Home as MemoryOf;
use parallel::{Axes, Place, Ranks};

use super::masters::MasterForm;
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

/// The memory of a parameter's weights, and the ranks that divide their masters and state. All ranks find the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// The weights.
    pub memory: WeightMemory,
    /// The ranks.
    pub rest: Axes,
    /// The memory of masters that are no weights that layers read.
    pub masters: MemoryOf,
    /// The form of masters.
    pub form: MasterForm,
    /// The type of gradients.
    pub grads: DType,
}

impl Home {
    /// Of a parameter, in a stage whose first layer is `first_layer`.
    pub(super) fn of(spec: &ParamSpec, first_layer: usize, ranks: &Ranks) -> Home {
        let rest = spec.spread.rest;
        let masters = if spec.frozen { MemoryOf::Device } else { spec.state_home };
        let memory = WeightMemory::of(spec, first_layer, ranks.place(rest));
        Home { memory, rest, masters, form: spec.master_form, grads: spec.grad_type }
    }
}

impl WeightMemory {
    /// The memory that a parameter needs. Products read the copies of an 8-bit weight, so it needs no other memory than its
    /// masters, unless these lie on the host. If several ranks divide these they gather the weights, in `spec.dtype` or in 8
    /// bits. The weights of the first layer are gathered after the update and must last until the next forward, so they stay.
    fn of(spec: &ParamSpec, first_layer: usize, part: Place) -> WeightMemory {
        if spec.frozen {
            return WeightMemory::Frozen(spec.dtype);
        }
        let masters_here = spec.state_home == MemoryOf::Device;
        match (spec.fp8, part.has_others()) {
            (Some(fp8), true) if spec.layer > first_layer => {
                let in_8_bits = fp8.gathers_weights && fp8.recipe.has_one_scale() && masters_here;
                WeightMemory::Passing(if in_8_bits { fp8.input() } else { spec.dtype })
            }
            (Some(_), false) if masters_here => WeightMemory::Kept(DType::F32),
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
