//! Matrix products of each expert's rows.

mod host;
#[cfg(feature = "cuda")]
mod launch;

use crate::ops::{
    Gemm, GemmColumns, MatrixPlace, Operation, ensure, ensure_dtype, ensure_elements, ensure_float, ensure_values,
    tensors,
};
use crate::{DType, Result, Tensor};

/// Which of the three products of a linear layer. Expert `e` has rows `offsets[e]..offsets[e + 1]` of tensors with rows,
/// and a matrix `(n, k)` of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupedProduct {
    /// `out (rows, n) = a (rows, k) @ b[e]^T`, with weights `b (experts * n, k)`.
    Forward,
    /// `out (rows, k) = a (rows, n) @ b[e]`, with weights `b (experts * n, k)`, or in 8 bits `b (k, experts * n)`.
    InputGradient,
    /// `out[e] (n, k) (+)= a^T @ b` over the rows of `e`, with `a (rows, n)`, `b (rows, k)` and `out (experts * n, k)`. The
    /// matrix of an expert without rows becomes 0, or stays as it is if it accumulates.
    WeightGradient,
}

/// A matrix product of the rows of each expert with its own matrix. The numbers of rows are read from device memory. It
/// accumulates in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedGemm {
    /// Which product.
    pub product: GroupedProduct,
    /// `(experts + 1)`, i32: see [`ExpertRows::offsets`](super::ExpertRows::offsets). Rows from the last one on are
    /// neither read nor written.
    pub offsets: Tensor,
    /// The first factor.
    pub a: Tensor,
    /// The second, of the same type; [`DType::F8E4M3`] for one of both 8-bit types.
    pub b: Tensor,
    /// The result: of the factors' type, or bf16 if they have 8 bits. A weight gradient is f32.
    pub out: Tensor,
    /// The scales of factors in 8 bits, `(1)` each, f32. Partial sums have about 14 bits on GPUs. Weight gradients have no
    /// 8-bit factors.
    pub scales: Option<[Tensor; 2]>,
    /// The product is multiplied by this. 1 with 8-bit factors.
    pub alpha: f32,
    /// Adds to `out` instead of overwriting it. Not with 8-bit factors.
    pub accumulate: bool,
    /// The columns of tensors with rows that the product reads or writes. Matrices, and tensors in 8 bits, are whole.
    pub columns: GemmColumns,
}

impl GroupedGemm {
    /// A product of whole tensors that overwrites its result. Factors are those of the field of that name.
    pub fn new(product: GroupedProduct, offsets: Tensor, [a, b]: [Tensor; 2], out: Tensor) -> GroupedGemm {
        let columns = GemmColumns::ALL;
        GroupedGemm { product, offsets, a, b, out, scales: None, alpha: 1.0, accumulate: false, columns }
    }

    /// The product of a linear layer, for each expert with its own matrix. It has no epilogue, and no 8-bit factors.
    pub fn of_each_expert(gemm: &Gemm, offsets: Tensor) -> GroupedGemm {
        let product = match (gemm.transpose_a, gemm.transpose_b) {
            (true, _) => GroupedProduct::WeightGradient,
            (false, true) => GroupedProduct::Forward,
            (false, false) => GroupedProduct::InputGradient,
        };
        let &Gemm { a, b, out, alpha, accumulate, columns, .. } = gemm;
        GroupedGemm { alpha, accumulate, columns, ..GroupedGemm::new(product, offsets, [a, b], out) }
    }

    /// Experts.
    pub fn experts(&self) -> usize {
        self.offsets.elements().saturating_sub(1)
    }

    /// The tensor with all matrices.
    fn weights(&self) -> &Tensor {
        match self.product {
            GroupedProduct::WeightGradient => &self.out,
            _ => &self.b,
        }
    }

    /// Whether the matrices are stored as `(k, experts * n)`.
    pub(crate) fn is_transposed(&self) -> bool {
        self.product == GroupedProduct::InputGradient && self.scales.is_some()
    }

    /// The size of all matrices together along `n`, and `k`.
    fn all_matrices(&self) -> [usize; 2] {
        let weights = self.weights().shape;
        let sizes = [weights.rows(), weights.last()];
        if self.is_transposed() { [sizes[1], sizes[0]] } else { sizes }
    }

    /// The matrices within the tensors with rows: `a`, and `b` or `out`.
    pub(crate) fn places(&self) -> [MatrixPlace; 2] {
        let GemmColumns { a, b, out } = self.columns;
        let second = match self.product {
            GroupedProduct::WeightGradient => MatrixPlace::of(&self.b, b),
            _ => MatrixPlace::of(&self.out, out),
        };
        [MatrixPlace::of(&self.a, a), second]
    }

