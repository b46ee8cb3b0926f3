//! The update of weights by a rule, over all parameters at once.

mod host;

use std::sync::Arc;

use super::parameters::{Args, Tensors, launch};
use crate::cuda::{KernelFile, KernelOperation, Queue, fill, kernel_file};
use crate::ops::{
    Accesses, HasTensors, Operation, Rule, RuleState, StateValues, ensure, ensure_dtype, ensure_elements, ensure_float,
    ensure_values, tensors,
};
use crate::{DType, Result, Tensor};

/// One parameter as its update sees it; all tensors have the same number of elements.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateTensors {
    /// f32 master weights, updated. Or their remainders, u16: then `compute` is bf16 and has the rest of them, see
    /// [`split_master`](crate::ops::split_master).
    pub master: Tensor,
    /// The weights that layers compute with, rewritten from `master`; absent if they are the same memory. They are rounded
    /// to nearest even, or with remainders with ties away from 0.
    pub compute: Option<Tensor>,
    /// `main_grad`, f32 or bf16.
    pub grad: Tensor,
    /// The state that [`Rule::state`] names, in that order, updated.
    pub state: Arc<[Tensor]>,
    /// Weight decay of this parameter.
    pub weight_decay: f32,
    /// The factor of the learning rate for this parameter: a constant, part of the graph.
    pub lr_multiplier: f32,
}

impl UpdateTensors {
    /// Whether `master` has the remainders of master weights.
    pub fn has_remainders(&self) -> bool {
        self.master.dtype == DType::U16
    }
}

impl HasTensors for UpdateTensors {
    tensors! { master, compute, grad, state }
}

/// The update of all parameters of a rule in one pass. The operation has the rule's name.
///
/// The gradient is multiplied by `status.grad_factor`. The learning rate is the control block's times the parameter's
/// multiplier. Moments in bf16 are computed in f32, used for the weights, then rounded to nearest even. Nothing is
/// written when `status.applies` is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The rule, with its constants.
    pub rule: Rule,
    /// All parameters of this rank.
    pub tensors: Arc<[UpdateTensors]>,
    /// u8, a [`crate::ops::Control`].
    pub control: Tensor,
    /// u8, a [`crate::ops::Status`].
    pub status: Tensor,
}

impl Operation for Update {
    const NAME: &'static str = "update";
    const NAMES: &'static [&'static str] = &Rule::NAMES;

    fn name(&self) -> &'static str {
        self.rule.name()
    }

    fn check(&self) -> Result<()> {
        let (name, state) = (self.name(), self.rule.state());
        for each in self.tensors.iter() {
            check_gradient(name, each)?;
            match each.has_remainders() {
                true => check_remainders(name, each)?,
                false => check_master(name, &each.master, each.compute.as_ref())?,
            }
            ensure(name, each.state.len() == state.len(), || {
                format!("a parameter has {} tensors of state, needs {}", each.state.len(), state.len())
            })?;
            state.iter().zip(each.state.iter()).try_for_each(|(of, tensor)| {
                ensure_dtype(name, of.name, tensor, stored_type(of, tensor))?;
                ensure_elements(name, of.name, tensor, each.master.elements())
            })?;
        }
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        let mut all = Accesses::new([self.control, self.status], []);
        for each in self.tensors.iter() {
            all.reads.extend([each.master, each.grad]);
            all.reads.extend(each.state.iter());
            all.reads.extend(each.compute.filter(|_| each.has_remainders()));
            all.writes.push(each.master);
            all.writes.extend(each.state.iter());
            all.writes.extend(each.compute);
        }
        all
    }

    fn follows_status(&self) -> Option<Tensor> {
        Some(self.status)
    }

    tensors! { tensors, control, status }
}

/// The type that a tensor of this state must have: f32, or its own if that is bf16 and moments may be.
fn stored_type(state: &RuleState, tensor: &Tensor) -> DType {
    match (state.values, tensor.dtype) {
        (StateValues::FirstMoment | StateValues::SecondMoment, DType::Bf16) => DType::Bf16,
        _ => DType::F32,
    }
}

/// Fails unless the gradient has as many elements as the master weights, of a type that it may have.
fn check_gradient(op: &'static str, each: &UpdateTensors) -> Result<()> {
    ensure_float(op, &[("grad", each.grad)])?;
    ensure_elements(op, "grad", &each.grad, each.master.elements())
}

/// Fails unless the weights that remainders belong to are there, in bf16.
fn check_remainders(op: &'static str, each: &UpdateTensors) -> Result<()> {
    let compute = each.compute.filter(|compute| compute.dtype == DType::Bf16);
    ensure(op, compute.is_some(), || "remainders of master weights need `compute` in bf16".into())?;
    compute.map_or(Ok(()), |compute| ensure_elements(op, "compute", &compute, each.master.elements()))
}

/// Fails unless master weights and gradient are f32. Both, and the weights that layers compute with, must have as many
/// elements as the master weights.
pub(super) fn check_parameter(
    op: &'static str,
    master: &Tensor,
    (grad_name, grad): (&str, &Tensor),
    compute: Option<&Tensor>,
) -> Result<()> {
    ensure_values(op, grad_name, grad, DType::F32, master.elements())?;
    check_master(op, master, compute)
}

fn check_master(op: &'static str, master: &Tensor, compute: Option<&Tensor>) -> Result<()> {
    ensure_dtype(op, "master", master, DType::F32)?;
    compute.map_or(Ok(()), |compute| ensure_elements(op, "compute", compute, master.elements()))
}

impl KernelOperation for Update {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/optimizer.cu")];

    /// The kernel has the rule's name.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let tensors = self.tensors.iter().map(|each| Tensors {
            master: each.master,
            compute: each.compute,
            grad: each.grad,
            state: &each.state,
            weight_decay: each.weight_decay,
            lr_multiplier: each.lr_multiplier,
        });
        let [beta1, beta2, eps] = self.rule.constants();
        let args = fill! { Args: self.{control, status}; beta1, beta2, eps; ..bytemuck::Zeroable::zeroed() };
        launch(self.rule.name(), tensors, args, queue)
    }
}
