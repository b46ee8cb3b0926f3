//! The rules of the device, which update each element separately: one operation for all parameters, or of state on the
//! host one for each part.

use device::ops::{self, Rule, RuleState, UpdateTensors};

use super::group::{MeanOfGradients, ParamUpdate, StepControl, Update, UpdateRule};
use super::parts::parts;
use crate::params::Params;

impl UpdateRule for Rule {
    fn state(&self) -> &'static [RuleState] {
        Rule::state(self)
    }

    fn mean_of_gradients(&self) -> Option<MeanOfGradients> {
        match *self {
            Rule::AdamW { beta1: decay, .. } | Rule::Lion { beta2: decay, .. } => {
                Some(MeanOfGradients { state: "exp_avg", decay })
            }
            Rule::Sgd { .. } => None,
        }
    }

    fn takes_16_bits(&self) -> bool {
        true
    }

    fn update(&self, updates: Vec<ParamUpdate>, control: StepControl, _: &Params) -> Box<Update> {
        let StepControl { control, status } = control;
        let tensors = |param: ParamUpdate| UpdateTensors {
            master: param.master,
            compute: param.weight,
            grad: param.grad,
            state: param.state.into(),
            weight_decay: param.weight_decay,
            lr_multiplier: param.lr_multiplier,
        };
        let op = |part: Vec<ParamUpdate>| {
            let tensors = part.into_iter().map(tensors).collect();
            ops::Update { rule: *self, tensors, control, status }
        };
        let all: Vec<ops::Update> = parts(updates.iter()).into_iter().map(op).collect();
        Box::new(move |cx| all.iter().try_for_each(|op| cx.run(op.clone())))
    }
}
