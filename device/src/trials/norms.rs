//! Trials of norms over rows.

use super::case::Trials;
use super::workbench::Workbench;
use crate::ops::{Add, AddPartialColumns, Norm, NormBackward, NormKind, PartialColumns, RowSums};
use crate::{DType, Result};

/// A norm of a matrix.
#[derive(Clone, Copy)]
struct Setting {
    kind: NormKind,
    rows: usize,
    hidden: usize,
    dtype: DType,
    with_residual: bool,
}

pub(super) fn trials(rows: usize, hidden: usize, dtype: DType, to: &mut Trials) {
    for (kind, name) in
        [(NormKind::Layer, "layer_norm"), (NormKind::Rms, "rms_norm"), (NormKind::Rms1p, "rms_norm of 1 + weight")]
    {
        for (with_residual, suffix) in [(false, ""), (true, " + residual")] {
            let (setting, name) = (Setting { kind, rows, hidden, dtype, with_residual }, format!("{name}{suffix}"));
            forward(setting, &name, to);
            backward(setting, &name, to);
        }
    }
}

fn forward(setting: Setting, name: &str, to: &mut Trials) {
    let Setting { kind, rows, hidden, dtype, with_residual } = setting;
    let layer = kind == NormKind::Layer;
    to.add(name, move |b| {
        let shape = [rows, hidden];
        let input = b.input(shape, dtype)?;
        let residual = if with_residual { Some(b.input(shape, dtype)?) } else { None };
        let sum = if with_residual { Some(b.output(shape, dtype)?) } else { None };
        let weight = b.input([hidden], dtype)?;
        let bias = if layer { Some(b.input([hidden], dtype)?) } else { None };
        let mean = if layer { Some(b.output([rows], DType::F32)?) } else { None };
        let (output, rstd) = (Some(b.output(shape, dtype)?), b.output([rows], DType::F32)?);
        Ok(Norm { kind, input, residual, sum, weight, bias, output, mean, rstd, eps: 1e-5 })
    });
    to.add(&format!("{name}, statistics alone"), move |b| {
        let shape = [rows, hidden];
        let (input, weight) = (b.input(shape, dtype)?, b.input([hidden], dtype)?);
        let residual = if with_residual { Some(b.input(shape, dtype)?) } else { None };
        let sum = if with_residual { Some(b.output(shape, dtype)?) } else { None };
        let mean = if layer { Some(b.output([rows], DType::F32)?) } else { None };
        let (bias, rstd) = (None, b.output([rows], DType::F32)?);
        Ok(Norm { kind, input, residual, sum, weight, bias, output: None, mean, rstd, eps: 1e-5 })
    });
}

/// The backward of a norm, after its forward.
fn of(b: &mut Workbench, setting: Setting) -> Result<NormBackward> {
    let Setting { kind, rows, hidden, dtype, with_residual } = setting;
    let layer = kind == NormKind::Layer;
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
    Ok(NormBackward {
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
}

fn backward(setting: Setting, name: &str, to: &mut Trials) {
    let Setting { kind, hidden, with_residual, .. } = setting;
    let layer = kind == NormKind::Layer;
    to.add(&format!("{name} backward"), move |b| of(b, setting));
    if with_residual {
        to.add(&format!("{name} backward in place"), move |b| {
            let op = of(b, setting)?;
            let grad_residual = Some(op.grad_input);
            b.run(Add { a: op.input, b: op.grad_output, output: op.grad_input })?;
            Ok(NormBackward { grad_residual, ..op })
        });
    }
    to.add(&format!("{name} backward, parameters"), move |b| {
        let op = of(b, setting)?;
        let of_sums = if with_residual { RowSums::ParametersAndResidual } else { RowSums::Parameters };
        let parts = b.device.norm_parts(&op.input, of_sums);
        let mut sums = Vec::new();
        let mut parts_of = |b: &mut Workbench, wanted: bool| {
            if !wanted {
                return Ok::<_, crate::Error>(None);
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
        Ok(AddPartialColumns { sums: sums.into(), accumulate: with_residual })
    });
}
