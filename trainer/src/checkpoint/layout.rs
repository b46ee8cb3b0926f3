//! The tensors of a checkpoint that a rank has, and the tensors' places in memory.

use device::{DType, Tensor};
use engine::params::{CodeMemory, Param, Params, Slab};
use engine::step::Stage;

use super::data_type::DataType;
use super::file::Tensors;

/// A tensor's role in the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Master weights of the parameter of that index.
    Weights(usize),
    /// State of the optimizer.
    OptimizerState,
    /// The largest magnitudes that delayed scaling remembers. A run with other settings has none, or another number.
    Magnitudes,
}

/// The ends of the names of [`Role::Magnitudes`], after the weight's name: for its layer's input and output gradient.
const MAGNITUDES: [&str; 2] = [".input_amax", ".grad_output_amax"];

/// Whether a tensor of that name is one that a run need not have.
pub(super) fn is_optional(name: &str) -> bool {
    MAGNITUDES.iter().any(|suffix| name.ends_with(suffix))
}

/// This rank's part of a tensor of the checkpoint.
pub(super) struct LocalTensor {
    pub(super) role: Role,
    /// The file that the tensor belongs to. If several ranks write, each has one of its own.
    pub(super) file: Tensors,
    pub(super) name: String,
    /// The shape of the whole tensor, without padding.
    pub(super) shape: Vec<usize>,
    /// The slabs of the whole that layers here compute with. They start at their index in the stored parameter.
    pub(super) slabs: Vec<Slab>,
    /// The parts of `slabs` that this rank writes: what it updates, but for copies of another rank's.
    pub(super) written: Vec<Slab>,
    /// The elements that this rank updates, with padding rows, from `first` of the stored parameter on; of a frozen
    /// parameter all elements.
    pub(super) memory: SlabMemory,
    pub(super) first: usize,
    /// Elements of the stored parameter.
    pub(super) elements: usize,
}

impl LocalTensor {
    /// The memory of an owned slab.
    pub(super) fn memory_of(&self, slab: &Slab) -> SlabMemory {
        self.memory.part(slab.start - self.first, slab.elements())
    }

    /// The type of the tensor's values in a file.
    pub(super) fn data_type(&self) -> DataType {
        let dtype = match self.memory {
            SlabMemory::Values(values) => values.dtype,
            SlabMemory::Remainders { .. } => DType::F32,
            SlabMemory::Codes { dtype, .. } => dtype,
        };
        if dtype == DType::Bf16 { DataType::Bf16 } else { DataType::F32 }
    }
}

/// The memory of a slab's values.
#[derive(Clone, Copy)]
pub(super) enum SlabMemory {
    /// A tensor with the values: f32, or bf16 of frozen weights and of moments that are kept so.
    Values(Tensor),
    /// Of f32 master weights: that of weights in bf16, and of the remainders of their masters.
    Remainders { weights: Tensor, remainders: Tensor },
    /// Codes of values that layers read in this type.
    Codes { codes: CodeMemory, dtype: DType },
}

impl SlabMemory {
    /// Of a parameter's weights: its masters if it has some.
    fn of_weights(param: &Param) -> SlabMemory {
        match (param.codes, param.master.dtype, param.owned_weight) {
            (Some(codes), ..) => SlabMemory::Codes { codes, dtype: param.weight.dtype },
            (None, DType::U16, Some(weights)) => SlabMemory::Remainders { weights, remainders: param.master },
            _ => SlabMemory::Values(param.master),
        }
    }

    /// The memory of some of the values.
    pub(super) fn part(self, first: usize, count: usize) -> SlabMemory {
        let of = |tensor: Tensor| tensor.view(first, [count]);
        match self {
            SlabMemory::Values(values) => SlabMemory::Values(of(values)),
            SlabMemory::Remainders { weights, remainders } => {
                SlabMemory::Remainders { weights: of(weights), remainders: of(remainders) }
            }
            SlabMemory::Codes { codes, dtype } => SlabMemory::Codes { codes: codes.part(first, count), dtype },
        }
    }

