//! Trials of the operations that update the weights.

use super::case::Trials;
use super::sizes::{CONTROL, Sizes};
use super::workbench::Workbench;
use crate::ops::{
    ClipScale, Control, Copy, Corner, DecayedStep, DecayedTensors, MatrixPolynomial, MomentumTensors, NesterovMomentum,
    Rule, RuleState, SampleRecord, ScaleBlock, SkipStep, SquareSum, StateValues, Status, SumInto, Update,
    UpdateTensors, VoidStep, WriteControl, WriteSampleRecord,
};
use crate::{DType, Result, Shape, Tensor};

/// The rules, each with the name of its trial.
const RULES: [(&str, Rule); 4] = [
    ("adamw", Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }),
    ("lion", Rule::Lion { beta1: 0.9, beta2: 0.99 }),
    ("sgd", Rule::Sgd { momentum: 0.0 }),
    ("sgd with momentum", Rule::Sgd { momentum: 0.9 }),
];

pub(super) fn trials(s: Sizes, dtype: DType, to: &mut Trials) {
    let shapes = [vec![s.ffn, s.hidden()], vec![s.ffn], vec![7, 3]];
    let compute = dtype == DType::Bf16;
    if !compute {
        to.add("sum_into", move |b| {
            let input = b.input([s.rows(), s.ffn], DType::F32)?;
            Ok(SumInto { input, total: b.input([1], DType::F32)?, accumulate: true })
        });
        to.add("sum_into, overwriting", move |b| {
            let input = b.input([s.rows(), s.ffn], DType::F32)?;
            Ok(SumInto { input, total: b.output([1], DType::F32)?, accumulate: false })
        });
        let shapes = shapes.clone();
        to.add("square_sum", move |b| {
            let inputs = shapes.iter().map(|shape| b.input(Shape::new(shape), DType::F32));
            let mut inputs = inputs.collect::<Result<Vec<Tensor>>>()?;
            inputs.push(b.input([300, 77], DType::Bf16)?);
            Ok(SquareSum { inputs: inputs.into(), total: b.output([1], DType::F32)? })
        });
        for square in [25.0f32, f32::INFINITY] {
            to.add(if square.is_finite() { "clip_scale" } else { "clip_scale, not finite" }, move |b| {
                let square_sum = b.output([1], DType::F32)?;
                b.device.upload(&square_sum, &[square])?;
                let status = b.block(&Status { applied: 4, ..Status::default() })?;
                Ok(ClipScale { square_sum, control: b.block(&CONTROL)?, status })
            });
        }
        to.add("skip_step", move |b| {
            let (loss_sum, history) = (b.output([1], DType::F32)?, b.input([2, 16], DType::F32)?);
            b.device.upload(&loss_sum, &[1e3f32])?;
            let status = b.block(&Status {
                applied: 20,
                recorded: 19,
                finite: 1,
                applies: 1,
                grad_norm: 2.0,
                ..Status::default()
            })?;
            Ok(SkipStep { loss_sum, history, sigma_factor: 6.0, control: b.block(&CONTROL)?, status })
        });
        for beyond in [0.0f32, 3.0] {
            to.add(if beyond > 0.0 { "void_step" } else { "void_step, none" }, move |b| {
                let rows = b.output([1], DType::F32)?;
                b.device.upload(&rows, &[beyond])?;
                let status = Status { applied: 5, finite: 1, applies: 1, grad_factor: 0.5, ..Status::default() };
                Ok(VoidStep { beyond: rows, status: b.block(&status)? })
            });
        }
        to.add("write_control", |b| Ok(WriteControl { control: b.block(&Control::default())?, value: CONTROL }));
        to.add("write_sample_record", |b| {
            let record = b.block(&SampleRecord::default())?;
            Ok(WriteSampleRecord { control: b.block(&CONTROL)?, offset: 5, record })
        });
    }
    blocks(dtype, to);
    let status = Status { applied: 3, finite: 1, applies: 1, grad_norm: 2.0, grad_factor: 0.5, ..Status::default() };
    optimizers(&shapes, dtype, status, to);
    let none = Status { applies: 0, ..status };
    to.labelled(", no update", |to| optimizers(&shapes, dtype, none, to));
}

