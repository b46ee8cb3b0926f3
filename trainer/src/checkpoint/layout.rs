//! The tensors of a checkpoint that a rank has, and their places in memory.

use std::ops::Range;

use device::{DType, Tensor};
use engine::params::{OwnedRange, Param, ParamSpec, Slab, TiedCopy};
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
    /// The file that it belongs to. If several ranks write, each has one of its own.
    pub(super) file: Tensors,
    pub(super) name: String,
    /// The shape of the whole tensor, without padding.
    pub(super) shape: Vec<usize>,
    /// The slabs of the whole that layers here compute with. They start at their index in the stored parameter.
    pub(super) slabs: Vec<Slab>,
    /// The parts of these slabs that this rank updates.
    pub(super) owned: Vec<Slab>,
    /// The owned slabs that this rank writes if it writes the tensor: all but copies of another rank's.
    pub(super) written: Vec<Slab>,
    /// Every rank of a tensor-parallel group stores the whole tensor.
    pub(super) replicated: bool,
    /// The stage has the second copy of a tied parameter; another stage writes it.
    pub(super) tied_replica: bool,
    /// The elements that this rank updates, with padding rows, from `first` of the stored parameter on; of a frozen
    /// parameter all elements. They are f32 but for frozen weights and moments that are kept in bf16.
    pub(super) memory: Tensor,
    pub(super) first: usize,
    /// Elements of the stored parameter.
    pub(super) elements: usize,
}

impl LocalTensor {
    /// The memory of an owned slab.
    pub(super) fn memory_of(&self, slab: &Slab) -> Tensor {
        self.memory.view(slab.start - self.first, [slab.elements()])
    }

    /// The type of its values in a file: that in memory.
    pub(super) fn data_type(&self) -> DataType {
        if self.memory.dtype == DType::Bf16 { DataType::Bf16 } else { DataType::F32 }
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
    // One rank writes the values that are alike on all ranks of a stage sharing the batch.
    let first = params.optimizer_shard().rank == 0;
    let mut all = Vec::new();
    for (index, (spec, param)) in params.iter().enumerate() {
        all.push(local_tensor(
            Role::Weights(index),
            Tensors::Model,
            spec.name.clone(),
            (spec, param),
            param.master,
            first,
        ));
    }
    for &wanted in optimizer.state_names() {
        for (index, (spec, param)) in params.iter().enumerate() {
            for (_, memory) in optimizer.state(index).iter().filter(|(name, _)| *name == wanted) {
                let name = format!("{}.{wanted}", spec.name);
                all.push(local_tensor(Role::OptimizerState, Tensors::Optimizer, name, (spec, param), *memory, first));
            }
        }
    }
    for (spec, param) in params.iter() {
        let Some(fp8) = param.fp8 else { continue };
        for (suffix, cell) in MAGNITUDES.into_iter().zip([fp8.input, fp8.grad_output]) {
            if let Some(cell) = cell {
                all.push(magnitudes(format!("{}{suffix}", spec.name), cell.history, first));
            }
        }
    }
    all
}

/// A tensor that every rank has whole.
fn magnitudes(name: String, memory: Tensor, writes: bool) -> LocalTensor {
    let elements = memory.elements();
    let whole = vec![Slab { offset: vec![0], sizes: vec![elements], start: 0 }];
    LocalTensor {
        role: Role::Magnitudes,
        file: Tensors::Optimizer,
        name,
        shape: vec![elements],
        owned: if writes { whole.clone() } else { Vec::new() },
        written: if writes { whole.clone() } else { Vec::new() },
        slabs: whole,
        replicated: true,
        tied_replica: false,
        memory,
        first: 0,
        elements,
    }
}

fn local_tensor(
    role: Role,
    file: Tensors,
    name: String,
    (spec, param): (&ParamSpec, &Param),
    memory: Tensor,
    first: bool,
) -> LocalTensor {
    let slabs = spec.slabs();
    let within = |range: Range<usize>| slabs.iter().flat_map(|slab| slab.within(range.clone())).collect();
    let range = match spec.frozen {
        // Nobody updates it, and every rank has all of it.
        true => OwnedRange { first: 0, elements: if first { spec.shape.elements() } else { 0 } },
        false => param.owned,
    };
    let (owned, written) = (within(range.range()), within(range.within(spec.counted())));
    LocalTensor {
        role,
        file,
        name,
        shape: spec.whole.clone(),
        owned,
        written,
        slabs,
        replicated: spec.shard.is_none(),
        tied_replica: spec.tied == Some(TiedCopy::Replica),
        memory,
        first: range.first,
        elements: spec.shape.elements(),
    }
}