    /// The number of values.
    pub(super) fn elements(self) -> usize {
        match self {
            SlabMemory::Values(values) => values.elements(),
            SlabMemory::Remainders { weights, .. } => weights.elements(),
            SlabMemory::Codes { codes, .. } => codes.elements(),
        }
    }

    pub(super) fn tensors(self) -> impl Iterator<Item = Tensor> {
        let (first, second) = match self {
            SlabMemory::Values(values) => (values, None),
            SlabMemory::Remainders { weights, remainders } => (weights, Some(remainders)),
            SlabMemory::Codes { codes: CodeMemory { codes, scales, .. }, .. } => (codes, Some(scales)),
        };
        [first].into_iter().chain(second)
    }
}

/// The names of the tensors that only other stages have.
pub(super) fn names_elsewhere(stage: &Stage) -> Vec<String> {
    let states = stage.optimizer().state_names();
    let mut names = Vec::new();
    for name in stage.params_elsewhere() {
        names.push(name.clone());
        names.extend(states.iter().map(|state| format!("{name}.{state}")));
    }
    names
}

/// All tensors of a stage, file by file, in order of declaration.
pub(super) fn local_tensors(stage: &Stage) -> Vec<LocalTensor> {
    let (params, optimizer) = (stage.params(), stage.optimizer());
    let mut all = Vec::new();
    for (index, (_, param)) in params.iter().enumerate() {
        all.push(local_tensor(Role::Weights(index), params, index, "", SlabMemory::of_weights(param)));
    }
    for &wanted in optimizer.state_names() {
        for index in 0..params.specs.len() {
            for state in optimizer.state(index).iter().filter(|state| state.name == wanted) {
                all.push(match &state.own_sizes {
                    Some(sizes) => {
                        let name = format!("{}.{wanted}", params.specs[index].name);
                        whole_tensor(Role::OptimizerState, name, sizes, state.tensor, params.counts_first(index))
                    }
                    None => {
                        let memory = SlabMemory::Values(state.tensor);
                        local_tensor(Role::OptimizerState, params, index, wanted, memory)
                    }
                });
            }
        }
    }
    let first = params.ranks().place(params.divided()).is_first();
    for (spec, param) in params.iter() {
        let Some(fp8) = param.fp8 else { continue };
        for (suffix, cell) in MAGNITUDES.into_iter().zip([fp8.input, fp8.grad_output]) {
            if let Some(cell) = cell {
                let (name, history) = (format!("{}{suffix}", spec.name), cell.history);
                all.push(whole_tensor(Role::Magnitudes, name, history.shape.sizes(), history, first));
            }
        }
    }
    all
}

/// A tensor of the given sizes that ranks never divide.
fn whole_tensor(role: Role, name: String, sizes: &[usize], memory: Tensor, writes: bool) -> LocalTensor {
    let elements = memory.elements();
    let mut whole = vec![Slab { offset: vec![0; sizes.len()], sizes: sizes.to_vec(), start: 0 }];
    whole.retain(|_| elements > 0);
    LocalTensor {
        role,
        file: Tensors::Optimizer,
        name,
        shape: sizes.to_vec(),
        written: if writes { whole.clone() } else { Vec::new() },
        slabs: whole,
        memory: SlabMemory::Values(memory),
        first: 0,
        elements,
    }
}

/// A parameter's master weights, or the state of that name.
fn local_tensor(role: Role, params: &Params, index: usize, state: &str, memory: SlabMemory) -> LocalTensor {
    let (spec, param) = (&params.specs[index], params.get(&params.specs[index].name));
    let written = params.counted(index).into_iter();
    let (file, name) = match role {
        Role::Weights(_) => (Tensors::Model, spec.name.clone()),
        _ => (Tensors::Optimizer, format!("{}.{state}", spec.name)),
    };
    LocalTensor {
        role,
        file,
        name,
        shape: spec.whole.clone(),
        slabs: spec.slabs.clone(),
        written: written.flat_map(|range| spec.slabs.iter().flat_map(move |slab| slab.within(range.clone()))).collect(),
        memory,
        first: param.owned.first,
        elements: spec.shape.elements(),
    }
}
