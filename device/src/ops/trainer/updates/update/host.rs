//! The update of weights: the arithmetic of each rule.

use crate::host::parts::{for_each_part, publish};
use crate::host::{HostKernel, Pool, view, with_float};
use crate::ops::{Control, Rule, Status, Update, UpdateTensors, join_master, split_master};
use crate::{Float, Tensor, bf16};

impl HostKernel for Update {
    fn run(&self, pool: &Pool) {
        let status: Status = view::read_block(&self.status);
        if status.applies == 0 {
            return;
        }
        let control: Control = view::read_block(&self.control);
        for_each_part(self.tensors.iter().map(|each| each.master.elements()), pool, |tensor, start, length| {
            let each = &self.tensors[tensor];
            let rate = control.learning_rate * each.lr_multiplier;
            let part = Part { each, start, length, rate, status: &status };
            match each.compute.filter(|_| each.has_remainders()) {
                None => {
                    let master = view::write::<f32>(&part.of(&each.master));
                    part.step(self.rule, master);
                    publish(each.compute, start, master);
                }
                Some(compute) => {
                    let weights = view::write::<bf16>(&part.of(&compute));
                    let remainders = view::write::<u16>(&part.of(&each.master));
                    let halves = weights.iter().zip(remainders.iter());
                    let mut master: Vec<f32> = halves.map(|(weight, rest)| join_master(*weight, *rest)).collect();
                    part.step(self.rule, &mut master);
                    for ((weight, rest), master) in weights.iter_mut().zip(remainders).zip(master) {
                        (*weight, *rest) = split_master(master);
                    }
                }
            }
        });
    }
}

/// A part of a parameter, and the numbers of a step.
struct Part<'o> {
    each: &'o UpdateTensors,
    start: usize,
    length: usize,
    /// The parameter's learning rate.
    rate: f32,
    status: &'o Status,
}

impl<'o> Part<'o> {
    fn of(&self, tensor: &Tensor) -> Tensor {
        tensor.view(self.start, [self.length])
    }

    /// Updates the part's master weights, and its state.
    fn step(&self, rule: Rule, master: &mut [f32]) {
        let gradients = view::to_f32(&self.of(&self.each.grad));
        let weights = master.iter_mut().zip(gradients.iter());
        let state = &self.each.state;
        match rule {
            Rule::AdamW { beta1, beta2, eps } => with_float!(state[0].dtype, M => {
                with_float!(state[1].dtype, V => adamw::<M, V>(self, weights, beta1, beta2, eps))
            }),
            Rule::Lion { beta1, beta2 } => with_float!(state[0].dtype, M => lion::<M>(self, weights, beta1, beta2)),
            Rule::Sgd { momentum } => sgd(self, weights, momentum),
        }
    }

    /// The tensor of the rule's state with that index.
    fn state<T: Float>(&self, index: usize) -> &'o mut [T] {
        view::write::<T>(&self.of(&self.each.state[index]))
    }
}

/// Master weights, each with its gradient before it is scaled.
type Weights<'w> = std::iter::Zip<std::slice::IterMut<'w, f32>, std::slice::Iter<'w, f32>>;

/// AdamW with moments of the types `M` and `V`. They are rounded after the weights were updated.
fn adamw<M: Float, V: Float>(part: &Part<'_>, weights: Weights<'_>, beta1: f32, beta2: f32, eps: f32) {
    let correction = |beta: f32| 1.0 - f64::from(beta).powf(f64::from(part.status.applied));
    let step_size = (f64::from(part.rate) / correction(beta1)) as f32;
    let root_correction = (1.0 / correction(beta2).sqrt()) as f32;
    let (factor, decay) = (part.status.grad_factor, 1.0 - part.rate * part.each.weight_decay);
    for (((w, g), first), second) in weights.zip(part.state::<M>(0)).zip(part.state::<V>(1)) {
        let (g, mut m, mut v) = (g * factor, first.to_f32(), second.to_f32());
        m += (1.0 - beta1) * (g - m);
        v = beta2 * v + (1.0 - beta2) * g * g;
        *w = *w * decay - step_size * m / (v.sqrt() * root_correction + eps);
        (*first, *second) = (M::from_f32(m), V::from_f32(v));
    }
}

/// With a moment of this type.
fn lion<M: Float>(part: &Part<'_>, weights: Weights<'_>, beta1: f32, beta2: f32) {
    let (rate, factor) = (part.rate, part.status.grad_factor);
    let decay = 1.0 - rate * part.each.weight_decay;
    for ((w, g), moment) in weights.zip(part.state::<M>(0)) {
        let (g, m) = (g * factor, moment.to_f32());
        let direction = beta1 * m + (1.0 - beta1) * g;
        // f32::signum is 1 for 0.
        let sign = f32::from(i8::from(direction > 0.0) - i8::from(direction < 0.0));
        *w = *w * decay - rate * sign;
        *moment = M::from_f32(beta2 * m + (1.0 - beta2) * g);
    }
}

/// Without momentum there is no state.
fn sgd(part: &Part<'_>, weights: Weights<'_>, momentum: f32) {
    let (rate, factor, decay) = (part.rate, part.status.grad_factor, part.each.weight_decay);
    let gradient = |g: f32, w: f32| g * factor + decay * w;
    if part.each.state.is_empty() {
        return weights.for_each(|(w, g)| *w -= rate * gradient(*g, *w));
    }
    for ((w, g), b) in weights.zip(part.state::<f32>(0)) {
        *b = momentum * *b + gradient(*g, *w);
        *w -= rate * *b;
    }
}
