//! The update: gradient norm, clip and the optimizers, each over all tensors at once.

use std::sync::Arc;

use super::{Accesses, Operation, Status, Visit, ensure, ensure_dtype, ensure_elements, visit_all};
use crate::{DType, Result, Tensor};

/// `total (+)= sum of x^2` over all tensors, accumulated in f64 in fixed chunks and rounded once.
#[derive(Clone, Debug, PartialEq)]
pub struct SquareSum {
    /// f32, any shapes.
    pub inputs: Arc<[Tensor]>,
    /// `(1)`, f32.
    pub total: Tensor,
}

impl Operation for SquareSum {
    const NAME: &'static str = "square_sum";

    fn check(&self) -> Result<()> {
        for input in self.inputs.iter() {
            ensure_dtype(Self::NAME, "inputs", input, DType::F32)?;
        }
        ensure_dtype(Self::NAME, "total", &self.total, DType::F32)?;
        ensure_elements(Self::NAME, "total", &self.total, 1)
    }

    fn accesses(&self) -> Accesses {
        Accesses::new(self.inputs.iter().copied(), [self.total])
    }

    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(visit, [&mut self.inputs, &mut self.total]);
    }
}

/// From the sum of squared gradients to [`Status`]: norm = `sqrt(square_sum) * inverse_loss_scale`, `finite` and
/// `applies`, `grad_factor = min(1, clip / (norm + 1e-6)) * inverse_loss_scale`, and `applied` or `skipped` advanced by one.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipScale {
    /// `(1)`, f32.
    pub square_sum: Tensor,
    /// u8, a [`super::Control`].
    pub control: Tensor,
    /// u8, a [`Status`], updated.
    pub status: Tensor,
}

impl Operation for ClipScale {
    const NAME: &'static str = "clip_scale";

    fn check(&self) -> Result<()> {
        ensure_dtype(Self::NAME, "square_sum", &self.square_sum, DType::F32)?;
        ensure_elements(Self::NAME, "square_sum", &self.square_sum, 1)?;
        ensure_elements(Self::NAME, "status", &self.status, size_of::<Status>())
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.square_sum, self.control, self.status], [self.status])
    }

    fn makes_status(&self) -> Option<Tensor> {
        Some(self.status)
    }

    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(visit, [&mut self.square_sum, &mut self.control, &mut self.status]);
    }
}

/// Fails unless master weights and gradient are f32, state is f32, or bf16 where the operation takes that, and these and the
/// weights that layers compute with have as many elements as the master weights.
pub(super) fn check_parameter(
    op: &'static str,
    master: &Tensor,
    grad: &Tensor,
    state: &[(&'static str, Tensor)],
    compute: Option<&Tensor>,
) -> Result<()> {
    for (name, tensor) in [("master", master), ("grad", grad)].into_iter().chain(state.iter().map(|(n, t)| (*n, t))) {
        let may_be_bf16 = name.starts_with("exp_avg") && tensor.dtype == DType::Bf16;
        ensure_dtype(op, name, tensor, if may_be_bf16 { DType::Bf16 } else { DType::F32 })?;
        ensure_elements(op, name, tensor, master.elements())?;
    }
    compute.map_or(Ok(()), |compute| ensure_elements(op, "compute", compute, master.elements()))
}

/// One parameter as AdamW sees it; all tensors have the same number of elements.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamWTensors {
    /// f32 master weights, updated.
    pub master: Tensor,
    /// The weights layers compute with, rewritten from `master`; absent where they are the same memory.
    pub compute: Option<Tensor>,
    /// f32 `main_grad`.
    pub grad: Tensor,
    /// First moment, f32 or bf16, updated.
    pub exp_avg: Tensor,
    /// Second moment, f32 or bf16, updated.
    pub exp_avg_sq: Tensor,
    /// Decoupled weight decay of this parameter.
    pub weight_decay: f32,
    /// What the learning rate is multiplied by for this parameter: a constant, part of the graph.
    pub lr_multiplier: f32,
}

impl Visit for AdamWTensors {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(
            visit,
            [&mut self.master, &mut self.compute, &mut self.grad, &mut self.exp_avg, &mut self.exp_avg_sq],
        );
    }
}

/// AdamW (Loshchilov and Hutter, 2019) over all parameters in one pass, as `torch.optim.AdamW` computes it:
/// `w -= lr * decay * w`, then `w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)`.
///
/// Moments in bf16 are computed in f32, used for the weights, then rounded to nearest even.
/// The gradient is multiplied by `status.grad_factor`, `t = status.applied`, bias corrections are f64. `lr` is the control
/// block's learning rate times the parameter's multiplier. Nothing is written when `status.applies` is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    /// All parameters of this rank.
    pub tensors: Arc<[AdamWTensors]>,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// u8, a [`super::Control`].
    pub control: Tensor,
    /// u8, a [`Status`].
    pub status: Tensor,
}

impl Operation for AdamW {
    const NAME: &'static str = "adamw";

    fn check(&self) -> Result<()> {
        for each in self.tensors.iter() {
            let state = [("exp_avg", each.exp_avg), ("exp_avg_sq", each.exp_avg_sq)];
            check_parameter(Self::NAME, &each.master, &each.grad, &state, each.compute.as_ref())?;
        }
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        let mut all = Accesses::new([self.control, self.status], []);
        for each in self.tensors.iter() {
            all.reads.extend([each.master, each.grad, each.exp_avg, each.exp_avg_sq]);
            all.writes.extend([each.master, each.exp_avg, each.exp_avg_sq]);
            all.writes.extend(each.compute);
        }
        all
    }

