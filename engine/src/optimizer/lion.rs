//! Lion: updates by the sign of a moment.

use std::sync::Arc;

use device::ops::{self, LionTensors};

use super::group::{ParamUpdate, StepControl, Update, UpdateRanks, UpdateRule};

/// Lion (Chen et al., 2023). Every weight moves by the learning rate, up or down, so the rate is 3 to 10 times smaller than
/// AdamW's, and the weight decay as much larger. It keeps one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lion {
    /// The moment's share in the direction of an update.
    pub beta1: f32,
    /// Decay of the moment.
    pub beta2: f32,
}

impl UpdateRule for Lion {
    fn state(&self) -> &'static [&'static str] {
        &["exp_avg"]
    }

    fn update(&self, params: Vec<ParamUpdate>, control: StepControl, _: &UpdateRanks) -> Box<Update> {
        let tensors = |param: &ParamUpdate| LionTensors {
            master: param.master,
            compute: param.weight,
            grad: param.grad,
            exp_avg: param.state[0],
            weight_decay: param.weight_decay,
            lr_multiplier: param.lr_multiplier,
        };
        let tensors: Arc<[LionTensors]> = params.iter().map(tensors).collect();
        let Lion { beta1, beta2 } = *self;
        let StepControl { control, status } = control;
        Box::new(move |cx| cx.run(ops::Lion { tensors: tensors.clone(), beta1, beta2, control, status }))
    }
}
