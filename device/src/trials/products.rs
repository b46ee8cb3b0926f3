//! Trials of matrix products, and of the sums beside them.

use super::case::Trials;
use super::sizes::Sizes;
use super::workbench::Workbench;
use crate::DType;
use crate::ops::{AddPartialColumns, BiasGrad, Columns, Epilogue, Gemm, GemmColumns, PartialColumns};

pub(super) fn trials(s: Sizes, dtype: DType, to: &mut Trials) {
    linear(s, dtype, to);
    columns(s, dtype, to);
    through_gelu(s, dtype, to);
    for accumulate in [false, true] {
        weight_gradients(s, dtype, accumulate, to);
    }
}

fn linear(s: Sizes, dtype: DType, to: &mut Trials) {
    let (m, k, n) = (s.rows(), s.hidden(), s.ffn);
    let scale = 1.0 / (k as f32).sqrt();
    to.add("gemm, linear", move |b| {
        let (x, w) = (b.input([m, k], dtype)?, b.scaled([n, k], dtype, scale)?);
        Ok(Gemm::linear(x, w, b.output([m, n], dtype)?, Epilogue::None))
    });
    to.add("gemm, linear + bias", move |b| {
        let (x, w, bias) = (b.input([m, k], dtype)?, b.scaled([n, k], dtype, scale)?, b.input([n], dtype)?);
        Ok(Gemm::linear(x, w, b.output([m, n], dtype)?, Epilogue::Bias(bias)))
    });
    to.add("gemm, linear + bias + gelu", move |b| {
        let (x, w, bias) = (b.input([m, k], dtype)?, b.scaled([n, k], dtype, scale)?, b.input([n], dtype)?);
        let pre = b.output([m, n], dtype)?;
        Ok(Gemm::linear(x, w, b.output([m, n], dtype)?, Epilogue::BiasGelu { bias, pre }))
    });
    to.add("gemm, dgrad", move |b| {
        let (dy, w) = (b.input([m, n], dtype)?, b.scaled([n, k], dtype, scale)?);
        Ok(Gemm::dgrad(dy, w, b.output([m, k], dtype)?, Epilogue::None))
    });
}

/// Products of some columns of a matrix.
fn columns(s: Sizes, dtype: DType, to: &mut Trials) {
    let (m, k, n) = (s.rows(), s.hidden(), s.ffn);
    let scale = 1.0 / (k as f32).sqrt();
    // As adapters multiply: a few columns of a wide tensor, added.
    to.add("gemm, columns accumulated", move |b| {
        let (low, w, out) = (b.input([m, 48], dtype)?, b.scaled([n / 3, 16], dtype, scale)?, b.input([m, n], dtype)?);
        let columns = |first, count| Some(Columns { first, count });
        let columns = GemmColumns { a: columns(16, 16), out: columns(n / 3, n / 3), ..GemmColumns::ALL };
        Ok(Gemm { columns, alpha: 0.5, accumulate: true, ..Gemm::linear(low, w, out, Epilogue::None) })
    });
    // The other columns keep their values.
    to.add("gemm, columns written", move |b| {
        let (x, w) = (b.input([m, k], dtype)?, b.scaled([n / 3, k], dtype, scale)?);
        let out = b.output_in_part([m, n], dtype)?;
        let columns = GemmColumns { out: Some(Columns { first: n / 3, count: n / 3 }), ..GemmColumns::ALL };
        Ok(Gemm { columns, ..Gemm::linear(x, w, out, Epilogue::None) })
    });
    to.add("gemm, wgrad of columns", move |b| {
        let (dy, low, grad) = (b.input([m, n], dtype)?, b.input([m, 48], dtype)?, b.output([n / 3, 16], DType::F32)?);
        let columns = |first, count| Some(Columns { first, count });
        let columns = GemmColumns { a: columns(n / 3, n / 3), b: columns(32, 16), out: None };
        Ok(Gemm { columns, ..Gemm::wgrad(dy, low, grad, false) })
    });
}

fn through_gelu(s: Sizes, dtype: DType, to: &mut Trials) {
    let (m, k, n) = (s.rows(), s.hidden(), s.ffn);
    let scale = 1.0 / (k as f32).sqrt();
    for again in [false, true] {
        to.add(if again { "gemm, dgrad through gelu, gelu again" } else { "gemm, dgrad through gelu" }, move |b| {
            let (dy, w, pre) = (b.input([m, k], dtype)?, b.scaled([k, n], dtype, scale)?, b.input([m, n], dtype)?);
            let activated = if again { Some(b.output([m, n], dtype)?) } else { None };
            let epilogue = Epilogue::GeluBackward { pre, activated };
            Ok(Gemm::dgrad(dy, w, b.output([m, n], dtype)?, epilogue))
        });
    }
}

/// Gradients of weights and biases.
fn weight_gradients(s: Sizes, dtype: DType, accumulate: bool, to: &mut Trials) {
    let (m, k, n) = (s.rows(), s.hidden(), s.ffn);
    let name = if accumulate { "gemm, wgrad accumulated" } else { "gemm, wgrad" };
    to.add(name, move |b| {
        let (dy, x) = (b.input([m, n], dtype)?, b.input([m, k], dtype)?);
        let grad = if accumulate { b.input([n, k], DType::F32)? } else { b.output([n, k], DType::F32)? };
        Ok(Gemm::wgrad(dy, x, grad, accumulate))
    });
    let name = if accumulate { "bias_grad accumulated" } else { "bias_grad" };
    to.add(name, move |b| {
        let grad_output = b.input([m, n], dtype)?;
        let grad_bias = if accumulate { b.input([n], DType::F32)? } else { b.output([n], DType::F32)? };
        Ok(BiasGrad { grad_output, grad_bias, accumulate })
    });
    to.add(if accumulate { "add_partial_columns accumulated" } else { "add_partial_columns" }, move |b| {
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
        Ok(AddPartialColumns { sums: sums?.into(), accumulate })
    });
}
