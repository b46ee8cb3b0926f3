//! Trials of every operation, with sizes of models and odd ones.

use device::ops::{
    Activation, ActivationBackward, ActivationKind, AdamW, AdamWTensors, Add, Attention, AttentionBackward, BiasGrad,
    Block, ClipScale, ColumnRange, Control, Copy, CopyColumns, CrossEntropy, DecayedStep, DecayedTensors, Dropout,
    DropoutPart, DropoutSite, Embedding, EmbeddingBackward, Epilogue, Fill, Gemm, HeadNorm, HeadNormBackward, Lion,
    LionTensors, MatrixPolynomial, MomentumTensors, Mse, NesterovMomentum, Norm, NormBackward, NormKind, ReluDropout,
    ReluDropoutBackward, Rotary, SampleRecord, ScaleBlock, Sgd, SgdTensors, SquareSum, Status, SumInto, SwiGlu,
    SwiGluBackward, WriteControl, WriteSampleRecord,
};
use device::{DType, Result, Tensor};

use super::fp8_products::{self, Scales};
use super::workbench::{AddTrial, Make, Workbench};
use super::{fp8, fp8_blocks, generation};
use crate::run::random::uniform;

/// The trial of an operation.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) make: Make,
}

/// Sizes of a trial.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    seq: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    ffn: usize,
    vocab: usize,
    padded_vocab: usize,
}

impl Sizes {
    fn hidden(&self) -> usize {
        self.heads * self.head_dim
    }

    fn rows(&self) -> usize {
        self.batch * self.seq
    }
}

const CONTROL: Control = Control {
    first_sample: 40,
    step: 7,
    microbatches: 2,
    learning_rate: 1e-2,
    clip: 1.0,
    grad_scale: 0.125,
    inverse_loss_scale: 1.0,
};

/// All trials, with `by_block` those of products of factors that have scales by block.
pub(super) fn all(by_block: bool) -> Vec<Case> {
    let usual =
        Sizes { batch: 2, seq: 128, heads: 6, kv_heads: 2, head_dim: 64, ffn: 768, vocab: 1000, padded_vocab: 1024 };
    let odd = Sizes { batch: 3, seq: 37, heads: 3, kv_heads: 1, head_dim: 10, ffn: 53, vocab: 101, padded_vocab: 128 };
    let mut all = Vec::new();
    for (label, sizes) in [("", usual), (", odd sizes", odd)] {
        for dtype in [DType::F32, DType::Bf16] {
            let mut add = |name: &str, make: Make| {
                all.push(Case { name: format!("{name}{label}"), dtype, make });
            };
            products(sizes, dtype, &mut add);
            elementwise(sizes, dtype, &mut add);
            norms(sizes.rows(), sizes.hidden(), dtype, &mut add);
            attention(sizes, dtype, &mut add);
            ends(sizes, dtype, &mut add);
            if label.is_empty() {
                generation::trials(dtype, &mut add);
                // The width of rows decides how kernels divide them among threads.
                for hidden in [768, 1024, 2048] {
                    norms(50, hidden, dtype, &mut |name, make| add(&format!("{name}, hidden {hidden}"), make));
                }
                let wide = Sizes { batch: 1, seq: 16, vocab: 50257, padded_vocab: 50304, ..sizes };
                cross_entropies(wide, dtype, &mut |name, make| add(&format!("{name}, vocab 50257"), make));
            }
            updates(sizes, dtype, &mut add);
        }
    }
    let mut add = |name: &str, make: Make| all.push(Case { name: name.into(), dtype: DType::F8E4M3, make });
    fp8::copies(usual.rows(), usual.ffn, &mut add);
    fp8_blocks::copies(usual.rows(), usual.ffn, &mut add);
    for scales in [Scales::Tensor, Scales::Rows, Scales::Blocks] {
        if scales != Scales::Blocks || by_block {
            fp8_products::trials(scales, usual.rows(), usual.hidden(), usual.ffn, &mut add);
        }
    }
    all
}