    /// Whether the product takes whole tensors, and overwrites or adds to a gradient alone.
    pub(crate) fn is_plain(&self) -> bool {
        let adds_to_rows = self.accumulate && self.product != GroupedProduct::WeightGradient;
        self.columns == GemmColumns::ALL && self.alpha == 1.0 && !adds_to_rows
    }

    /// Rows of all experts together, and the sizes `n` and `k` of a matrix.
    pub fn sizes(&self) -> [usize; 3] {
        let [all, k] = self.all_matrices();
        [self.a.shape.rows(), all / self.experts().max(1), k]
    }

    /// Fails unless a tensor has so many rows, and the product takes so many columns of it.
    fn check_rows(&self, name: &str, tensor: &Tensor, place: MatrixPlace, rows: usize, width: usize) -> Result<()> {
        if place.columns == place.stride {
            return ensure_elements(Self::NAME, name, tensor, rows * width);
        }
        let MatrixPlace { columns, first, stride, .. } = place;
        ensure(Self::NAME, place.rows == rows && columns == width && first + columns <= stride, || {
            let end = first + columns;
            format!("`{name}` of shape {:?} gives columns {first}..{end}, needs {width} in {rows} rows", tensor.shape)
        })
    }

    fn check_types(&self) -> Result<()> {
        let is_gradient = self.product == GroupedProduct::WeightGradient;
        let GemmColumns { b, out, .. } = self.columns;
        ensure(Self::NAME, if is_gradient { out } else { b }.is_none(), || "matrices of experts are whole".into())?;
        let Some(scales) = self.scales else {
            ensure_float(Self::NAME, &[("a", self.a), ("b", self.b)])?;
            return ensure_dtype(Self::NAME, "out", &self.out, if is_gradient { DType::F32 } else { self.a.dtype });
        };
        ensure(Self::NAME, !is_gradient, || "a weight gradient has no 8-bit factors".into())?;
        ensure(Self::NAME, self.is_plain(), || "8-bit factors are whole, and their product overwrites".into())?;
        ensure(Self::NAME, self.a.dtype.is_fp8(), || format!("`a` is {}, needs an 8-bit floating type", self.a.dtype))?;
        ensure_dtype(Self::NAME, "b", &self.b, DType::F8E4M3)?;
        let [_, n, k] = self.sizes();
        ensure(Self::NAME, [n, k].iter().all(|size| size.is_multiple_of(16)), || {
            format!("matrices ({n}, {k}) of 8-bit factors need sizes that are multiples of 16")
        })?;
        // No kernel reads 8-bit factors from elsewhere.
        ensure(Self::NAME, [self.a, self.b, self.out].iter().all(|tensor| tensor.address.is_multiple_of(16)), || {
            "8-bit factors and their result begin at addresses that are multiples of 16".into()
        })?;
        for scale in scales {
            ensure_values(Self::NAME, "scale", &scale, DType::F32, 1)?;
        }
        ensure_dtype(Self::NAME, "out", &self.out, DType::Bf16)
    }
}

impl Operation for GroupedGemm {
    const NAME: &'static str = "grouped_gemm";

    fn check(&self) -> Result<()> {
        ensure_dtype(Self::NAME, "offsets", &self.offsets, DType::I32)?;
        ensure(Self::NAME, self.experts() > 0, || "there is no expert".into())?;
        let [all, _] = self.all_matrices();
        ensure(Self::NAME, all.is_multiple_of(self.experts()), || {
            format!("{all} rows of weights cannot be divided by {} experts", self.experts())
        })?;
        self.check_types()?;
        let ([rows, n, k], [first, second]) = (self.sizes(), self.places());
        let matrices = self.experts() * n * k;
        match self.product {
            GroupedProduct::Forward => {
                self.check_rows("a", &self.a, first, rows, k)?;
                ensure_elements(Self::NAME, "b", &self.b, matrices)?;
                self.check_rows("out", &self.out, second, rows, n)
            }
            GroupedProduct::InputGradient => {
                self.check_rows("a", &self.a, first, rows, n)?;
                ensure_elements(Self::NAME, "b", &self.b, matrices)?;
                self.check_rows("out", &self.out, second, rows, k)
            }
            GroupedProduct::WeightGradient => {
                self.check_rows("a", &self.a, first, rows, n)?;
                self.check_rows("b", &self.b, second, rows, k)?;
                ensure_elements(Self::NAME, "out", &self.out, matrices)
            }
        }
    }

    tensors! { read offsets, a, b; add[accumulate] out; read scales }

    fn flops(&self) -> f64 {
        2.0 * self.sizes().map(|size| size as f64).into_iter().product::<f64>()
    }

    fn shape(&self) -> String {
        let [rows, n, k] = self.sizes();
        format!("{rows} x {n} x {k}, {} experts", self.experts())
    }

    fn factor_type(&self) -> Option<DType> {
        Some(self.a.dtype)
    }
}
