//! Matrix product.

mod host;
#[cfg(feature = "cuda")]
mod launch;

use std::iter::once;

use crate::ops::{
    Accesses, Fp8Matrix, HasTensors, Operation, Scale, ensure, ensure_dtype, ensure_elements, ensure_float,
    ensure_values, tensors,
};
use crate::{DType, Result, Tensor};

/// `out = epilogue(alpha op(a) @ op(b))`, or `out += alpha op(a) @ op(b)` with `accumulate`.
///
/// Every tensor is seen as a matrix `(rows, last axis)`. With `op(a)` of `(m, k)` and `op(b)` of `(k, n)`, `out` is
/// `(m, n)`. `transpose_a` means `a` is stored as `(k, m)`, `transpose_b` that `b` is stored as `(n, k)`.
/// Products accumulate in f32; `a` and `b` share one type, `out` may be f32 with bf16 factors (wgrad into `main_grad`).
///
/// A matrix may also be some [`Columns`] of a wider tensor. The factors may also be [`Fp8Matrix`]es; see [`Gemm::fp8`].
#[derive(Clone, Debug, PartialEq)]
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
    /// The product is multiplied by this.
    pub alpha: f32,
    /// Add to `out` instead of overwriting it (beta = 1); goes with [`Epilogue::None`] only.
    pub accumulate: bool,
    /// The columns of the three tensors that are the matrices.
    pub columns: GemmColumns,
    /// The last part of the product, applied before the result is stored.
    pub epilogue: Epilogue,
    /// The scales of `a` and `b`; present if, and only if, these are of 8-bit types.
    pub fp8: Option<Fp8Scales>,
}

/// Neighbouring columns of a tensor, seen as a matrix `(rows, last axis)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Columns {
    /// The first one.
    pub first: usize,
    /// The matrices' number.
    pub count: usize,
}

/// The columns of a [`Gemm`]'s tensors that are its matrices; `None` for all. Other columns of `out` keep their values.
/// Not with an epilogue, and not with 8-bit factors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GemmColumns {
    /// The columns of `a`, as `a` is stored.
    pub a: Option<Columns>,
    /// The columns of `b`, as `b` is stored.
    pub b: Option<Columns>,
    /// The columns of `out`.
    pub out: Option<Columns>,
}

impl GemmColumns {
    /// The matrices are the whole tensors.
    pub const ALL: GemmColumns = GemmColumns { a: None, b: None, out: None };
}

/// A matrix within a tensor: element `(r, c)` is the tensor's element `first + r * stride + c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixPlace {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) first: usize,
    pub(crate) stride: usize,
}

impl MatrixPlace {
    pub(crate) fn of(tensor: &Tensor, columns: Option<Columns>) -> MatrixPlace {
        let (rows, stride) = (tensor.shape.rows(), tensor.shape.last());
        let Columns { first, count } = columns.unwrap_or(Columns { first: 0, count: stride });
        MatrixPlace { rows, columns: count, first, stride }
    }

    /// The address of the matrix's first element, if the matrix lies in `tensor`.
    pub(crate) fn address(&self, tensor: &Tensor) -> u64 {
        tensor.address + (self.first * tensor.dtype.size()) as u64
    }
}

/// The settings of a product of 8-bit factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl HasTensors for Fp8Scales {
    tensors! { a, b }
}

/// The last part of a [`Gemm`], applied to the product before it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
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

impl HasTensors for Epilogue {
    fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor)) {
        match self {
            Epilogue::None => {}
            Epilogue::Bias(bias) => each(bias),
            Epilogue::BiasGelu { bias, pre } => [bias, pre].into_iter().for_each(each),
            Epilogue::GeluBackward { pre, activated } => once(pre).chain(activated).for_each(each),
        }
    }
}

impl Gemm {
    /// `out = a @ b`.
    pub fn plain(a: Tensor, b: Tensor, out: Tensor) -> Gemm {
        Gemm {
            a,
            b,
            out,
            transpose_a: false,
            transpose_b: false,
            alpha: 1.0,
            accumulate: false,
            columns: GemmColumns::ALL,
            epilogue: Epilogue::None,
            fp8: None,
        }
    }

    /// `out = a @ b^T`: a linear layer, with `weight` stored as `(out features, in features)`.
    pub fn linear(input: Tensor, weight: Tensor, out: Tensor, epilogue: Epilogue) -> Gemm {
        let (a, b) = (input, weight);
        Gemm { transpose_b: true, epilogue, ..Gemm::plain(a, b, out) }
    }

    /// `grad_input = grad_output @ weight`: the input gradient (dgrad) of a linear layer.
    pub fn dgrad(grad_output: Tensor, weight: Tensor, grad_input: Tensor, epilogue: Epilogue) -> Gemm {
        Gemm { epilogue, ..Gemm::plain(grad_output, weight, grad_input) }
    }

