//! Scales for blocks of 128 values, the way of DeepSeek-V3 (2024) and of Transformer Engine's block scaling: activations and
//! gradients have a scale for 128 neighbours in a row, weights one for 128 x 128 values.
//!
//! The scales lie as cuBLASLt reads them (`VEC128_32F` and `BLK128x128_32F`). They are powers of two, so that neither they
//! nor their inverses round.

use super::quantize::{Fp8Matrix, Quantize, Scale};
use crate::ops::{ensure, ensure_shape};
use crate::{DType, Result, Tensor};

/// How many values share a scale along an axis.
pub(crate) const BLOCK: usize = 128;

/// The divisor of the sizes, in values, and the addresses, in bytes, of tensors with scales by block. Products need that
/// too.
const MULTIPLE: usize = 16;

impl Scale {
    /// The shape of the [`Scale::Groups`] of a matrix.
    pub fn group_shape(rows: usize, columns: usize) -> [usize; 2] {
        [columns.div_ceil(BLOCK), rows]
    }

    /// The shape of the [`Scale::Blocks`] of a matrix.
    pub fn block_shape(rows: usize, columns: usize) -> [usize; 2] {
        [rows.div_ceil(BLOCK), columns.div_ceil(BLOCK).next_multiple_of(4)]
    }

    /// Scales of the same kind that lie elsewhere.
    pub(crate) fn of_kind(&self, tensor: Tensor) -> Scale {
        match self {
            Scale::Tensor(_) => Scale::Tensor(tensor),
            Scale::Rows(_) => Scale::Rows(tensor),
            Scale::Groups(_) => Scale::Groups(tensor),
            Scale::Blocks(_) => Scale::Blocks(tensor),
        }
    }

    /// The index of the scale for the values of `row` in columns `128 * block` to `128 * block + 127`.
    pub(crate) fn index(&self, row: usize, block: usize) -> usize {
        match self {
            Scale::Tensor(_) => 0,
            Scale::Rows(_) => row,
            Scale::Groups(scales) => block * scales.shape.last() + row,
            Scale::Blocks(scales) => row / BLOCK * scales.shape.last() + block,
        }
    }

    /// Whether there is a scale for groups or for blocks of values.
    pub(crate) fn is_by_block(&self) -> bool {
        matches!(self, Scale::Groups(_) | Scale::Blocks(_))
    }

    /// Fails unless scales by block, of a matrix `(rows, columns)` of that type, have their shape. Others pass.
    pub(super) fn check_blocks(&self, op: &'static str, dtype: DType, rows: usize, columns: usize) -> Result<()> {
        let (scales, shape) = match self {
            Scale::Groups(scales) => (scales, Scale::group_shape(rows, columns)),
            Scale::Blocks(scales) => (scales, Scale::block_shape(rows, columns)),
            Scale::Tensor(_) | Scale::Rows(_) => return Ok(()),
        };
        ensure(op, dtype == DType::F8E4M3, || {
            format!("scales of groups or blocks go with fp8-e4m3, not with {dtype}")
        })?;
        ensure_shape(op, "scale", scales, &shape)
    }
}

impl Quantize {
    /// Fails unless one pass can make the copies with scales by block. Others pass.
    pub(super) fn check_blocks(&self, op: &'static str) -> Result<()> {
        let copies: Vec<&Fp8Matrix> = self.rows.iter().chain(&self.columns).collect();
        if !copies.iter().any(|copy| copy.scale.is_by_block()) {
            return Ok(());
        }
        let kind = |copy: &&Fp8Matrix| std::mem::discriminant(&copy.scale);
        ensure(op, copies.windows(2).all(|pair| kind(&pair[0]) == kind(&pair[1])), || {
            "both copies have scales for groups, or both have scales for blocks".into()
        })?;
        ensure(op, self.amax.is_none(), || {
            "scales of groups or blocks follow from the values: `amax` goes with one scale".into()
        })?;
        let (rows, columns) = self.source.dimensions();
        ensure(op, rows.is_multiple_of(MULTIPLE) && columns.is_multiple_of(MULTIPLE), || {
            format!("a matrix ({rows}, {columns}) needs sizes that are multiples of {MULTIPLE} for scales by block")
        })?;
        for (name, tensor) in self.source.inputs().into_iter().chain(copies.iter().map(|copy| ("copy", copy.values))) {
            ensure(op, tensor.address.is_multiple_of(MULTIPLE as u64), || {
                format!("`{name}` begins at {:#x}, needs a multiple of {MULTIPLE} for scales by block", tensor.address)
            })?;
        }
        Ok(())
    }
}
