//! Clipping and the updates of AdamW, Lion and SGD against naive f64 references.

use crate::common::{Bench, assert_close, bench, numbers, rounded};
use device::DType::{Bf16, F32};
use device::ops::*;
use device::{DType, Op, Tensor, bf16};

/// A device, its control block and status, for several steps of an optimizer.
struct Steps {
    t: Bench,
    control: Tensor,
    status: Tensor,
    square_sum: Tensor,
}

const SIZE: usize = 300;
const CLIP: f64 = 4.0;
/// The learning rate of all parameters, and its factor for those of the tests.
const RATE: f64 = 0.01;
const MULTIPLIER: f64 = 0.5;

impl Steps {
    fn new() -> Steps {
        let t = bench(2);
        let control = t.block(&Control::default());
        let status = t.block(&Status::default());
        let square_sum = t.empty(&[1], F32);
        Steps { t, control, status, square_sum }
    }

    /// Clips a gradient into `grad` on the device. Returns the reference's factor, `None` for a gradient that is not
    /// finite.
    fn clip(&self, step: u32, grad: &Tensor, values: &[f64]) -> Option<f64> {
        self.t.device.upload(grad, &values.iter().map(|x| *x as f32).collect::<Vec<_>>()).unwrap();
        let value = Control {
            step,
            learning_rate: RATE as f32,
            clip: CLIP as f32,
            inverse_loss_scale: 0.5,
            ..Control::default()
        };
        self.t.run(WriteControl { control: self.control, value });
        self.t.run(SquareSum { inputs: [*grad].into(), total: self.square_sum });
        self.t.run(ClipScale { square_sum: self.square_sum, control: self.control, status: self.status });
        let norm = values.iter().map(|x| x * x).sum::<f64>().sqrt() * 0.5;
        let status: Status = self.t.get_block(&self.status);
        assert_eq!(status.finite == 1, norm.is_finite());
        if !norm.is_finite() {
            return None;
        }
        assert!((f64::from(status.grad_norm) / norm - 1.0).abs() < 1e-6, "norm {} not {norm}", status.grad_norm);
        Some((CLIP / (norm + 1e-6)).min(1.0) * 0.5)
    }

    fn update(&self, rule: Rule, tensors: &UpdateTensors) {
        self.t.run(Update { rule, tensors: [tensors.clone()].into(), control: self.control, status: self.status });
    }
}

/// Gradients of five steps: one large, one small, one that is not finite, and two more.
fn gradients() -> Vec<Vec<f64>> {
    let mut all: Vec<Vec<f64>> = (0..5).map(|step| numbers(10 + step, SIZE, F32)).collect();
    all[1].iter_mut().for_each(|x| *x *= 0.01);
    all[2][17] = f64::NAN;
    all
}

#[test]
fn adamw_agrees_with_f64_over_steps_of_which_one_is_skipped() {
    let u = Steps::new();
    let (mut w, mut m, mut v) = (numbers(1, SIZE, F32), vec![0.0; SIZE], vec![0.0; SIZE]);
    let zeros = || u.t.put(&[SIZE], F32, &vec![0.0; SIZE]);
    let (master, compute) = (u.t.put(&[SIZE], F32, &w), u.t.put(&[SIZE], Bf16, &w));
    let (grad, exp_avg, exp_avg_sq) = (zeros(), zeros(), zeros());
    let (beta1, beta2, eps, decay) = (0.9, 0.95, 1e-8, 0.1);
    let tensors = UpdateTensors {
        master,
        compute: Some(compute),
        grad,
        state: [exp_avg, exp_avg_sq].into(),
        weight_decay: 0.1,
        lr_multiplier: MULTIPLIER as f32,
    };
    let mut applied = 0;
    for (step, values) in gradients().iter().enumerate() {
        let factor = u.clip(step as u32, &grad, values);
        u.update(Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, &tensors);
        if let Some(factor) = factor {
            applied += 1;
            for i in 0..SIZE {
                let g = values[i] * factor;
                m[i] = beta1 * m[i] + (1.0 - beta1) * g;
                v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
                let (mean, square) = (m[i] / (1.0 - beta1.powi(applied)), v[i] / (1.0 - beta2.powi(applied)));
                w[i] -= RATE * MULTIPLIER * (decay * w[i] + mean / (square.sqrt() + eps));
            }
        }
        assert_close("weights", F32, &u.t.get(&master), &w);
        assert_close("second moment", F32, &u.t.get(&exp_avg_sq), &v);
    }
    let status: Status = u.t.get_block(&u.status);
    assert_eq!((status.applied, status.skipped), (4, 1));
    let rounded: Vec<f64> = u.t.get(&master).into_iter().map(|x| rounded(x, Bf16)).collect();
    assert_eq!(u.t.get(&compute), rounded, "what layers compute with is the master, rounded");
}