    /// `grad_weight (+)= grad_output^T @ input`: the weight gradient (wgrad) of a linear layer.
    pub fn wgrad(grad_output: Tensor, input: Tensor, grad_weight: Tensor, accumulate: bool) -> Gemm {
        Gemm { transpose_a: true, accumulate, ..Gemm::plain(grad_output, input, grad_weight) }
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

    /// The matrices `a`, `b` and `out` as they are stored.
    pub(crate) fn places(&self) -> [MatrixPlace; 3] {
        let GemmColumns { a, b, out } = self.columns;
        [MatrixPlace::of(&self.a, a), MatrixPlace::of(&self.b, b), MatrixPlace::of(&self.out, out)]
    }

    /// `(m, n, k)`.
    pub fn dimensions(&self) -> (usize, usize, usize) {
        let [a, b, _] = self.places();
        let (m, k) = if self.transpose_a { (a.columns, a.rows) } else { (a.rows, a.columns) };
        let n = if self.transpose_b { b.rows } else { b.columns };
        (m, n, k)
    }

    fn check_columns(&self) -> Result<()> {
        if self.columns == GemmColumns::ALL {
            return Ok(());
        }
        ensure(Self::NAME, self.fp8.is_none() && matches!(self.epilogue, Epilogue::None), || {
            "a product of some columns takes no epilogue, and no 8-bit factors".into()
        })?;
        for (name, place) in ["a", "b", "out"].into_iter().zip(self.places()) {
            ensure(Self::NAME, place.first + place.columns <= place.stride, || {
                let end = place.first + place.columns;
                format!("`{name}` has {} columns, the product takes {}..{end}", place.stride, place.first)
            })?;
        }
        Ok(())
    }
}

impl Gemm {
    /// Rows, columns and inner size.
    pub fn sizes(&self) -> [usize; 3] {
        let (rows, columns, inner) = self.dimensions();
        [rows, columns, inner]
    }

    /// Bytes that the epilogue reads and writes besides the product's.
    pub fn epilogue_bytes(&self) -> usize {
        match &self.epilogue {
            Epilogue::None | Epilogue::Bias(_) => 0,
            Epilogue::BiasGelu { pre, .. } => pre.bytes(),
            Epilogue::GeluBackward { pre, activated } => pre.bytes() + activated.map_or(0, |out| out.bytes()),
        }
    }
}

impl Operation for Gemm {
    const NAME: &'static str = "gemm";

    fn check(&self) -> Result<()> {
        self.check_columns()?;
        let (m, n, k) = self.dimensions();
        let [_, b, out] = self.places();
        let k_b = if self.transpose_b { b.columns } else { b.rows };
        ensure(Self::NAME, k == k_b, || {
            format!(
                "`a` {:?} and `b` {:?} do not share the inner size: {k} and {k_b} (transposed: {}, {})",
                self.a.shape, self.b.shape, self.transpose_a, self.transpose_b
            )
        })?;
        ensure(Self::NAME, out.rows == m && out.columns == n, || {
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
                ensure_values(Self::NAME, "pre", &pre, self.out.dtype, m * n)
            }
            Epilogue::GeluBackward { pre, activated } => {
                ensure_elements(Self::NAME, "pre", &pre, m * n)?;
                let Some(activated) = activated else { return Ok(()) };
                ensure_values(Self::NAME, "activated", &activated, self.out.dtype, m * n)
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

    tensors! { a, b, out, epilogue, fp8 }

    fn flops(&self) -> f64 {
        2.0 * self.sizes().map(|size| size as f64).into_iter().product::<f64>()
    }

    fn bytes(&self) -> f64 {
        let tensors = [self.a, self.b, self.out];
        let bytes = |(place, tensor): (MatrixPlace, Tensor)| place.rows * place.columns * tensor.dtype.size();
        let [a, b, out] = [0, 1, 2].map(|at| bytes((self.places()[at], tensors[at])));
        let outputs = out * if self.accumulate { 2 } else { 1 };
        (a + b + outputs + self.epilogue_bytes()) as f64
    }

    fn shape(&self) -> String {
        let [rows, columns, inner] = self.sizes();
        format!("{rows} x {columns} x {inner}")
    }

    fn factor_type(&self) -> Option<DType> {
        Some(self.a.dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Add;
    use crate::{BufferId, Op};

    #[test]
    fn a_product_counts_its_multiplications_and_an_accumulated_output_twice() {
        let tensor =
            |sizes: [usize; 2], dtype| Tensor { address: 16, shape: sizes.into(), dtype, buffer: BufferId::NOTHING };
        let (input, weight) = (tensor([8, 4], DType::Bf16), tensor([6, 4], DType::Bf16));
        let forward: Op = Gemm::linear(input, weight, tensor([8, 6], DType::Bf16), Epilogue::None).into();
        assert_eq!((forward.flops(), forward.shape().as_str()), (2.0 * 8.0 * 6.0 * 4.0, "8 x 6 x 4"));
        assert_eq!(forward.bytes(), (2 * (8 * 4 + 6 * 4 + 8 * 6)) as f64);
        assert_eq!(forward.factor_type(), Some(DType::Bf16));
        let (grad_output, grad_weight) = (tensor([8, 6], DType::Bf16), tensor([6, 4], DType::F32));
        let wgrad: Op = Gemm::wgrad(grad_output, input, grad_weight, true).into();
        assert_eq!((wgrad.flops(), wgrad.shape().as_str()), (forward.flops(), "6 x 4 x 8"));
        assert_eq!(wgrad.bytes(), (2 * (8 * 4 + 8 * 6) + 2 * 4 * 6 * 4) as f64);
        let sum: Op = Add { a: input, b: input, output: input }.into();
        assert_eq!((sum.flops(), sum.bytes(), sum.shape().as_str()), (0.0, (3 * 2 * 8 * 4) as f64, "8 x 4"));
    }
}