fn products(s: Sizes, dtype: DType, add: AddTrial<'_>) {
    let (m, k, n) = (s.rows(), s.hidden(), s.ffn);
    let scale = 1.0 / (k as f32).sqrt();
    add(
        "gemm, linear",
        Box::new(move |b| {
            let (x, w) = (b.input([m, k], dtype)?, b.scaled([n, k], dtype, scale)?);
            Ok(Gemm::linear(x, w, b.output([m, n], dtype)?, Epilogue::None).into())
        }),
    );
    add(
        "gemm, linear + bias",
        Box::new(move |b| {
            let (x, w, bias) = (b.input([m, k], dtype)?, b.scaled([n, k], dtype, scale)?, b.input([n], dtype)?);
            Ok(Gemm::linear(x, w, b.output([m, n], dtype)?, Epilogue::Bias(bias)).into())
        }),
    );
    add(
        "gemm, linear + bias + gelu",
        Box::new(move |b| {
            let (x, w, bias) = (b.input([m, k], dtype)?, b.scaled([n, k], dtype, scale)?, b.input([n], dtype)?);
            let pre = b.output([m, n], dtype)?;
            Ok(Gemm::linear(x, w, b.output([m, n], dtype)?, Epilogue::BiasGelu { bias, pre }).into())
        }),
    );
    add(
        "gemm, dgrad",
        Box::new(move |b| {
            let (dy, w) = (b.input([m, n], dtype)?, b.scaled([n, k], dtype, scale)?);
            Ok(Gemm::dgrad(dy, w, b.output([m, k], dtype)?, Epilogue::None).into())
        }),
    );
    for again in [false, true] {
        add(
            if again { "gemm, dgrad through gelu, gelu again" } else { "gemm, dgrad through gelu" },
            Box::new(move |b| {
                let (dy, w, pre) = (b.input([m, k], dtype)?, b.scaled([k, n], dtype, scale)?, b.input([m, n], dtype)?);
                let activated = if again { Some(b.output([m, n], dtype)?) } else { None };
                let epilogue = Epilogue::GeluBackward { pre, activated };
                Ok(Gemm::dgrad(dy, w, b.output([m, n], dtype)?, epilogue).into())
            }),
        );
    }
    for accumulate in [false, true] {
        let name = if accumulate { "gemm, wgrad accumulated" } else { "gemm, wgrad" };
        add(
            name,
            Box::new(move |b| {
                let (dy, x) = (b.input([m, n], dtype)?, b.input([m, k], dtype)?);
                let grad = if accumulate { b.input([n, k], DType::F32)? } else { b.output([n, k], DType::F32)? };
                Ok(Gemm::wgrad(dy, x, grad, accumulate).into())
            }),
        );
        let name = if accumulate { "bias_grad accumulated" } else { "bias_grad" };
        add(
            name,
            Box::new(move |b| {
                let grad_output = b.input([m, n], dtype)?;
                let grad_bias = if accumulate { b.input([n], DType::F32)? } else { b.output([n], DType::F32)? };
                Ok(BiasGrad { grad_output, grad_bias, accumulate }.into())
            }),
        );
    }
}