#[test]
fn lion_agrees_with_f64_and_a_weight_without_direction_only_decays() {
    let u = Steps::new();
    let (mut w, mut m) = (numbers(1, SIZE, F32), vec![0.0; SIZE]);
    let zeros = || u.t.put(&[SIZE], F32, &vec![0.0; SIZE]);
    let (master, grad, exp_avg) = (u.t.put(&[SIZE], F32, &w), zeros(), zeros());
    let compute = u.t.empty(&[SIZE], Bf16);
    let tensors = UpdateTensors {
        master,
        compute: Some(compute),
        grad,
        state: [exp_avg].into(),
        weight_decay: 0.1,
        lr_multiplier: MULTIPLIER as f32,
    };
    for (step, mut values) in gradients().into_iter().enumerate() {
        values[0] = if values[0].is_finite() { 0.0 } else { values[0] };
        let factor = u.clip(step as u32, &grad, &values);
        u.update(Rule::Lion { beta1: 0.9, beta2: 0.99 }, &tensors);
        if let Some(factor) = factor {
            for i in 0..SIZE {
                let g = values[i] * factor;
                let direction: f64 = 0.9 * m[i] + 0.1 * g;
                let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
                w[i] -= RATE * MULTIPLIER * (sign + 0.1 * w[i]);
                m[i] = 0.99 * m[i] + 0.01 * g;
            }
        }
        assert_close("weights", F32, &u.t.get(&master), &w);
        assert_close("moment", F32, &u.t.get(&exp_avg), &m);
    }
    let rounded: Vec<f64> = u.t.get(&master).into_iter().map(|x| rounded(x, Bf16)).collect();
    assert_eq!(u.t.get(&compute), rounded, "what layers compute with is the master, rounded");
}

#[test]
fn moments_in_bf16_update_weights_as_the_same_values_in_f32_and_are_then_rounded() {
    let u = Steps::new();
    let (weights, of) = (numbers(1, SIZE, F32), |seed| numbers(seed, SIZE, Bf16));
    let squares: Vec<f64> = of(4).iter().map(|x| rounded(x * x, Bf16)).collect();
    let grad = u.t.put(&[SIZE], F32, &vec![0.0; SIZE]);
    u.clip(0, &grad, &numbers(2, SIZE, F32));
    // Master weights and moments after a step by the rule, from moments of these values and types.
    let updated = |rule, moments: &[(&[f64], DType)]| {
        let master = u.t.put(&[SIZE], F32, &weights);
        let moments: Vec<Tensor> = moments.iter().map(|(values, dtype)| u.t.put(&[SIZE], *dtype, values)).collect();
        let state = moments.clone().into();
        u.update(rule, &UpdateTensors { master, compute: None, grad, state, weight_decay: 0.1, lr_multiplier: 1.0 });
        [master].iter().chain(&moments).map(|tensor| u.t.get(tensor)).collect::<Vec<_>>()
    };
    let adamw = |first, second| {
        updated(Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, &[(&of(3), first), (&squares, second)])
    };
    let lion = |first| updated(Rule::Lion { beta1: 0.9, beta2: 0.99 }, &[(&of(3), first)]);
    let as_type = |values: &[f64], dtype| values.iter().map(|x| rounded(*x, dtype)).collect::<Vec<f64>>();
    let exact = adamw(F32, F32);
    for (first, second) in [(Bf16, Bf16), (Bf16, F32), (F32, Bf16)] {
        let expected = [exact[0].clone(), as_type(&exact[1], first), as_type(&exact[2], second)];
        assert_eq!(adamw(first, second), expected, "{first} {second}");
    }
    let exact = lion(F32);
    assert_eq!(lion(Bf16), [exact[0].clone(), as_type(&exact[1], Bf16)]);
}

#[test]
fn sgd_agrees_with_f64_with_and_without_momentum() {
    for momentum in [0.0, 0.9] {
        let u = Steps::new();
        let (mut w, mut buffer) = (numbers(1, SIZE, F32), vec![0.0; SIZE]);
        let zeros = || u.t.put(&[SIZE], F32, &vec![0.0; SIZE]);
        let (master, grad, momentum_t) = (u.t.put(&[SIZE], F32, &w), zeros(), zeros());
        let tensors = UpdateTensors {
            master,
            compute: None,
            grad,
            state: if momentum == 0.0 { [].into() } else { [momentum_t].into() },
            weight_decay: 0.1,
            lr_multiplier: MULTIPLIER as f32,
        };
        for (step, values) in gradients().iter().enumerate() {
            let factor = u.clip(step as u32, &grad, values);
            u.update(Rule::Sgd { momentum: momentum as f32 }, &tensors);
            if let Some(factor) = factor {
                for i in 0..SIZE {
                    buffer[i] = momentum * buffer[i] + values[i] * factor + 0.1 * w[i];
                    w[i] -= RATE * MULTIPLIER * buffer[i];
                }
            }
            assert_close("weights", F32, &u.t.get(&master), &w);
        }
    }
}