/// Muon's operations on matrices.
fn blocks(dtype: DType, to: &mut Trials) {
    to.add("scale_block, into a part", move |b| {
        let (from, matrix) = (Corner::first(b.input([32, 64], dtype)?), b.input([40, 70], DType::F32)?);
        let to = Corner { matrix, row: 5, column: 2 };
        Ok(ScaleBlock { from, to, rows: 32, columns: 64, factor: 1.5, square_sum: None })
    });
    to.add("scale_block", move |b| {
        let from = Corner { matrix: b.input([33, 70], DType::F32)?, row: 1, column: 3 };
        let to = Corner::first(b.output([32, 64], dtype)?);
        let square_sum = b.output([1], DType::F32)?;
        b.device.upload(&square_sum, &[6.25f32])?;
        Ok(ScaleBlock { from, to, rows: 32, columns: 64, factor: 1.5, square_sum: Some(square_sum) })
    });
    to.add("matrix_polynomial", move |b| {
        let (x, square) = (b.input([64, 64], dtype)?, b.input([64, 64], dtype)?);
        let output = b.output([64, 64], dtype)?;
        Ok(MatrixPolynomial { x, square, coefficients: [3.4, -4.8, 2.0], output })
    });
}

/// Updates of all optimizers. Nothing is written if the status says so.
fn optimizers(shapes: &[Vec<usize>], dtype: DType, status: Status, to: &mut Trials) {
    for (name, rule) in RULES {
        updates((name, rule), shapes, dtype, status, to);
    }
    muon(dtype, status, to);
}

/// The weights that layers compute with.
fn weights(b: &mut Workbench, shape: Shape, dtype: DType, status: Status) -> Result<Option<Tensor>> {
    match (dtype == DType::Bf16, status.applies) {
        (false, _) => Ok(None),
        (true, 0) => b.output_in_part(shape, dtype).map(Some),
        (true, _) => b.output(shape, dtype).map(Some),
    }
}

/// Updates by a rule. If weights are in bf16, its moments are tried in bf16 too, and masters in two halves.
fn updates((name, rule): (&str, Rule), shapes: &[Vec<usize>], dtype: DType, status: Status, to: &mut Trials) {
    let has_moments = rule.state().iter().any(|state| state.values != StateValues::Others);
    let forms = [
        ([DType::F32; 3], ""),
        ([DType::F32, DType::F32, DType::Bf16], ", moments in bf16"),
        ([DType::U16, DType::Bf16, DType::F32], ", remainders of masters, gradients in bf16"),
    ];
    let is_tried = |([_, _, moments], _): &([DType; 3], &str)| has_moments || *moments == DType::F32;
    let tried = forms.into_iter().take(if dtype == DType::Bf16 { 3 } else { 1 }).filter(is_tried);
    for ([masters, gradients, moments], label) in tried {
        let all = shapes.to_vec();
        to.add(&format!("{name}{label}"), move |b| {
            let mut tensors = Vec::new();
            for (i, shape) in all.iter().enumerate() {
                let shape = Shape::new(shape);
                let (master, grad) = (b.input(shape, masters)?, b.input(shape, gradients)?);
                let kept: Result<Vec<Tensor>> =
                    rule.state().iter().map(|state| kept(b, state, shape, moments)).collect();
                tensors.push(UpdateTensors {
                    master,
                    compute: match masters {
                        DType::U16 => Some(b.input(shape, dtype)?),
                        _ => weights(b, shape, dtype, status)?,
                    },
                    grad,
                    state: kept?.into(),
                    weight_decay: if i == 0 { 0.1 } else { 0.0 },
                    lr_multiplier: 0.5,
                });
            }
            let (control, status) = (b.block(&CONTROL)?, b.block(&status)?);
            Ok(Update { rule, tensors: tensors.into(), control, status })
        });
    }
}

/// A tensor of a rule's state, with moments in that type.
fn kept(b: &mut Workbench, state: &RuleState, shape: Shape, moments: DType) -> Result<Tensor> {
    match state.values {
        StateValues::FirstMoment => b.input(shape, moments),
        StateValues::SecondMoment => {
            let (squares, rounded) = (b.between(shape, 0.0, 1.0)?, b.output(shape, moments)?);
            b.run(Copy { input: squares, output: rounded })?;
            Ok(rounded)
        }
        StateValues::Others => b.input(shape, DType::F32),
    }
}

fn muon(dtype: DType, status: Status, to: &mut Trials) {
    to.add("nesterov_momentum", move |b| {
        let tensors = [MomentumTensors { grad: b.input([300], DType::F32)?, momentum: b.input([300], DType::F32)? }];
        Ok(NesterovMomentum { tensors: tensors.into(), beta: 0.95, status: b.block(&status)? })
    });
    to.add("decayed_step", move |b| {
        let tensors = [DecayedTensors {
            master: b.input([300], DType::F32)?,
            compute: weights(b, [300].into(), dtype, status)?,
            direction: b.input([300], DType::F32)?,
            weight_decay: 0.1,
            lr_multiplier: 0.5,
        }];
        let (control, status) = (b.block(&CONTROL)?, b.block(&status)?);
        Ok(DecayedStep { tensors: tensors.into(), control, status })
    });
}
