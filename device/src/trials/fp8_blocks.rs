//! Trials of 8-bit copies with scales for groups and blocks.

use super::case::Trials;
use super::fp8::SOURCES;
use super::workbench::Workbench;
use crate::ops::{Fp8Matrix, Quantize, Scale};
use crate::{DType, Result};

/// Both copies of every kind of matrix, with column sums. Sizes are multiples of 16.
pub(super) fn copies(rows: usize, width: usize, to: &mut Trials) {
    for (name, make) in SOURCES {
        for (scales, square) in [("scales for groups", false), ("scales for blocks", true)] {
            to.add(&format!("quantize {name}, {scales}"), move |bench| {
                let source = make(bench, rows, width)?;
                let (rows, columns) = (made(bench, [rows, width], square)?, made(bench, [width, rows], square)?);
                let sums = Some(bench.output([width], DType::F32)?);
                let (rows, columns) = (Some(rows), Some(columns));
                Ok(Quantize { source, rows, columns, amax: None, sums, accumulate: false })
            });
        }
    }
}

/// A copy to be made.
fn made(bench: &mut Workbench, shape: [usize; 2], square: bool) -> Result<Fp8Matrix> {
    let values = bench.output(shape, DType::F8E4M3)?;
    let scales = bench.output(shape_of_scales(shape, square), DType::F32)?;
    Ok(Fp8Matrix { values, scale: if square { Scale::Blocks(scales) } else { Scale::Groups(scales) } })
}

/// The scales of a matrix, for blocks or for groups.
pub(super) fn shape_of_scales([rows, columns]: [usize; 2], square: bool) -> [usize; 2] {
    if square { Scale::block_shape(rows, columns) } else { Scale::group_shape(rows, columns) }
}
