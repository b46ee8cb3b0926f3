//! Stochastic gradient descent.

use std::sync::Arc;

use device::ops::{self, SgdTensors};

use super::group::{ParamUpdate, StepControl, Update, UpdateRanks, UpdateRule};

/// SGD, as `torch.optim.SGD` computes it. Weight decay is added to the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Momentum; 0 for none, and then it keeps no state.
    pub momentum: f32,
}

impl UpdateRule for Sgd {
    fn state(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum"] }
    }

    fn update(&self, params: Vec<ParamUpdate>, control: StepControl, _: &UpdateRanks) -> Box<Update> {
        let tensors = |param: &ParamUpdate| SgdTensors {
            master: param.master,
            compute: param.weight,
            grad: param.grad,
            momentum: param.state.first().copied(),
            weight_decay: param.weight_decay,
            lr_multiplier: param.lr_multiplier,
        };
        let tensors: Arc<[SgdTensors]> = params.iter().map(tensors).collect();
        let Sgd { momentum } = *self;
        let StepControl { control, status } = control;
        Box::new(move |cx| cx.run(ops::Sgd { tensors: tensors.clone(), momentum, control, status }))
    }
}
