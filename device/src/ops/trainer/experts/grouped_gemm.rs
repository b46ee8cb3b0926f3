//! Matrix products of each expert's rows.

use crate::ops::{Accesses, Operation, ensure, ensure_dtype, ensure_elements, ensure_float, visit_all};
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
    /// Adds to `out` instead of overwriting it. Only a weight gradient may.
    pub accumulate: bool,
}

impl GroupedGemm {
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

    /// Rows of all experts together, and the sizes `n` and `k` of a matrix.
    pub fn sizes(&self) -> [usize; 3] {
        let [all, k] = self.all_matrices();
        [self.a.shape.rows(), all / self.experts().max(1), k]
    }

    fn check_types(&self) -> Result<()> {
        let is_gradient = self.product == GroupedProduct::WeightGradient;
        let Some(scales) = self.scales else {
            ensure_float(Self::NAME, &[("a", self.a), ("b", self.b)])?;
            return ensure_dtype(Self::NAME, "out", &self.out, if is_gradient { DType::F32 } else { self.a.dtype });
        };
        ensure(Self::NAME, !is_gradient, || "a weight gradient has no 8-bit factors".into())?;
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
            ensure_dtype(Self::NAME, "scale", &scale, DType::F32)?;
            ensure_elements(Self::NAME, "scale", &scale, 1)?;
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
        let [rows, n, k] = self.sizes();
        let (a, b, out) = match self.product {
            GroupedProduct::Forward => (k, self.experts() * n * k, rows * n),
            GroupedProduct::InputGradient => (n, self.experts() * n * k, rows * k),
            GroupedProduct::WeightGradient => (n, rows * k, self.experts() * n * k),
        };
        ensure_elements(Self::NAME, "a", &self.a, rows * a)?;
        ensure_elements(Self::NAME, "b", &self.b, b)?;
        ensure_elements(Self::NAME, "out", &self.out, out)?;
        let is_gradient = self.product == GroupedProduct::WeightGradient;
        ensure(Self::NAME, is_gradient || !self.accumulate, || "only a weight gradient accumulates".into())
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.offsets, self.a, self.b], [self.out])
            .reads(self.accumulate.then_some(self.out))
            .reads(self.scales.into_iter().flatten())
    }

    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(visit, [&mut self.offsets, &mut self.a, &mut self.b, &mut self.out]);
        self.scales.iter_mut().flatten().for_each(visit);
    }

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