fn elementwise(s: Sizes, dtype: DType, add: AddTrial<'_>) {
    let shape = [s.batch, s.seq, s.ffn];
    add(
        "add",
        Box::new(move |b| {
            Ok(Add { a: b.input(shape, dtype)?, b: b.input(shape, dtype)?, output: b.output(shape, dtype)? }.into())
        }),
    );
    for to in [DType::F32, DType::Bf16] {
        add(
            &format!("copy to {to}"),
            Box::new(move |b| Ok(Copy { input: b.input(shape, dtype)?, output: b.output(shape, to)? }.into())),
        );
    }
    add("fill", Box::new(move |b| Ok(Fill { output: b.output(shape, dtype)?, value: 0.3 }.into())));
    for kind in [ActivationKind::Gelu, ActivationKind::Relu] {
        let name = if kind == ActivationKind::Gelu { "gelu" } else { "relu" };
        add(
            name,
            Box::new(move |b| {
                Ok(Activation { kind, input: b.scaled(shape, dtype, 4.0)?, output: b.output(shape, dtype)? }.into())
            }),
        );
        add(
            &format!("{name} backward"),
            Box::new(move |b| {
                let (input, grad_output) = (b.scaled(shape, dtype, 4.0)?, b.input(shape, dtype)?);
                Ok(ActivationBackward { kind, input, grad_output, grad_input: b.output(shape, dtype)? }.into())
            }),
        );
    }
    let wide = [s.batch, s.seq, 2 * s.ffn];
    add(
        "swiglu",
        Box::new(move |b| Ok(SwiGlu { input: b.scaled(wide, dtype, 3.0)?, output: b.output(shape, dtype)? }.into())),
    );
    for again in [false, true] {
        add(
            if again { "swiglu backward, swiglu again" } else { "swiglu backward" },
            Box::new(move |b| {
                let (input, grad_output) = (b.scaled(wide, dtype, 3.0)?, b.input(shape, dtype)?);
                let output = if again { Some(b.output(shape, dtype)?) } else { None };
                Ok(SwiGluBackward { input, grad_output, grad_input: b.output(wide, dtype)?, output }.into())
            }),
        );
    }
    add(
        "dropout",
        Box::new(move |b| {
            let (input, site) = (b.input(shape, dtype)?, site(b)?);
            Ok(Dropout { input, output: b.output(shape, dtype)?, site }.into())
        }),
    );
    add(
        "relu and dropout",
        Box::new(move |b| {
            let (input, site) = (b.input(shape, dtype)?, site(b)?);
            Ok(ReluDropout { input, output: b.output(shape, dtype)?, site }.into())
        }),
    );
    add(
        "relu and dropout backward",
        Box::new(move |b| {
            let (output, grad_output) = (b.input(shape, dtype)?, b.input(shape, dtype)?);
            Ok(ReluDropoutBackward { output, grad_output, grad_input: b.output(shape, dtype)?, scale: 1.25 }.into())
        }),
    );
}

fn site(b: &mut Workbench) -> Result<DropoutSite> {
    let record = b.block(&SampleRecord { first_sample: 41, step: 7, reserved: 0 })?;
    Ok(DropoutSite { rate: 0.1, seed: 99, layer: 3, site: 2, record, part: DropoutPart::default() })
}

