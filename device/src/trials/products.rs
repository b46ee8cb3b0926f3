//! Trials of matrix products, and of the sums beside them.

use super::sizes::Sizes;
use super::workbench::{AddTrial, Workbench};
use crate::DType;
use crate::ops::{AddPartialColumns, BiasGrad, Columns, Epilogue, Gemm, GemmColumns, PartialColumns};

pub(super) fn trials(s: Sizes, dtype: DType, add: AddTrial<'_>) {
    linear(s, dtype, &mut *add);
    columns(s, dtype, &mut *add);
    through_gelu(s, dtype, &mut *add);
    for accumulate in [false, true] {
        weight_gradients(s, dtype, accumulate, &mut *add);
    }
}

fn linear(s: Sizes, dtype: DType, add: AddTrial<'_>) {
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
}

/// Products of some columns of a matrix.
fn columns(s: Sizes, dtype: DType, add: AddTrial<'_>) {
    let (m, k, n) = (s.rows(), s.hidden(), s.ffn);
    let scale = 1.0 / (k as f32).sqrt();
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
}

fn through_gelu(s: Sizes, dtype: DType, add: AddTrial<'_>) {
    let (m, k, n) = (s.rows(), s.hidden(), s.ffn);
    let scale = 1.0 / (k as f32).sqrt();
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
}

/// Gradients of weights and biases.
fn weight_gradients(s: Sizes, dtype: DType, accumulate: bool, add: AddTrial<'_>) {
    let (m, k, n) = (s.rows(), s.hidden(), s.ffn);
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
            let sum = |b: &mut Workbench, at: usize| -> crate::Result<PartialColumns> {
                let (parts, columns) = (1 + 37 * at, n + at);
                let partial = b.input([parts, columns], DType::F32)?;
                let output = match accumulate {
                    true => b.input([columns], DType::F32)?,
                    false => b.output([columns], DType::F32)?,
                };
                Ok(PartialColumns { partial, output })
            };
            let sums: crate::Result<Vec<_>> = (0..20).map(|at| sum(b, at)).collect();
            Ok(AddPartialColumns { sums: sums?.into(), accumulate }.into())
        }),
    );
}
