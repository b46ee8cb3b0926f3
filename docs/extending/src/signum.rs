//! Signum (Bernstein et al., 2018): every weight moves by the learning rate, against the sign of an average of its gradients.

use std::sync::Arc;

use common::UserError;
use device::cuda::{CudaWork, GpuProperties};
use device::ops::{
    Accesses, CustomOp, DecayedStep, DecayedTensors, MomentumTensors, NesterovMomentum, RuleState, StateValues,
};
use device::{HostTensors, Result, Tensor};
use engine::optimizer::{ParamUpdate, StepControl, Update, UpdateRule};
use engine::params::Params;
use trainer::config::RunConfig;

use crate::kernels;

/// The rule of a run.
pub fn rule(config: &RunConfig) -> std::result::Result<Arc<dyn UpdateRule>, UserError> {
    let momentum = config.own.float("signum_momentum").unwrap_or_default();
    if !(0.0..1.0).contains(&momentum) {
        let what = format!("own.signum_momentum = {momentum}");
        return Err(UserError::new(what, "a decay is in [0, 1)", "leave it out: it is 0.9"));
    }
    Ok(Arc::new(Signum { momentum: momentum as f32 }))
}

#[derive(Debug)]
struct Signum {
    momentum: f32,
}

impl UpdateRule for Signum {
    fn state(&self) -> &'static [RuleState] {
        &[RuleState { name: "momentum_buffer", values: StateValues::Others }]
    }

    // The direction takes the place of the gradient.
    fn overwrites_gradients(&self) -> bool {
        true
    }

    fn update(
        &self,
        updates: Vec<ParamUpdate>,
        StepControl { control, status }: StepControl,
        _: &Params,
    ) -> Box<Update> {
        let averages = updates.iter().map(|of| MomentumTensors { grad: of.grad, momentum: of.state[0] });
        let average = NesterovMomentum { tensors: averages.collect(), beta: self.momentum, status };
        let steps = updates.iter().map(|of| DecayedTensors {
            master: of.master,
            compute: of.weight,
            direction: of.grad,
            weight_decay: of.weight_decay,
            lr_multiplier: of.lr_multiplier,
        });
        let step = DecayedStep { tensors: steps.collect(), control, status };
        Box::new(move |cx| {
            cx.run(average.clone())?;
            updates.iter().try_for_each(|of| cx.run(Sign { values: of.grad }))?;
            cx.run(step.clone())
        })
    }
}

/// `values = sign(values)`, and 0 stays 0.
#[derive(Debug)]
struct Sign {
    /// Any shape, f32, updated.
    values: Tensor,
}

impl CustomOp for Sign {
    fn name(&self) -> &'static str {
        "sign"
    }

    fn check(&self) -> Result<()> {
        kernels::check_f32("sign", &self.values)
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.values], [self.values])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        let values = tensors.write::<f32>(&self.values)?;
        let sign = |value: &mut f32| *value = if *value == 0.0 { 0.0 } else { value.signum() };
        tensors.pool().for_each_chunk(values, kernels::CHUNK, |_, values| values.iter_mut().for_each(sign));
        Ok(())
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        let count = self.values.elements();
        Some(kernels::launch("sign", count, vec![self.values.into(), (count as u64).into()]))
    }
}
