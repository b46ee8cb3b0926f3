//! Normalisation of queries and keys, head by head.

use crate::ops::{Operation, ensure, ensure_dtype, ensure_float, ensure_heads, ensure_shape, tensors};
use crate::{DType, Result, Tensor};

/// Channels of a head, at most: as many as the CUDA kernels keep in registers.
const MOST_CHANNELS: usize = 512;

/// RMSNorm of each query and key head of a packed QKV tensor (Henry et al., 2020; by head as in Qwen3), then the rotation of
/// [`Rotary`](crate::ops::Rotary). Nothing is rounded in between.
///
/// Each row holds `[query heads | key heads | value heads]`. Values are copied.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadNorm {
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`.
    pub input: Tensor,
    /// As `input`, written.
    pub output: Tensor,
    /// `(head_dim)`: the weight that all query heads share.
    pub query_weight: Tensor,
    /// `(head_dim)`: the weight that all key heads share.
    pub key_weight: Tensor,
    /// Added to both weights, in f32; see [`NormKind::weight_offset`](crate::ops::NormKind::weight_offset).
    pub weight_offset: f32,
    /// `(seq, head_dim / 2, 2)`, f32: cosines and sines. `None`: nothing is rotated.
    pub table: Option<Tensor>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// Checks that both directions share. `other` is the packed tensor beside `input`.
fn check(
    op: &'static str,
    input: &Tensor,
    other: (&str, Tensor),
    weights: [Tensor; 2],
    table: Option<Tensor>,
    (heads, kv_heads): (usize, usize),
) -> Result<()> {
    ensure_heads(op, heads, kv_heads)?;
    let [query_weight, key_weight] = weights;
    let floats = [("input", *input), other, ("query_weight", query_weight), ("key_weight", key_weight)];
    ensure_float(op, &floats)?;
    let (sizes, groups) = (input.shape.sizes(), heads + 2 * kv_heads);
    ensure(op, sizes.len() == 3 && sizes[2].is_multiple_of(2 * groups) && sizes[2] / groups <= MOST_CHANNELS, || {
        format!(
            "`input` is {:?}, needs (batch, seq, {groups} * head_dim) with an even head_dim, at most {MOST_CHANNELS}",
            input.shape
        )
    })?;
    let head_dim = sizes[2] / groups;
    ensure_shape(op, other.0, &other.1, sizes)?;
    ensure_shape(op, "query_weight", &query_weight, &[head_dim])?;
    ensure_shape(op, "key_weight", &key_weight, &[head_dim])?;
    let Some(table) = table else { return Ok(()) };
    ensure_dtype(op, "table", &table, DType::F32)?;
    ensure_shape(op, "table", &table, &[sizes[1], head_dim / 2, 2])
}

impl Operation for HeadNorm {
    const NAME: &'static str = "head_norm";

    fn check(&self) -> Result<()> {
        let weights = [self.query_weight, self.key_weight];
        check(Self::NAME, &self.input, ("output", self.output), weights, self.table, (self.heads, self.kv_heads))
    }

    tensors! { read input; write output; read query_weight, key_weight, table }
}

/// Gradient of [`HeadNorm`], and the gradients of its weights: sums over all rows and heads, in f32, in a fixed order.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadNormBackward {
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`, the forward's input.
    pub input: Tensor,
    /// As `input`, updated in place: from the gradient of the forward's output to that of its input.
    pub grad: Tensor,
    /// `(head_dim)`.
    pub query_weight: Tensor,
    /// `(head_dim)`.
    pub key_weight: Tensor,
    /// The forward's.
    pub weight_offset: f32,
    /// The forward's.
    pub table: Option<Tensor>,
    /// `(head_dim)`, f32; `None` if the weight is frozen.
    pub grad_query_weight: Option<Tensor>,
    /// `(head_dim)`, f32; `None` if the weight is frozen.
    pub grad_key_weight: Option<Tensor>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// The forward's.
    pub eps: f32,
    /// Add to the gradients of the weights instead of overwriting them.
    pub accumulate: bool,
}

impl Operation for HeadNormBackward {
    const NAME: &'static str = "head_norm_backward";

    fn check(&self) -> Result<()> {
        let weights = [self.query_weight, self.key_weight];
        check(Self::NAME, &self.input, ("grad", self.grad), weights, self.table, (self.heads, self.kv_heads))?;
        for (name, tensor, weight) in [
            ("grad_query_weight", self.grad_query_weight, self.query_weight),
            ("grad_key_weight", self.grad_key_weight, self.key_weight),
        ] {
            let Some(tensor) = tensor else { continue };
            ensure_dtype(Self::NAME, name, &tensor, DType::F32)?;
            ensure_shape(Self::NAME, name, &tensor, weight.shape.sizes())?;
        }
        Ok(())
    }

    tensors! {
        read input; update grad; read query_weight, key_weight, table; add[accumulate] grad_query_weight, grad_key_weight
    }
}
