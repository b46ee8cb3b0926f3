//! AdamW (Loshchilov and Hutter, 2019).

use std::sync::Arc;

use device::ops::{self, AdamWTensors};

use super::group::{ParamUpdate, StepControl, Update, UpdateRanks, UpdateRule};

/// AdamW, as `torch.optim.AdamW` computes it. Weight decay is decoupled from the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
}

impl UpdateRule for AdamW {
    fn state(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn update(&self, params: Vec<ParamUpdate>, control: StepControl, _: &UpdateRanks) -> Box<Update> {
        let tensors = |param: &ParamUpdate| AdamWTensors {
            master: param.master,
            compute: param.weight,
            grad: param.grad,
            exp_avg: param.state[0],
            exp_avg_sq: param.state[1],
            weight_decay: param.weight_decay,
            lr_multiplier: param.lr_multiplier,
        };
        let tensors: Arc<[AdamWTensors]> = params.iter().map(tensors).collect();
        let AdamW { beta1, beta2, eps } = *self;
        let StepControl { control, status } = control;
        Box::new(move |cx| cx.run(ops::AdamW { tensors: tensors.clone(), beta1, beta2, eps, control, status }))
    }
}
