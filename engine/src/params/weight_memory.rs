//! The memory of the weights that layers read.

use device::DType;
use device::Home;
use device::ops::CodeForm;
use parallel::{Axes, Place, Ranks};

use super::masters::MasterForm;
use super::sharding::{Division, Sharding};
use super::spec::ParamSpec;
use crate::fp8::Made;

/// The share of a parameter's weights that a rank has, and the weights' type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightMemory {
    /// All, at any time. f32 weights are their own masters.
    Kept(DType),
    /// The part that this rank updates. The whole is gathered in a buffer that layers take turns in. It is there while
    /// its layer runs: once a step if only its 8-bit copies are read after, else for each use.
    Gathered(DType),
    /// All, at any time, without masters: nothing updates them.
    Frozen(DType),
    /// A part as for [`WeightMemory::Gathered`], without masters: nothing updates it.
    GatheredFrozen(DType),
    /// All, as codes. Layers take turns in buffers with the values in this type, which are there while a layer runs.
    Coded(DType, CodeForm),
    /// A part, as codes. A layer's codes are gathered, and its values made of them, as for [`WeightMemory::Coded`].
    GatheredCodes(DType, CodeForm),
}

/// The memory of a parameter's weights, and the ranks that divide the weights' masters and state. All ranks find the
/// same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamMemory {
    /// The weights.
    pub memory: WeightMemory,
    /// The ranks.
    pub rest: Axes,
    /// The memory that the ranks of `rest` divide.
    pub sharding: Sharding,
    /// How ranks divide that memory.
    pub division: Division,
    /// The number of buffers that the parameter's layers take turns in.
    pub turns: usize,
    /// The memory of masters that are no weights that layers read.
    pub masters: Home,
    /// The form of masters.
    pub form: MasterForm,
    /// The type of gradients.
    pub grads: DType,
}

impl ParamMemory {
    /// Of a parameter.
    pub(super) fn of(spec: &ParamSpec, ranks: &Ranks) -> ParamMemory {
        let rest = spec.spread.rest;
        // Each layer is a bucket, whose values are made anew for each use.
        let sharding = if spec.codes.is_some() { Sharding::Weights } else { spec.sharding };
        let masters = if spec.frozen { Home::Device } else { spec.state_home };
        let memory = WeightMemory::of(spec, ranks.place(rest));
        let cuts = spec.frozen || !ranks.place(rest).has_others();
        let division = if cuts { Division::Elements } else { spec.division };
        let (turns, form, grads) = (spec.turns, spec.master_form, spec.grad_type);
        ParamMemory { memory, rest, sharding, division, turns, masters, form, grads }
    }
}

impl ParamMemory {
    /// When 8-bit copies of the weights are made.
    pub(super) fn copies_made(self) -> Made {
        match self.memory {
            WeightMemory::Frozen(_) => Made::Once,
            memory if memory.is_gathered() && self.sharding == Sharding::Weights => Made::ForEachUse,
            _ => Made::OnceAStep,
        }
    }
}

impl WeightMemory {
    /// The memory that a parameter needs. Products read the copies of an 8-bit weight, so it needs no other memory than its
    /// masters, unless these lie on the host. If several ranks divide these they gather the weights, in `spec.dtype` or in 8
    /// bits.
    fn of(spec: &ParamSpec, part: Place) -> WeightMemory {
        match (spec.codes, part.has_others()) {
            (Some(form), true) => return WeightMemory::GatheredCodes(spec.dtype, form),
            (Some(form), false) => return WeightMemory::Coded(spec.dtype, form),
            (None, true) if spec.frozen => return WeightMemory::GatheredFrozen(spec.dtype),
            (None, false) if spec.frozen => return WeightMemory::Frozen(spec.dtype),
            (None, _) => {}
        }
        let masters_here = spec.state_home == Home::Device;
        match (spec.fp8, part.has_others()) {
            (Some(fp8), true) => {
                let in_8_bits = fp8.gathers_weights && fp8.recipe.has_one_scale() && masters_here;
                WeightMemory::Gathered(if in_8_bits { fp8.input() } else { spec.dtype })
            }
            (None, true) if spec.sharding == Sharding::Weights => WeightMemory::Gathered(spec.dtype),
            (Some(_), false) if masters_here => WeightMemory::Kept(DType::F32),
            _ => WeightMemory::Kept(spec.dtype),
        }
    }

    /// Whether a rank has a part, and layers take turns to gather the whole weights.
    pub(super) fn is_gathered(self) -> bool {
        matches!(self, WeightMemory::Gathered(_) | WeightMemory::GatheredFrozen(_) | WeightMemory::GatheredCodes(..))
    }

    /// Whether layers take turns in buffers with the weights.
    pub(super) fn takes_turns(self) -> bool {
        self.is_gathered() || self.codes().is_some()
    }

    /// Whether nothing updates the weights.
    pub(super) fn is_frozen(self) -> bool {
        matches!(self, WeightMemory::Frozen(_) | WeightMemory::GatheredFrozen(_)) || self.codes().is_some()
    }

    /// The form of the codes that the weights lie as; `None` if the weights lie as values.
    pub(super) fn codes(self) -> Option<CodeForm> {
        match self {
            WeightMemory::Coded(_, form) | WeightMemory::GatheredCodes(_, form) => Some(form),
            _ => None,
        }
    }

    /// The type of the weights.
    pub(super) fn dtype(self) -> DType {
        match self {
            WeightMemory::Kept(dtype)
            | WeightMemory::Gathered(dtype)
            | WeightMemory::Frozen(dtype)
            | WeightMemory::GatheredFrozen(dtype)
            | WeightMemory::Coded(dtype, _)
            | WeightMemory::GatheredCodes(dtype, _) => dtype,
        }
    }
}
