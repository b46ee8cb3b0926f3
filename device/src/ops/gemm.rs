//! Matrix product.

use super::{Accesses, Fp8Matrix, Operation, Scale, ensure, ensure_dtype, ensure_elements, ensure_float};
use crate::{DType, Result, Tensor};

/// `out = epilogue(op(a) @ op(b))`, or `out += op(a) @ op(b)` with `accumulate`.
///
/// Every tensor is seen as a matrix `(rows, last axis)`. With `op(a)` of `(m, k)` and `op(b)` of `(k, n)`, `out` is
/// `(m, n)`. `transpose_a` means `a` is stored as `(k, m)`, `transpose_b` that `b` is stored as `(n, k)`.
/// Products accumulate in f32; `a` and `b` share one type, `out` may be f32 with bf16 factors (wgrad into `main_grad`).
///
/// The factors may also be [`Fp8Matrix`]es; see [`Gemm::fp8`].
#[derive(Clone, Debug)]
pub struct Gemm {
    /// `(m, k)`, or `(k, m)` when transposed.
    pub a: Tensor,
    /// `(k, n)`, or `(n, k)` when transposed.
    pub b: Tensor,
    /// `(m, n)`.
    pub out: Tensor,
    /// `a` is stored as `(k, m)`.
    pub transpose_a: bool,
    /// `b` is stored as `(n, k)`.
    pub transpose_b: bool,
    /// Add to `out` instead of overwriting it (beta = 1); goes with [`Epilogue::None`] only.
    pub accumulate: bool,
    /// What is done to the product before it is stored.
    pub epilogue: Epilogue,
    /// The scales of `a` and `b`; present if, and only if, these are of 8-bit types.
    pub fp8: Option<Fp8Scales>,
}

/// What a product of 8-bit factors has to know beyond them.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Scales {
    /// Of `a`. The addresses of scales are multiples of 16.
    pub a: Scale,
    /// Of `b`. Both factors have one scale each, or both have one for each row, or both have scales by block: for groups, or
    /// one of them for blocks. The last is for GPUs of compute capability 9.0.
    pub b: Scale,
    /// Faster, with partial sums of about 14 bits on GPUs of compute capability 9.0. Good enough for forward products. Not
    /// with scales by block.
    pub fast_accumulation: bool,
}

/// What a [`Gemm`] does to its product before storing it.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// Adds a bias `(n)` to every row.
    Bias(Tensor),
    /// `out = gelu(product + bias)`; `pre`, `(m, n)`, saves `product + bias` for the backward.
    BiasGelu {
        /// `(n)`.
        bias: Tensor,
        /// `(m, n)`, written.
        pre: Tensor,
    },
    /// `out = product * gelu'(pre)`: the input gradient through a GELU.
    GeluBackward {
        /// `(m, n)`, as the forward saved it.
        pre: Tensor,
        /// `(m, n)`, of `out`'s type, written if present: `gelu(pre)`, for a forward that did not save it.
        activated: Option<Tensor>,
    },
}

impl Gemm {
    /// `out = a @ b^T`: a linear layer, with `weight` stored as `(out features, in features)`.
    pub fn linear(input: Tensor, weight: Tensor, out: Tensor, epilogue: Epilogue) -> Gemm {
        Gemm { a: input, b: weight, out, transpose_a: false, transpose_b: true, accumulate: false, epilogue, fp8: None }
    }

    /// `grad_input = grad_output @ weight`: the input gradient (dgrad) of a linear layer.
    pub fn dgrad(grad_output: Tensor, weight: Tensor, grad_input: Tensor, epilogue: Epilogue) -> Gemm {
        Gemm {
            a: grad_output,
            b: weight,
            out: grad_input,
            transpose_a: false,
            transpose_b: false,
            accumulate: false,
            epilogue,
            fp8: None,
        }
    }

    /// `grad_weight (+)= grad_output^T @ input`: the weight gradient (wgrad) of a linear layer.
    pub fn wgrad(grad_output: Tensor, input: Tensor, grad_weight: Tensor, accumulate: bool) -> Gemm {
        Gemm {
            a: grad_output,
            b: input,
            out: grad_weight,
            transpose_a: true,
            transpose_b: false,
            accumulate,
            epilogue: Epilogue::None,
            fp8: None,
        }
    }

    /// `out = epilogue(a @ b^T)`, or `out += a @ b^T`, of 8-bit factors `(m, k)` and `(n, k)`. All sizes are multiples of 16.
    /// `out` is bf16 or f32. Not both factors may be [`DType::F8E5M2`].
    pub fn fp8(a: Fp8Matrix, b: Fp8Matrix, out: Tensor, fast_accumulation: bool) -> Gemm {
        let scales = Fp8Scales { a: a.scale, b: b.scale, fast_accumulation };
        Gemm { fp8: Some(scales), ..Gemm::linear(a.values, b.values, out, Epilogue::None) }
    }

