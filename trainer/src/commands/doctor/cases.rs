//! Trials of every operation, with sizes of models and odd ones.

use device::DType;
use device::ops::{
    Activation, ActivationBackward, ActivationKind, Add, AddPartialColumns, BiasGrad, Columns, Copy, Dropout, Epilogue,
    Fill, Gate, Gemm, GemmColumns, Glu, GluBackward, Norm, NormBackward, NormKind, PartialColumns, Poison, ReluDropout,
    ReluDropoutBackward, SoftCap,
};

use super::fp8_products::{self, Scales};
use super::sizes::{Sizes, site};
use super::workbench::{AddTrial, Make, Workbench};
use super::{attention, documents, ends, fp8, fp8_blocks, generation, updates};

/// The trial of an operation.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) make: Make,
}

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
            attention::trials(sizes, dtype, &mut add);
            documents::trials(sizes, dtype, &mut add);
            ends::trials(sizes, dtype, &mut add);
            if label.is_empty() {
                generation::trials(dtype, &mut add);
                // The width of rows decides how kernels divide them among threads.
                for hidden in [768, 1024, 2048] {
                    norms(50, hidden, dtype, &mut |name, make| add(&format!("{name}, hidden {hidden}"), make));
                }
                let wide = Sizes { batch: 1, seq: 16, vocab: 50257, padded_vocab: 50304, ..sizes };
                ends::cross_entropies(wide, dtype, &mut |name, make| add(&format!("{name}, vocab 50257"), make));
            }
            updates::trials(sizes, dtype, &mut add);
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
    // As adapters multiply: a few columns of a wide tensor, added.
    add(
        "gemm, columns accumulated",
        Box::new(move |b| {
            let (low, w, out) =
                (b.input([m, 48], dtype)?, b.scaled([n / 3, 16], dtype, scale)?, b.input([m, n], dtype)?);
            let columns = |first, count| Some(Columns { first, count });
            let columns = GemmColumns { a: columns(16, 16), out: columns(n / 3, n / 3), ..GemmColumns::ALL };
            Ok(Gemm { columns, alpha: 0.5, accumulate: true, ..Gemm::linear(low, w, out, Epilogue::None) }.into())
        }),
    );
    // The other columns keep their values.
    add(
        "gemm, columns written",
        Box::new(move |b| {
            let (x, w) = (b.input([m, k], dtype)?, b.scaled([n / 3, k], dtype, scale)?);
            let out = b.output_in_part([m, n], dtype)?;
            let columns = GemmColumns { out: Some(Columns { first: n / 3, count: n / 3 }), ..GemmColumns::ALL };
            Ok(Gemm { columns, ..Gemm::linear(x, w, out, Epilogue::None) }.into())
        }),
    );
    add(
        "gemm, wgrad of columns",
        Box::new(move |b| {
            let (dy, low, grad) =
                (b.input([m, n], dtype)?, b.input([m, 48], dtype)?, b.output([n / 3, 16], DType::F32)?);
            let columns = |first, count| Some(Columns { first, count });
            let columns = GemmColumns { a: columns(n / 3, n / 3), b: columns(32, 16), out: None };
            Ok(Gemm { columns, ..Gemm::wgrad(dy, low, grad, false) }.into())
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
        add(
            if accumulate { "add_partial_columns accumulated" } else { "add_partial_columns" },
            Box::new(move |b| {
                // More sums than one launch takes, of several sizes.
                let sum = |b: &mut Workbench, at: usize| -> device::Result<PartialColumns> {
                    let (parts, columns) = (1 + 37 * at, n + at);
                    let partial = b.input([parts, columns], DType::F32)?;
                    let output = match accumulate {
                        true => b.input([columns], DType::F32)?,
                        false => b.output([columns], DType::F32)?,
                    };
                    Ok(PartialColumns { partial, output })
                };
                let sums: device::Result<Vec<_>> = (0..20).map(|at| sum(b, at)).collect();
                Ok(AddPartialColumns { sums: sums?.into(), accumulate }.into())
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
    add(
        "add in place",
        Box::new(move |b| {
            let output = b.input(shape, dtype)?;
            Ok(Add { a: output, b: b.input(shape, dtype)?, output }.into())
        }),
    );
    add("poison", Box::new(move |b| Ok(Poison { output: b.output(shape, DType::I32)? }.into())));
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
    for (gate, name) in [(Gate::Silu, "swiglu"), (Gate::Gelu, "geglu")] {
        add(
            name,
            Box::new(move |b| {
                Ok(Glu { gate, input: b.scaled(wide, dtype, 3.0)?, output: b.output(shape, dtype)? }.into())
            }),
        );
        for again in [false, true] {
            add(
                &format!("{name} backward{}", if again { ", values again" } else { "" }),
                Box::new(move |b| {
                    let (input, grad_output) = (b.scaled(wide, dtype, 3.0)?, b.input(shape, dtype)?);
                    let output = if again { Some(b.output(shape, dtype)?) } else { None };
                    Ok(GluBackward { gate, input, grad_output, grad_input: b.output(wide, dtype)?, output }.into())
                }),
            );
        }
    }
    add("soft_cap", Box::new(move |b| Ok(SoftCap { values: b.scaled(shape, dtype, 3.0)?, cap: 2.0 }.into())));
    add(
        "dropout",
        Box::new(move |b| {
            let (input, site) = (b.input(shape, dtype)?, site(b)?);
            Ok(Dropout { input, output: b.output(shape, dtype)?, site }.into())
        }),
    );
    add(
        "dropout in place",
        Box::new(move |b| {
            let (values, site) = (b.input(shape, dtype)?, site(b)?);
            Ok(Dropout { input: values, output: values, site }.into())
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

fn norms(rows: usize, hidden: usize, dtype: DType, add: AddTrial<'_>) {
    for (kind, name) in
        [(NormKind::Layer, "layer_norm"), (NormKind::Rms, "rms_norm"), (NormKind::Rms1p, "rms_norm of 1 + weight")]
    {
        let layer = kind == NormKind::Layer;
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
            let backward = move |b: &mut Workbench| {
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
                let grad_input = b.output(shape, dtype)?;
                let (weight_parts, bias_parts, residual_parts) = (none, none, none);
                Ok::<_, device::Error>(NormBackward {
                    kind,
                    input,
                    weight,
                    mean,
                    rstd,
                    grad_output,
                    grad_residual,
                    grad_input,
                    weight_parts,
                    bias_parts,
                    residual_parts,
                })
            };
            add(&format!("{name}{suffix} backward"), Box::new(move |b| Ok(backward(b)?.into())));
            if with_residual {
                add(
                    &format!("{name}{suffix} backward in place"),
                    Box::new(move |b| {
                        let op = backward(b)?;
                        let grad_residual = Some(op.grad_input);
                        b.run(Add { a: op.input, b: op.grad_output, output: op.grad_input })?;
                        Ok(NormBackward { grad_residual, ..op }.into())
                    }),
                );
            }
            add(
                &format!("{name}{suffix} backward, parameters"),
                Box::new(move |b| {
                    let op = backward(b)?;
                    let parts = b.device.norm_parts(&op.input, with_residual);
                    let mut sums = Vec::new();
                    let mut parts_of = |b: &mut Workbench, wanted: bool| {
                        if !wanted {
                            return Ok::<_, device::Error>(None);
                        }
                        let output = match with_residual {
                            true => b.input([hidden], DType::F32)?,
                            false => b.output([hidden], DType::F32)?,
                        };
                        let partial = b.output([parts, hidden], DType::F32)?;
                        sums.push(PartialColumns { partial, output });
                        Ok(Some(partial))
                    };
                    let (weight_parts, bias_parts) = (parts_of(b, true)?, parts_of(b, layer)?);
                    let residual_parts = parts_of(b, with_residual)?;
                    b.run(NormBackward { weight_parts, bias_parts, residual_parts, ..op })?;
                    Ok(AddPartialColumns { sums: sums.into(), accumulate: with_residual }.into())
                }),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use device::{Device, HostOptions, Op};

    use super::*;

    /// Operations without a trial, and why.
    const WITHOUT: [(&str, &str); 3] = [
        ("collective", "it needs several ranks: `transfers` tries it"),
        ("custom", "it is a caller's own: `HostTensors` holds it to what it declares"),
        ("mark", "it reads and writes no tensor"),
    ];

    #[test]
    fn every_operation_has_a_trial_or_a_reason_why_not() {
        let device = Device::host(HostOptions::default()).unwrap();
        let tried: BTreeSet<&str> =
            all(true).iter().map(|case| (case.make)(&mut Workbench::new(&device)).unwrap().name()).collect();
        for name in Op::NAMES {
            let reason = WITHOUT.iter().find(|(without, _)| without == name);
            assert!(tried.contains(name) != reason.is_some(), "{name}: tried, or a reason why not: {reason:?}");
        }
        assert!(tried.iter().all(|name| Op::NAMES.contains(name)), "{tried:?}");
    }
}
