//! Trials of 8-bit copies with scales for groups and blocks, and of products of them.

use device::ops::{Epilogue, Fp8Matrix, Gemm, Quantize, Scale};
use device::{DType, Result};

use super::fp8::SOURCES;
use super::workbench::{AddTrial, Workbench};

/// Both copies of every kind of matrix, with column sums. Sizes are multiples of 16.
pub(super) fn copies(rows: usize, width: usize, add: AddTrial<'_>) {
    for (name, make) in SOURCES {
        for (scales, square) in [("scales for groups", false), ("scales for blocks", true)] {
            add(
                &format!("quantize {name}, {scales}"),
                Box::new(move |bench| {
                    let source = make(bench, rows, width)?;
                    let (rows, columns) = (made(bench, [rows, width], square)?, made(bench, [width, rows], square)?);
                    let sums = Some(bench.output([width], DType::F32)?);
                    let (rows, columns) = (Some(rows), Some(columns));
                    Ok(Quantize { source, rows, columns, amax: None, sums, accumulate: false }.into())
                }),
            );
        }
    }
}

/// The products of training.
pub(super) fn products(rows: usize, hidden: usize, ffn: usize, add: AddTrial<'_>) {
    for (name, (m, n, k)) in [("linear", (rows, ffn, hidden)), ("dgrad", (rows, hidden, ffn))] {
        for bias in [false, true] {
            let name = format!("gemm in 8 bits, {name}{}, scales by block", if bias { " + bias" } else { "" });
            add(
                &name,
                Box::new(move |bench| {
                    let (a, b) = (given(bench, [m, k], false)?, given(bench, [n, k], true)?);
                    let bias = if bias { Some(bench.input([n], DType::Bf16)?) } else { None };
                    let epilogue = bias.map_or(Epilogue::None, Epilogue::Bias);
                    let out = bench.output([m, n], DType::Bf16)?;
                    Ok(Gemm { epilogue, ..Gemm::fp8(a, b, out, false) }.into())
                }),
            );
        }
    }
    for accumulate in [false, true] {
        let name = format!("gemm in 8 bits, wgrad{}, scales by block", if accumulate { " accumulated" } else { "" });
        add(
            &name,
            Box::new(move |bench| {
                let (a, b) = (given(bench, [ffn, rows], false)?, given(bench, [hidden, rows], false)?);
                let out = match accumulate {
                    true => bench.input([ffn, hidden], DType::F32)?,
                    false => bench.output([ffn, hidden], DType::F32)?,
                };
                Ok(Gemm { accumulate, ..Gemm::fp8(a, b, out, false) }.into())
            }),
        );
    }
}

/// A copy to be made.
fn made(bench: &mut Workbench, shape: [usize; 2], square: bool) -> Result<Fp8Matrix> {
    let values = bench.output(shape, DType::F8E4M3)?;
    let scales = bench.output(shape_of_scales(shape, square), DType::F32)?;
    Ok(Fp8Matrix { values, scale: if square { Scale::Blocks(scales) } else { Scale::Groups(scales) } })
}

/// A factor with positive scales.
fn given(bench: &mut Workbench, shape: [usize; 2], square: bool) -> Result<Fp8Matrix> {
    let values = bench.scaled(shape, DType::F8E4M3, 200.0)?;
    let scales = bench.between(shape_of_scales(shape, square), 1e-3, 2e-3)?;
    Ok(Fp8Matrix { values, scale: if square { Scale::Blocks(scales) } else { Scale::Groups(scales) } })
}

fn shape_of_scales([rows, columns]: [usize; 2], square: bool) -> [usize; 2] {
    if square { Scale::block_shape(rows, columns) } else { Scale::group_shape(rows, columns) }
}