    fn check_fp8(&self, scales: &Fp8Scales) -> Result<()> {
        let (m, n, k) = self.dimensions();
        for (name, values, scale, rows) in [("a", self.a, scales.a, m), ("b", self.b, scales.b, n)] {
            Fp8Matrix { values, scale }.check(Self::NAME, name, rows, k)?;
        }
        ensure(Self::NAME, !self.transpose_a && self.transpose_b, || {
            "8-bit factors are read along their rows: `b` is stored as (n, k), and `a` as (m, k)".into()
        })?;
        ensure(Self::NAME, [m, n, k].iter().all(|size| size.is_multiple_of(16)), || {
            format!("a product ({m}, {k}) x ({k}, {n}) of 8-bit factors needs sizes that are multiples of 16")
        })?;
        ensure(Self::NAME, matches!(self.epilogue, Epilogue::None | Epilogue::Bias(_)), || {
            "a product of 8-bit factors can only add a bias".into()
        })?;
        ensure(Self::NAME, self.a.dtype != DType::F8E5M2 || self.b.dtype != DType::F8E5M2, || {
            format!("both factors are {}; one of them may be", self.a.dtype)
        })?;
        ensure(Self::NAME, [scales.a, scales.b].iter().all(|scale| scale.tensor().address.is_multiple_of(16)), || {
            "scales begin at addresses that are multiples of 16".into()
        })?;
        use Scale::{Blocks, Groups, Rows, Tensor};
        let (pair, by_block) = match (&scales.a, &scales.b) {
            (Tensor(_), Tensor(_)) | (Rows(_), Rows(_)) => (true, false),
            (Groups(_), Groups(_) | Blocks(_)) | (Blocks(_), Groups(_)) => (true, true),
            _ => (false, false),
        };
        ensure(Self::NAME, pair, || {
            "both factors have one scale each, or both have one for each row, or one has scales for groups and the other \
             for groups or blocks"
                .into()
        })?;
        ensure(Self::NAME, !(by_block && scales.fast_accumulation), || {
            "a product of factors with scales by block accumulates precisely".into()
        })?;
        ensure_float(Self::NAME, &[("out", self.out)])
    }

    /// `(m, n, k)`.
    pub fn dimensions(&self) -> (usize, usize, usize) {
        let (m, k) = if self.transpose_a {
            (self.a.shape.last(), self.a.shape.rows())
        } else {
            (self.a.shape.rows(), self.a.shape.last())
        };
        let n = if self.transpose_b { self.b.shape.rows() } else { self.b.shape.last() };
        (m, n, k)
    }
}

impl Operation for Gemm {
    const NAME: &'static str = "gemm";

    fn check(&self) -> Result<()> {
        let (m, n, k) = self.dimensions();
        let k_b = if self.transpose_b { self.b.shape.last() } else { self.b.shape.rows() };
        ensure(Self::NAME, k == k_b, || {
            format!(
                "`a` {:?} and `b` {:?} do not share the inner size: {k} and {k_b} (transposed: {}, {})",
                self.a.shape, self.b.shape, self.transpose_a, self.transpose_b
            )
        })?;
        ensure(Self::NAME, self.out.shape.rows() == m && self.out.shape.last() == n, || {
            format!("`out` is {:?}, the product is ({m}, {n})", self.out.shape)
        })?;
        match &self.fp8 {
            Some(scales) => self.check_fp8(scales)?,
            None => {
                ensure_float(Self::NAME, &[("a", self.a), ("b", self.b)])?;
                if self.out.dtype != DType::F32 {
                    ensure_dtype(Self::NAME, "out", &self.out, self.a.dtype)?;
                }
            }
        }
        ensure(Self::NAME, !self.accumulate || matches!(self.epilogue, Epilogue::None), || {
            "an accumulating product takes no epilogue".into()
        })?;
        match self.epilogue {
            Epilogue::None => Ok(()),
            Epilogue::Bias(bias) => ensure_elements(Self::NAME, "bias", &bias, n),
            Epilogue::BiasGelu { bias, pre } => {
                ensure_elements(Self::NAME, "bias", &bias, n)?;
                ensure_dtype(Self::NAME, "pre", &pre, self.out.dtype)?;
                ensure_elements(Self::NAME, "pre", &pre, m * n)
            }
            Epilogue::GeluBackward { pre, activated } => {
                ensure_elements(Self::NAME, "pre", &pre, m * n)?;
                let Some(activated) = activated else { return Ok(()) };
                ensure_dtype(Self::NAME, "activated", &activated, self.out.dtype)?;
                ensure_elements(Self::NAME, "activated", &activated, m * n)
            }
        }
    }

    fn accesses(&self) -> Accesses {
        let scales = self.fp8.iter().flat_map(|scales| [scales.a.tensor(), scales.b.tensor()]);
        let base = Accesses::new([self.a, self.b], [self.out]).reads(self.accumulate.then_some(self.out)).reads(scales);
        match self.epilogue {
            Epilogue::None => base,
            Epilogue::Bias(bias) => base.reads([bias]),
            Epilogue::BiasGelu { bias, pre } => base.reads([bias]).writes([pre]),
            Epilogue::GeluBackward { pre, activated } => base.reads([pre]).writes(activated),
        }
    }
}
