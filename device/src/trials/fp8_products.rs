//! Trials of products of 8-bit factors.

use super::case::Trials;
use super::fp8_blocks::shape_of_scales;
use super::workbench::Workbench;
use crate::ops::{Epilogue, Fp8Matrix, Gemm, Scale};
use crate::{DType, Result, Shape};

/// The values that share a scale in the factors.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Scales {
    Tensor,
    Rows,
    /// 128 neighbours in a row, or 128 x 128 values of a weight.
    Blocks,
}

impl Scales {
    fn words(self) -> &'static str {
        match self {
            Scales::Tensor => "one scale",
            Scales::Rows => "a scale a row",
            Scales::Blocks => "scales by block",
        }
    }
}

/// The products that training does, with factors scaled so. `rows`, `hidden` and `ffn` are multiples of 16.
pub(super) fn trials(scales: Scales, rows: usize, hidden: usize, ffn: usize, to: &mut Trials) {
    let words = scales.words();
    let e4m3 = DType::F8E4M3;
    // Blocks have one type, and accumulate precisely.
    let (gradient, fast) = if scales == Scales::Blocks { (e4m3, false) } else { (DType::F8E5M2, true) };
    for (name, a, (m, n, k), fast) in
        [("linear", e4m3, (rows, ffn, hidden), fast), ("dgrad", gradient, (rows, hidden, ffn), false)]
    {
        for bias in [false, true] {
            to.add(&format!("gemm in 8 bits, {name}{}, {words}", if bias { " + bias" } else { "" }), move |bench| {
                let a = factor(bench, [m, k], a, scales, false)?;
                let b = factor(bench, [n, k], e4m3, scales, true)?;
                let bias = if bias { Some(bench.input([n], DType::Bf16)?) } else { None };
                let epilogue = bias.map_or(Epilogue::None, Epilogue::Bias);
                let out = bench.output([m, n], DType::Bf16)?;
                Ok(Gemm { epilogue, ..Gemm::fp8(a, b, out, fast) })
            });
        }
    }
    for accumulate in [false, true] {
        to.add(
            &format!("gemm in 8 bits, wgrad{}, {words}", if accumulate { " accumulated" } else { "" }),
            move |bench| {
                let a = factor(bench, [ffn, rows], gradient, scales, false)?;
                let b = factor(bench, [hidden, rows], e4m3, scales, false)?;
                let out = match accumulate {
                    true => bench.input([ffn, hidden], DType::F32)?,
                    false => bench.output([ffn, hidden], DType::F32)?,
                };
                Ok(Gemm { accumulate, ..Gemm::fp8(a, b, out, false) })
            },
        );
    }
}

/// A factor in E4M3 with one scale.
pub fn with_one_scale(bench: &mut Workbench, shape: [usize; 2]) -> Result<Fp8Matrix> {
    factor(bench, shape, DType::F8E4M3, Scales::Tensor, false)
}

/// A factor with positive scales.
fn factor(
    bench: &mut Workbench,
    shape: [usize; 2],
    dtype: DType,
    scales: Scales,
    is_weight: bool,
) -> Result<Fp8Matrix> {
    let values = bench.scaled(shape, dtype, 200.0)?;
    let mut between = |shape: &[usize]| bench.between(Shape::new(shape), 1e-3, 2e-3);
    let scale = match scales {
        Scales::Tensor => Scale::Tensor(between(&[1])?),
        Scales::Rows => Scale::Rows(between(&shape[..1])?),
        Scales::Blocks if is_weight => Scale::Blocks(between(&shape_of_scales(shape, true))?),
        Scales::Blocks => Scale::Groups(between(&shape_of_scales(shape, false))?),
    };
    Ok(Fp8Matrix { values, scale })
}