fn norms(rows: usize, hidden: usize, dtype: DType, add: AddTrial<'_>) {
    for kind in [NormKind::Layer, NormKind::Rms] {
        let layer = kind == NormKind::Layer;
        let name = if layer { "layer_norm" } else { "rms_norm" };
        for with_residual in [false, true] {
            let suffix = if with_residual { " + residual" } else { "" };
            add(
                &format!("{name}{suffix}"),
                Box::new(move |b| {
                    let shape = [rows, hidden];
                    let input = b.input(shape, dtype)?;
                    let residual = if with_residual { Some(b.input(shape, dtype)?) } else { None };
                    let sum = if with_residual { Some(b.output(shape, dtype)?) } else { None };
                    let weight = b.input([hidden], dtype)?;
                    let bias = if layer { Some(b.input([hidden], dtype)?) } else { None };
                    let mean = if layer { Some(b.output([rows], DType::F32)?) } else { None };
                    let (output, rstd) = (Some(b.output(shape, dtype)?), b.output([rows], DType::F32)?);
                    Ok(Norm { kind, input, residual, sum, weight, bias, output, mean, rstd, eps: 1e-5 }.into())
                }),
            );
            add(
                &format!("{name}{suffix}, statistics alone"),
                Box::new(move |b| {
                    let shape = [rows, hidden];
                    let (input, weight) = (b.input(shape, dtype)?, b.input([hidden], dtype)?);
                    let residual = if with_residual { Some(b.input(shape, dtype)?) } else { None };
                    let sum = if with_residual { Some(b.output(shape, dtype)?) } else { None };
                    let mean = if layer { Some(b.output([rows], DType::F32)?) } else { None };
                    let (bias, rstd) = (None, b.output([rows], DType::F32)?);
                    Ok(Norm { kind, input, residual, sum, weight, bias, output: None, mean, rstd, eps: 1e-5 }.into())
                }),
            );
            add(
                &format!("{name}{suffix} backward"),
                Box::new(move |b| {
                    let shape = [rows, hidden];
                    let (input, weight) = (b.input(shape, dtype)?, b.input([hidden], dtype)?);
                    let mean = if layer { Some(b.output([rows], DType::F32)?) } else { None };
                    let (normed, rstd) = (b.output(shape, dtype)?, b.output([rows], DType::F32)?);
                    let none = None;
                    b.run(Norm {
                        kind,
                        input,
                        residual: none,
                        sum: none,
                        weight,
                        bias: none,
                        output: Some(normed),
                        mean,
                        rstd,
                        eps: 1e-5,
                    })?;
                    let grad_output = b.input(shape, dtype)?;
                    let grad_residual = if with_residual { Some(b.input(shape, dtype)?) } else { None };
                    let parameter = |b: &mut Workbench| match with_residual {
                        true => b.input([hidden], DType::F32),
                        false => b.output([hidden], DType::F32),
                    };
                    let grad_weight = parameter(b)?;
                    let grad_bias = if layer { Some(parameter(b)?) } else { None };
                    let grad_residual_sums = if with_residual { Some(parameter(b)?) } else { None };
                    Ok(NormBackward {
                        kind,
                        input,
                        weight,
                        mean,
                        rstd,
                        grad_output,
                        grad_residual,
                        grad_input: b.output(shape, dtype)?,
                        grad_weight: Some(grad_weight),
                        grad_bias,
                        grad_residual_sums,
                        accumulate: with_residual,
                    }
                    .into())
                }),
            );
        }
    }
}

fn attention(s: Sizes, dtype: DType, add: AddTrial<'_>) {
    let Sizes { batch, seq, heads, head_dim, .. } = s;
    for inverse in [false, true] {
        add(
            if inverse { "rotary, inverse" } else { "rotary" },
            Box::new(move |b| {
                let qkv = b.input([batch, seq, (heads + 2 * s.kv_heads) * head_dim], dtype)?;
                let table = b.input([seq, head_dim / 2, 2], DType::F32)?;
                Ok(Rotary { qkv, table, heads, kv_heads: s.kv_heads, inverse }.into())
            }),
        );
    }
    for turns in [false, true] {
        head_norms(s, turns, dtype, &mut *add);
    }
    for (label, kv_heads, drops) in
        [("", heads, false), (", grouped", s.kv_heads, false), (", dropout", s.kv_heads, true)]
    {
        let forward = move |b: &mut Workbench| -> Result<(Attention, Tensor)> {
            let qkv = b.input([batch, seq, (heads + 2 * kv_heads) * head_dim], dtype)?;
            let output = b.output([batch, seq, heads * head_dim], dtype)?;
            let stats = b.output([batch, heads, seq], DType::F32)?;
            let dropout = if drops { Some(site(b)?) } else { None };
            Ok((Attention { qkv, output, stats, heads, kv_heads, dropout }, qkv))
        };
        add(&format!("attention{label}"), Box::new(move |b| Ok(forward(b)?.0.into())));
        add(
            &format!("attention backward{label}"),
            Box::new(move |b| {
                let (op, qkv) = forward(b)?;
                b.run(op.clone())?;
                let grad_output = b.input([batch, seq, heads * head_dim], dtype)?;
                let grad_qkv = b.output(qkv.shape, dtype)?;
                let Attention { output, stats, dropout, .. } = op;
                Ok(AttentionBackward { qkv, output, stats, grad_output, grad_qkv, heads, kv_heads, dropout }.into())
            }),
        );
    }
}

