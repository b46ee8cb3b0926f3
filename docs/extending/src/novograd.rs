//! NovoGrad (Ginsburg et al., 2019): a gradient is divided by an average of the norm of its parameter, and then averaged. The
//! second average is one number a parameter: a state in sizes of its own.

use std::sync::Arc;

use common::UserError;
use device::cuda::{CudaWork, GpuProperties};
use device::ops::{
    Accesses, Collective, CollectiveKind, CustomOp, DecayedStep, DecayedTensors, RuleState, SquareSum, StateValues,
    Status,
};
use device::{DType, HostTensors, Result, Tensor};
use engine::optimizer::{ParamUpdate, StepControl, Update, UpdateRule};
use engine::params::{ParamSpec, Params};
use trainer::config::RunConfig;

use crate::kernels;

/// The rule of a run.
pub fn rule(config: &RunConfig) -> std::result::Result<Arc<dyn UpdateRule>, UserError> {
    let decay = |name: &str| {
        let decay = config.own.float(name).unwrap_or_default();
        let what = || UserError::new(format!("own.{name} = {decay}"), "a decay is in [0, 1)", "leave it out");
        if (0.0..1.0).contains(&decay) { Ok(decay as f32) } else { Err(what()) }
    };
    Ok(Arc::new(NovoGrad { beta1: decay("novograd_beta1")?, beta2: decay("novograd_beta2")? }))
}

#[derive(Debug)]
struct NovoGrad {
    beta1: f32,
    beta2: f32,
}

const AVERAGE: RuleState = RuleState { name: "exp_avg", values: StateValues::FirstMoment };
const SQUARE: RuleState = RuleState { name: "square_avg", values: StateValues::Others };

impl UpdateRule for NovoGrad {
    fn state(&self) -> &'static [RuleState] {
        &[AVERAGE, SQUARE]
    }

    fn own_sizes(&self, state: &RuleState, _: &ParamSpec) -> Option<Vec<usize>> {
        (*state == SQUARE).then(|| vec![1])
    }

    fn updates_whole_parameters(&self) -> bool {
        true
    }

    // The average takes the place of the gradient.
    fn overwrites_gradients(&self) -> bool {
        true
    }

    fn update(
        &self,
        updates: Vec<ParamUpdate>,
        StepControl { control, status }: StepControl,
        params: &Params,
    ) -> Box<Update> {
        let (ranks, [beta1, beta2]) = (params.ranks().clone(), [self.beta1, self.beta2]);
        let steps = updates.iter().map(|of| DecayedTensors {
            master: of.master,
            compute: of.weight,
            direction: of.grad,
            weight_decay: of.weight_decay,
            lr_multiplier: of.lr_multiplier,
        });
        let step = DecayedStep { tensors: steps.collect(), control, status };
        Box::new(move |cx| {
            for of in &updates {
                let total = cx.tensor("square sum", [1], DType::F32)?;
                cx.run(SquareSum { inputs: of.counted(&ranks).into(), total })?;
                for group in ranks.chain(of.spec.spread.cut_over()) {
                    cx.run(Collective::in_place(CollectiveKind::AllReduceSum, group, total))?;
                }
                let (average, square) = (of.state[0], of.state[1]);
                cx.run(AverageSquare { total, square, beta2, status })?;
                cx.run(Average { grad: of.grad, square, average, beta1, status })?;
            }
            cx.run(step.clone())
        })
    }
}

/// The status of a step on the host.
fn status_of(tensors: &mut HostTensors<'_>, status: &Tensor) -> Result<Status> {
    Ok(bytemuck::pod_read_unaligned(tensors.read::<u8>(status)?))
}

/// `square = beta2 * square + (1 - beta2) * total * grad_factor^2`, in the first update that sum itself.
#[derive(Debug)]
struct AverageSquare {
    /// `(1)`, f32: the sum of squares of the whole gradient.
    total: Tensor,
    /// `(1)`, f32, updated.
    square: Tensor,
    beta2: f32,
    /// u8, a [`Status`].
    status: Tensor,
}

impl CustomOp for AverageSquare {
    fn name(&self) -> &'static str {
        "novograd_average_square"
    }

    fn check(&self) -> Result<()> {
        [self.total, self.square].iter().try_for_each(|tensor| kernels::check_f32(self.name(), tensor))
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.total, self.square, self.status], [self.square])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        let (status, total) = (status_of(tensors, &self.status)?, tensors.read::<f32>(&self.total)?[0]);
        let (now, square) = (total * status.grad_factor * status.grad_factor, tensors.write::<f32>(&self.square)?);
        if status.applies != 0 {
            square[0] = if status.applied == 1 { now } else { self.beta2 * square[0] + (1.0 - self.beta2) * now };
        }
        Ok(())
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        let arguments = vec![self.total.into(), self.square.into(), self.status.into(), self.beta2.into()];
        Some(kernels::launch(self.name(), 1, arguments))
    }
}

/// `average = beta1 * average + grad * grad_factor / (sqrt(square) + 1e-8)`, also in the gradient's place.
#[derive(Debug)]
struct Average {
    /// Any shape, f32, updated.
    grad: Tensor,
    /// `(1)`, f32.
    square: Tensor,
    /// As many, f32, updated.
    average: Tensor,
    beta1: f32,
    /// u8, a [`Status`].
    status: Tensor,
}

impl CustomOp for Average {
    fn name(&self) -> &'static str {
        "novograd_average"
    }

    fn check(&self) -> Result<()> {
        [self.grad, self.square, self.average].iter().try_for_each(|tensor| kernels::check_f32(self.name(), tensor))
    }

    fn accesses(&self) -> Accesses {
        let updated = [self.grad, self.average];
        Accesses::new([self.grad, self.average, self.square, self.status], updated)
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        let (status, square) = (status_of(tensors, &self.status)?, tensors.read::<f32>(&self.square)?[0]);
        let factor = status.grad_factor / (square.sqrt() + 1e-8);
        let (grad, average) = (tensors.write::<f32>(&self.grad)?, tensors.write::<f32>(&self.average)?);
        for (grad, average) in grad.iter_mut().zip(average).filter(|_| status.applies != 0) {
            *average = self.beta1 * *average + *grad * factor;
            *grad = *average;
        }
        Ok(())
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        let count = self.grad.elements();
        let tensors = [self.grad, self.square, self.average, self.status].map(Into::into);
        let arguments = tensors.into_iter().chain([self.beta1.into(), (count as u64).into()]).collect();
        Some(kernels::launch(self.name(), count, arguments))
    }
}
