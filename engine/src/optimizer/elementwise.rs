//! The rules of the device, which update each element by itself: one operation for all parameters.

use device::ops::{self, Rule, RuleState, UpdateTensors};

use super::group::{ParamUpdate, StepControl, Update, UpdateRule};
use crate::params::Params;

impl UpdateRule for Rule {
    fn state(&self) -> &'static [RuleState] {
        Rule::state(self)
    }

    fn update(&self, params: Vec<ParamUpdate>, control: StepControl, _: &Params) -> Box<Update> {
        let tensors = params.into_iter().map(|param| UpdateTensors {
            master: param.master,
            compute: param.weight,
            grad: param.grad,
            state: param.state.into(),
            weight_decay: param.weight_decay,
            lr_multiplier: param.lr_multiplier,
        });
        let StepControl { control, status } = control;
        let op = ops::Update { rule: *self, tensors: tensors.collect(), control, status };
        Box::new(move |cx| cx.run(op.clone()))
    }
}