#[test]
fn the_rule_decides_the_number_and_the_types_of_the_state() {
    let u = Steps::new();
    let [master, grad, f32s] = [(); 3].map(|()| u.t.put(&[SIZE], F32, &vec![0.0; SIZE]));
    let bf16s = u.t.put(&[SIZE], Bf16, &vec![0.0; SIZE]);
    let short = u.t.put(&[SIZE - 1], F32, &vec![0.0; SIZE - 1]);
    let problem = |rule, state: &[Tensor]| {
        let state = state.into();
        let tensors = UpdateTensors { master, compute: None, grad, state, weight_decay: 0.0, lr_multiplier: 1.0 };
        let update = Update { rule, tensors: [tensors].into(), control: u.control, status: u.status };
        Op::from(update).check().err().map(|error| error.to_string())
    };
    let adamw = Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
    let (lion, sgd) = (Rule::Lion { beta1: 0.9, beta2: 0.99 }, |momentum| Rule::Sgd { momentum });
    assert_eq!(problem(adamw, &[bf16s, f32s]), None);
    assert_eq!(problem(lion, &[bf16s]), None);
    for (rule, state, expected) in [
        (adamw, vec![f32s], "adamw: a parameter has 1 tensors of state, needs 2"),
        (sgd(0.0), vec![f32s], "sgd: a parameter has 1 tensors of state, needs 0"),
        (sgd(0.9), vec![], "sgd: a parameter has 0 tensors of state, needs 1"),
        (sgd(0.9), vec![bf16s], "sgd: `momentum` is bf16, needs f32"),
        (adamw, vec![f32s, short], "adamw: `exp_avg_sq` of shape (299) has 299 elements, needs 300"),
    ] {
        let text = problem(rule, &state).unwrap_or_default();
        assert!(text.contains(expected), "{text}, not {expected}");
    }
}

#[test]
fn masters_kept_as_remainders_are_updated_as_f32_masters_to_the_bit() {
    for rule in [
        Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 },
        Rule::Lion { beta1: 0.9, beta2: 0.99 },
        Rule::Sgd { momentum: 0.0 },
        Rule::Sgd { momentum: 0.9 },
    ] {
        let u = Steps::new();
        let first: Vec<f32> = numbers(1, SIZE, F32).iter().map(|x| *x as f32).collect();
        let (weights, remainders): (Vec<bf16>, Vec<u16>) = first.iter().map(|x| split_master(*x)).unzip();
        let (weight, rest) = (u.t.empty(&[SIZE], Bf16), u.t.bits(&remainders));
        u.t.device.upload(&weight, &weights).unwrap();
        let master = u.t.empty(&[SIZE], F32);
        u.t.device.upload(&master, &first).unwrap();
        let grad = u.t.put(&[SIZE], F32, &vec![0.0; SIZE]);
        let tensors = |master, compute| {
            let state = rule.state().iter().map(|_| u.t.put(&[SIZE], F32, &vec![0.0; SIZE])).collect();
            UpdateTensors { master, compute, grad, state, weight_decay: 0.1, lr_multiplier: MULTIPLIER as f32 }
        };
        let (whole, halves) = (tensors(master, None), tensors(rest, Some(weight)));
        for (step, values) in gradients().iter().enumerate() {
            u.clip(step as u32, &grad, values);
            u.update(rule, &whole);
            u.update(rule, &halves);
            let master = u.t.device.download::<f32>(&master).unwrap();
            let halves = u.t.device.download::<bf16>(&weight).unwrap().into_iter();
            let halves: Vec<_> = halves.zip(u.t.device.download::<u16>(&rest).unwrap()).collect();
            assert_eq!(master.iter().map(|x| split_master(*x)).collect::<Vec<_>>(), halves, "{rule:?}, step {step}");
        }
        assert_ne!(u.t.device.download::<f32>(&master).unwrap(), first, "{rule:?}");
        let alone = Update { rule, tensors: [tensors(rest, None)].into(), control: u.control, status: u.status };
        assert!(u.t.refusal(alone).contains("remainders of master weights need `compute` in bf16"));
    }
}