/// Norms of queries and keys, with or without the rotation after them.
fn head_norms(s: Sizes, turns: bool, dtype: DType, add: AddTrial<'_>) {
    let Sizes { batch, seq, heads, kv_heads, head_dim, .. } = s;
    let shape = [batch, seq, (heads + 2 * kv_heads) * head_dim];
    let table = move |b: &mut Workbench| -> Result<Option<Tensor>> {
        if turns { b.input([seq, head_dim / 2, 2], DType::F32).map(Some) } else { Ok(None) }
    };
    let name = if turns { "norms of heads, rotary" } else { "norms of heads" };
    add(
        name,
        Box::new(move |b| {
            let (input, output, table) = (b.input(shape, dtype)?, b.output(shape, dtype)?, table(b)?);
            let (query_weight, key_weight) = (b.input([head_dim], dtype)?, b.input([head_dim], dtype)?);
            Ok(HeadNorm { input, output, query_weight, key_weight, table, heads, kv_heads, eps: 1e-6 }.into())
        }),
    );
    add(
        &format!("{name} backward"),
        Box::new(move |b| {
            let (input, grad, table) = (b.input(shape, dtype)?, b.input(shape, dtype)?, table(b)?);
            Ok(HeadNormBackward {
                input,
                grad,
                query_weight: b.input([head_dim], dtype)?,
                key_weight: b.input([head_dim], dtype)?,
                table,
                grad_query_weight: Some(b.input([head_dim], DType::F32)?),
                grad_key_weight: Some(b.input([head_dim], DType::F32)?),
                heads,
                kv_heads,
                eps: 1e-6,
                accumulate: turns,
            }
            .into())
        }),
    );
}

/// Token ids, some more frequent than others.
fn tokens(s: Sizes) -> Vec<i32> {
    (0..s.rows()).map(|i| ((uniform(5, i as u64).powi(3) * s.vocab as f32) as usize % s.vocab) as i32).collect()
}

fn columns(first: usize, output: Tensor) -> Option<ColumnRange> {
    Some(ColumnRange { first, output })
}

fn ends(s: Sizes, dtype: DType, add: AddTrial<'_>) {
    let Sizes { batch, seq, padded_vocab, .. } = s;
    let hidden = s.hidden();
    add(
        "embedding",
        Box::new(move |b| {
            let tokens = b.integers([batch, seq], &tokens(s))?;
            let (table, positions) = (b.input([padded_vocab, hidden], dtype)?, b.input([seq + 3, hidden], dtype)?);
            let output = b.output([batch, seq, hidden], dtype)?;
            Ok(Embedding { tokens, table, first_token: 0, positions: Some(positions), output }.into())
        }),
    );
    add(
        "embedding backward",
        Box::new(move |b| {
            let tokens = b.integers([batch, seq], &tokens(s))?;
            let grad_output = b.input([batch, seq, hidden], dtype)?;
            let grad_table = b.input([padded_vocab, hidden], DType::F32)?;
            let grad_positions = Some(b.input([seq + 3, hidden], DType::F32)?);
            Ok(EmbeddingBackward { tokens, grad_output, grad_table: Some(grad_table), first_token: 0, grad_positions }
                .into())
        }),
    );
    if dtype == DType::F32 {
        add(
            "copy_columns, tokens",
            Box::new(move |b| {
                let input = b.integers([batch, seq], &tokens(s))?;
                let (inputs, targets) =
                    (b.output([batch, seq - 1], DType::I32)?, b.output([batch, seq - 1], DType::I32)?);
                Ok(CopyColumns { input, parts: [columns(0, inputs), columns(1, targets)] }.into())
            }),
        );
    }
    add(
        "copy_columns, features and outputs",
        Box::new(move |b| {
            let input = b.input([s.rows(), hidden + 5], DType::F32)?;
            let (features, outputs) = (b.output([s.rows(), hidden], dtype)?, b.output([s.rows(), 5], dtype)?);
            Ok(CopyColumns { input, parts: [columns(0, features), columns(hidden, outputs)] }.into())
        }),
    );
    cross_entropies(s, dtype, add);
    for train in [true, false] {
        add(
            if train { "mse and gradient" } else { "mse" },
            Box::new(move |b| {
                let shape = [s.rows(), hidden];
                let (prediction, target) = (b.input(shape, dtype)?, b.input(shape, dtype)?);
                let losses = b.output([s.rows()], DType::F32)?;
                let grad = if train { Some((b.output(shape, dtype)?, b.block(&CONTROL)?)) } else { None };
                Ok(Mse { prediction, target, losses, grad }.into())
            }),
        );
    }
}

