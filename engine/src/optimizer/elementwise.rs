//! The rules of the device, which update each element by itself: one operation for all parameters, or of state on the host
//! one for each part.

use device::Home;
use device::ops::{self, Rule, RuleState, UpdateTensors};

use super::group::{ParamUpdate, StepControl, Update, UpdateRule};
use crate::params::{ALIGNMENT, Params};

impl UpdateRule for Rule {
    fn state(&self) -> &'static [RuleState] {
        Rule::state(self)
    }

    fn updates_in_parts(&self) -> bool {
        true
    }

    fn update(&self, updates: Vec<ParamUpdate>, control: StepControl, params: &Params) -> Box<Update> {
        let tensors = updates.into_iter().map(|param| UpdateTensors {
            master: param.master,
            compute: param.weight,
            grad: param.grad,
            state: param.state.into(),
            weight_decay: param.weight_decay,
            lr_multiplier: param.lr_multiplier,
        });
        let StepControl { control, status } = control;
        let parts = match params.state_home() {
            Home::Device => vec![tensors.collect()],
            Home::Host => parts(tensors.collect()),
        };
        let op = |tensors: Vec<UpdateTensors>| ops::Update { rule: *self, tensors: tensors.into(), control, status };
        let all: Vec<ops::Update> = parts.into_iter().map(op).collect();
        Box::new(move |cx| all.iter().try_for_each(|op| cx.run(op.clone())))
    }
}

/// The most elements of a part, and the fewest parts of an update: the next part comes in while one is updated.
const MOST: usize = 32 << 20;
const FEWEST: usize = 8;

/// Cuts an update in parts with about as many elements each.
fn parts(all: Vec<UpdateTensors>) -> Vec<Vec<UpdateTensors>> {
    let elements: usize = all.iter().map(|each| each.master.elements()).sum();
    let size = elements.div_ceil(FEWEST).next_multiple_of(ALIGNMENT).min(MOST);
    let (mut parts, mut room) = (Vec::new(), 0);
    for each in all {
        let mut first = 0;
        while let left = each.master.elements() - first
            && left > 0
        {
            // A cut lies where a vector of elements may begin.
            let count = if left <= room { left } else { room / ALIGNMENT * ALIGNMENT };
            if count == 0 {
                parts.push(Vec::new());
                room = size;
                continue;
            }
            parts.last_mut().into_iter().for_each(|part: &mut Vec<_>| part.push(cut(&each, first, count)));
            (first, room) = (first + count, room - count);
        }
    }
    parts
}

/// `count` elements of a parameter's update, from `first` on.
fn cut(each: &UpdateTensors, first: usize, count: usize) -> UpdateTensors {
    let of = |tensor: &device::Tensor| tensor.view(first, [count]);
    UpdateTensors {
        master: of(&each.master),
        compute: each.compute.as_ref().map(of),
        grad: of(&each.grad),
        state: each.state.iter().map(of).collect(),
        ..*each
    }
}