    fn follows_status(&self) -> Option<Tensor> {
        Some(self.status)
    }

    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(visit, [&mut self.tensors, &mut self.control, &mut self.status]);
    }
}

/// One parameter as Lion sees it; all tensors have the same number of elements.
#[derive(Clone, Debug, PartialEq)]
pub struct LionTensors {
    /// f32 master weights, updated.
    pub master: Tensor,
    /// The weights layers compute with; absent where they are the same memory.
    pub compute: Option<Tensor>,
    /// f32 `main_grad`.
    pub grad: Tensor,
    /// Moment, f32 or bf16, updated.
    pub exp_avg: Tensor,
    /// Decoupled weight decay of this parameter.
    pub weight_decay: f32,
    /// What the learning rate is multiplied by for this parameter: a constant, part of the graph.
    pub lr_multiplier: f32,
}

impl Visit for LionTensors {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(visit, [&mut self.master, &mut self.compute, &mut self.grad, &mut self.exp_avg]);
    }
}

/// Lion (Chen et al., 2023, algorithm 2): `w -= lr * (sign(b1 * m + (1 - b1) * g) + decay * w)`, then
/// `m = b2 * m + (1 - b2) * g`. The gradient is multiplied by `status.grad_factor`, the learning rate by the parameter's
/// multiplier. Nothing is written when `status.applies` is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Lion {
    /// All parameters of this rank.
    pub tensors: Arc<[LionTensors]>,
    /// The moment's share in the direction of an update.
    pub beta1: f32,
    /// Decay of the moment.
    pub beta2: f32,
    /// u8, a [`super::Control`].
    pub control: Tensor,
    /// u8, a [`Status`].
    pub status: Tensor,
}

impl Operation for Lion {
    const NAME: &'static str = "lion";

    fn check(&self) -> Result<()> {
        for each in self.tensors.iter() {
            let state = [("exp_avg", each.exp_avg)];
            check_parameter(Self::NAME, &each.master, &each.grad, &state, each.compute.as_ref())?;
        }
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        let mut all = Accesses::new([self.control, self.status], []);
        for each in self.tensors.iter() {
            all.reads.extend([each.master, each.grad, each.exp_avg]);
            all.writes.extend([each.master, each.exp_avg]);
            all.writes.extend(each.compute);
        }
        all
    }

    fn follows_status(&self) -> Option<Tensor> {
        Some(self.status)
    }

    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(visit, [&mut self.tensors, &mut self.control, &mut self.status]);
    }
}

/// One parameter as SGD sees it; all tensors have the same number of elements.
#[derive(Clone, Debug, PartialEq)]
pub struct SgdTensors {
    /// f32 master weights, updated.
    pub master: Tensor,
    /// The weights layers compute with; absent where they are the same memory.
    pub compute: Option<Tensor>,
    /// f32 `main_grad`.
    pub grad: Tensor,
    /// f32 momentum buffer, updated; present when momentum is not 0.
    pub momentum: Option<Tensor>,
    /// L2 weight decay of this parameter, added to the gradient.
    pub weight_decay: f32,
    /// What the learning rate is multiplied by for this parameter: a constant, part of the graph.
    pub lr_multiplier: f32,
}

impl Visit for SgdTensors {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(visit, [&mut self.master, &mut self.compute, &mut self.grad, &mut self.momentum]);
    }
}

/// SGD as `torch.optim.SGD` computes it: `g += decay * w`, `b = momentum * b + g`, `w -= lr * b`
/// (without momentum `w -= lr * g`). The buffer starts at 0, which equals PyTorch's first step `b = g`. The learning rate is
/// multiplied by the parameter's multiplier.
#[derive(Clone, Debug, PartialEq)]
pub struct Sgd {
    /// All parameters of this rank.
    pub tensors: Arc<[SgdTensors]>,
    /// Momentum; 0 for none.
    pub momentum: f32,
    /// u8, a [`super::Control`].
    pub control: Tensor,
    /// u8, a [`Status`].
    pub status: Tensor,
}

impl Operation for Sgd {
    const NAME: &'static str = "sgd";

    fn check(&self) -> Result<()> {
        for each in self.tensors.iter() {
            let state: Vec<_> = each.momentum.iter().map(|momentum| ("momentum", *momentum)).collect();
            check_parameter(Self::NAME, &each.master, &each.grad, &state, each.compute.as_ref())?;
            ensure(Self::NAME, each.momentum.is_some() == (self.momentum != 0.0), || {
                "a momentum buffer goes with a momentum that is not 0".into()
            })?;
        }
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        let mut all = Accesses::new([self.control, self.status], []);
        for each in self.tensors.iter() {
            all.reads.extend([each.master, each.grad]);
            all.reads.extend(each.momentum);
            all.writes.extend([each.master]);
            all.writes.extend(each.compute);
            all.writes.extend(each.momentum);
        }
        all
    }

    fn follows_status(&self) -> Option<Tensor> {
        Some(self.status)
    }

    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(visit, [&mut self.tensors, &mut self.control, &mut self.status]);
    }
}