fn cross_entropies(s: Sizes, dtype: DType, add: AddTrial<'_>) {
    for train in [true, false] {
        add(
            if train { "cross_entropy and gradient" } else { "cross_entropy" },
            Box::new(move |b| {
                let rows = s.rows();
                let logits = b.scaled([rows, s.padded_vocab], dtype, 6.0)?;
                let mut wanted = tokens(s);
                wanted[rows / 2] = -1;
                let (targets, losses) = (b.integers([rows], &wanted)?, b.output([rows], DType::F32)?);
                let control = if train { Some(b.block(&CONTROL)?) } else { None };
                Ok(CrossEntropy { logits, targets, losses, vocab: s.vocab, control }.into())
            }),
        );
    }
}

fn updates(s: Sizes, dtype: DType, add: AddTrial<'_>) {
    let shapes = [vec![s.ffn, s.hidden()], vec![s.ffn], vec![7, 3]];
    let compute = dtype == DType::Bf16;
    if !compute {
        add(
            "sum_into",
            Box::new(move |b| {
                let input = b.input([s.rows(), s.ffn], DType::F32)?;
                Ok(SumInto { input, total: b.input([1], DType::F32)?, accumulate: true }.into())
            }),
        );
        let shapes = shapes.clone();
        add(
            "square_sum",
            Box::new(move |b| {
                let inputs: Result<Vec<Tensor>> =
                    shapes.iter().map(|shape| b.input(device::Shape::new(shape), DType::F32)).collect();
                Ok(SquareSum { inputs: inputs?.into(), total: b.output([1], DType::F32)? }.into())
            }),
        );
        for square in [25.0f32, f32::INFINITY] {
            add(
                if square.is_finite() { "clip_scale" } else { "clip_scale, not finite" },
                Box::new(move |b| {
                    let square_sum = b.output([1], DType::F32)?;
                    b.device.upload(&square_sum, &[square])?;
                    let status = b.block(&Status { applied: 4, ..Status::default() })?;
                    Ok(ClipScale { square_sum, control: b.block(&CONTROL)?, status }.into())
                }),
            );
        }
        add(
            "write_control",
            Box::new(|b| Ok(WriteControl { control: b.block(&Control::default())?, value: CONTROL }.into())),
        );
        add(
            "write_sample_record",
            Box::new(|b| {
                let record = b.block(&SampleRecord::default())?;
                Ok(WriteSampleRecord { control: b.block(&CONTROL)?, offset: 5, record }.into())
            }),
        );
    }
    let status = Status { applied: 3, finite: 1, grad_norm: 2.0, grad_factor: 0.5, ..Status::default() };
    let all = shapes.clone();
    add(
        "adamw",
        Box::new(move |b| {
            let mut tensors = Vec::new();
            for (i, shape) in all.iter().enumerate() {
                let shape = device::Shape::new(shape);
                let (master, grad) = (b.input(shape, DType::F32)?, b.input(shape, DType::F32)?);
                let (exp_avg, exp_avg_sq) = (b.input(shape, DType::F32)?, b.input(shape, DType::F32)?);
                let squares: Vec<f32> = b.device.download::<f32>(&exp_avg_sq)?.iter().map(|x| x * x).collect();
                b.device.upload(&exp_avg_sq, &squares)?;
                let compute = if compute { Some(b.output(shape, dtype)?) } else { None };
                let weight_decay = if i == 0 { 0.1 } else { 0.0 };
                tensors.push(AdamWTensors { master, compute, grad, exp_avg, exp_avg_sq, weight_decay });
            }
            let (control, status) = (b.block(&CONTROL)?, b.block(&status)?);
            Ok(AdamW { tensors: tensors.into(), beta1: 0.9, beta2: 0.95, eps: 1e-8, control, status }.into())
        }),
    );
    let all = shapes.clone();
    add(
        "lion",
        Box::new(move |b| {
            let mut tensors = Vec::new();
            for shape in &all {
                let shape = device::Shape::new(shape);
                tensors.push(LionTensors {
                    master: b.input(shape, DType::F32)?,
                    grad: b.input(shape, DType::F32)?,
                    exp_avg: b.input(shape, DType::F32)?,
                    compute: if compute { Some(b.output(shape, dtype)?) } else { None },
                    weight_decay: 0.1,
                });
            }
            let (control, status) = (b.block(&CONTROL)?, b.block(&status)?);
            Ok(Lion { tensors: tensors.into(), beta1: 0.9, beta2: 0.99, control, status }.into())
        }),
    );
    add(
        "nesterov_momentum",
        Box::new(move |b| {
            let tensors =
                [MomentumTensors { grad: b.input([300], DType::F32)?, momentum: b.input([300], DType::F32)? }];
            Ok(NesterovMomentum { tensors: tensors.into(), beta: 0.95, status: b.block(&status)? }.into())
        }),
    );
    add(
        "scale_block",
        Box::new(move |b| {
            let from = Block { matrix: b.input([33, 70], DType::F32)?, row: 1, column: 3 };
            let to = Block::first(b.output([32, 64], dtype)?);
            let square_sum = b.output([1], DType::F32)?;
            b.device.upload(&square_sum, &[6.25f32])?;
            Ok(ScaleBlock { from, to, rows: 32, columns: 64, factor: 1.5, square_sum: Some(square_sum) }.into())
        }),
    );
    add(
        "matrix_polynomial",
        Box::new(move |b| {
            let (x, square) = (b.input([64, 64], dtype)?, b.input([64, 64], dtype)?);
            let output = b.output([64, 64], dtype)?;
            Ok(MatrixPolynomial { x, square, coefficients: [3.4, -4.8, 2.0], output }.into())
        }),
    );
    add(
        "decayed_step",
        Box::new(move |b| {
            let tensors = [DecayedTensors {
                master: b.input([300], DType::F32)?,
                compute: if compute { Some(b.output([300], dtype)?) } else { None },
                direction: b.input([300], DType::F32)?,
                weight_decay: 0.1,
            }];
            let (control, status) = (b.block(&CONTROL)?, b.block(&status)?);
            Ok(DecayedStep { tensors: tensors.into(), control, status }.into())
        }),
    );
    for momentum in [0.0f32, 0.9] {
        let all = shapes.clone();
        add(
            if momentum == 0.0 { "sgd" } else { "sgd with momentum" },
            Box::new(move |b| {
                let mut tensors = Vec::new();
                for shape in &all {
                    let shape = device::Shape::new(shape);
                    tensors.push(SgdTensors {
                        master: b.input(shape, DType::F32)?,
                        grad: b.input(shape, DType::F32)?,
                        momentum: if momentum != 0.0 { Some(b.input(shape, DType::F32)?) } else { None },
                        compute: if compute { Some(b.output(shape, dtype)?) } else { None },
                        weight_decay: 0.1,
                    });
                }
                let (control, status) = (b.block(&CONTROL)?, b.block(&status)?);
                Ok(Sgd { tensors: tensors.into(), momentum, control, status }.into())
            }),
        );
    }
}
