//! Causal attention as graphs of cuDNN operations, forward and backward. cuDNN finds its fused kernels by pattern, so
//! these are the patterns that NVIDIA's own frontend builds. The order of operations, which tensors have memory, and
//! the strides are all part of a pattern.

use cudarc::cudnn::sys::cudnnPointwiseMode_t as Pointwise;
use cudarc::cudnn::sys::cudnnReduceTensorOp_t::{CUDNN_REDUCE_TENSOR_ADD as SUM, CUDNN_REDUCE_TENSOR_MAX as MAXIMUM};

use super::graph::{BF16, F32, GraphTensor, OperationGraph, TensorLayout};
use crate::Result;

/// Numbers of the tensors that have memory, for the variant pack.
pub(super) mod number {
    pub(in crate::cuda::cudnn) const QUERY: i64 = 1;
    pub(in crate::cuda::cudnn) const KEY: i64 = 2;
    pub(in crate::cuda::cudnn) const VALUE: i64 = 3;
    pub(in crate::cuda::cudnn) const OUTPUT: i64 = 4;
    pub(in crate::cuda::cudnn) const STATS: i64 = 5;
    pub(in crate::cuda::cudnn) const GRAD_OUTPUT: i64 = 6;
    pub(in crate::cuda::cudnn) const GRAD_QUERY: i64 = 7;
    pub(in crate::cuda::cudnn) const GRAD_KEY: i64 = 8;
    pub(in crate::cuda::cudnn) const GRAD_VALUE: i64 = 9;
    /// f32 `(batch, heads, seq)`, scratch: row sums of grad_output * output.
    pub(in crate::cuda::cudnn) const DELTA: i64 = 10;
    /// f32 `(batch, heads, seq, dim)`, scratch: sums of the gradients of queries.
    pub(in crate::cuda::cudnn) const GRAD_QUERY_SUM: i64 = 11;
    /// Host scalar: what products are multiplied by.
    pub(in crate::cuda::cudnn) const SCALE: i64 = 12;
    /// Host scalar: -inf, the value of masked scores.
    pub(in crate::cuda::cudnn) const MASKED: i64 = 13;
    /// Host scalar: 1.
    pub(in crate::cuda::cudnn) const ONE: i64 = 14;
    /// Host scalar: keys that a query sees at most.
    pub(in crate::cuda::cudnn) const WINDOW: i64 = 15;
}

/// The sizes of a packed attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GraphSizes {
    pub(super) batch: i64,
    pub(super) seq: i64,
    pub(super) heads: i64,
    pub(super) kv_heads: i64,
    pub(super) dim: i64,
    /// Keys that a query sees at most, its own among them; fewer than `seq`. `None` for all up to its own.
    pub(super) window: Option<i64>,
}

impl GraphSizes {
    /// `heads` heads that lie in rows of `width` elements, as `(batch, heads, seq, dim)`.
    fn in_rows_of(&self, heads: i64, width: i64) -> TensorLayout {
        TensorLayout { sizes: [self.batch, heads, self.seq, self.dim], strides: [self.seq * width, self.dim, width, 1] }
    }

    /// Queries within packed QKV.
    fn queries(&self) -> TensorLayout {
        self.in_rows_of(self.heads, self.packed_width())
    }

    /// Keys or values within packed QKV.
    fn keys(&self) -> TensorLayout {
        self.in_rows_of(self.kv_heads, self.packed_width())
    }

    fn output(&self) -> TensorLayout {
        self.in_rows_of(self.heads, self.heads * self.dim)
    }

    /// `(batch, heads, seq, dim)`, dense in that order.
    fn dense_queries(&self) -> TensorLayout {
        TensorLayout::dense(self.queries().sizes)
    }

    fn scores(&self) -> TensorLayout {
        TensorLayout::dense([self.batch, self.heads, self.seq, self.seq])
    }

    /// One number per row of scores.
    fn rows(&self) -> TensorLayout {
        TensorLayout::dense([self.batch, self.heads, self.seq, 1])
    }

    /// Elements of a row of packed QKV.
    fn packed_width(&self) -> i64 {
        (self.heads + 2 * self.kv_heads) * self.dim
    }

    /// Where queries, keys and values start in a row of packed QKV, in elements.
    pub(super) fn packed_offsets(&self) -> [u64; 3] {
        [0, self.heads * self.dim, (self.heads + self.kv_heads) * self.dim].map(|offset| offset as u64)
    }
}

/// Forward: 14 operations, and five more with a window.
pub(super) fn forward(sizes: &GraphSizes) -> Result<OperationGraph> {
    let mut graph = OperationGraph::default();
    let g = &mut graph;
    let (scores, rows) = (sizes.scores(), sizes.rows());
    let query = g.real(number::QUERY, BF16, sizes.queries())?;
    let key = g.real(number::KEY, BF16, sizes.keys().transposed())?;
    let value = g.real(number::VALUE, BF16, sizes.keys())?;
    let output = g.real(number::OUTPUT, BF16, sizes.output())?;
    let stats = g.real(number::STATS, F32, rows)?;
    let scale = g.scalar(number::SCALE)?;
    let masked = g.scalar(number::MASKED)?;

    let product = g.inner(F32, scores)?;
    g.matmul(query, key, product)?;
    let scaled = g.inner(F32, scores)?;
    g.binary(Pointwise::CUDNN_POINTWISE_MUL, product, scale, scaled)?;
    let seen = mask(g, sizes, scaled, masked)?;

    let highest = g.inner(F32, rows)?;
    g.reduce(MAXIMUM, seen, highest)?;
    let shifted = g.inner(F32, scores)?;
    g.binary(Pointwise::CUDNN_POINTWISE_SUB, seen, highest, shifted)?;
    let exponential = g.inner(F32, scores)?;
    g.unary(Pointwise::CUDNN_POINTWISE_EXP, shifted, exponential)?;
    let total = g.inner(F32, rows)?;
    g.reduce(SUM, exponential, total)?;
    let log = g.inner(F32, rows)?;
    g.unary(Pointwise::CUDNN_POINTWISE_LOG, total, log)?;
    g.binary(Pointwise::CUDNN_POINTWISE_ADD, highest, log, stats)?;
    let probabilities = g.inner(BF16, scores)?;
    g.binary(Pointwise::CUDNN_POINTWISE_DIV, exponential, total, probabilities)?;
    g.matmul(probabilities, value, output)?;
    Ok(graph)
}

/// Backward: 22 operations, two more with fewer key heads, and five more with a window. Without `deterministic` the gradient of queries is first
/// added up in f32 by atomics. With it, that operation is left out, and the gradients of all scores take memory.
pub(super) fn backward(sizes: &GraphSizes, deterministic: bool) -> Result<OperationGraph> {
    let mut graph = OperationGraph::default();
    let g = &mut graph;
    let (scores, rows) = (sizes.scores(), sizes.rows());
    let query = g.real(number::QUERY, BF16, sizes.queries())?;
    let key = g.real(number::KEY, BF16, sizes.keys().transposed())?;
    let value = g.real(number::VALUE, BF16, sizes.keys().transposed())?;
    let output = g.real(number::OUTPUT, BF16, sizes.output())?;
    let stats = g.real(number::STATS, F32, rows)?;
    let grad_output = g.real(number::GRAD_OUTPUT, BF16, sizes.output())?;
    let grad_query = g.real(number::GRAD_QUERY, BF16, sizes.queries())?;
    let grad_key = g.real(number::GRAD_KEY, BF16, sizes.keys())?;
    let grad_value = g.real(number::GRAD_VALUE, BF16, sizes.keys())?;
    let delta = g.real(number::DELTA, F32, rows)?;
    let scale = g.scalar(number::SCALE)?;
    let masked = g.scalar(number::MASKED)?;
    let one = g.scalar(number::ONE)?;

    // delta = row sums of grad_output * output. The product has no memory; its strides are those that the frontend
    // sends.
    let GraphSizes { seq, heads, dim, .. } = *sizes;
    let strides = [heads * seq * dim, seq * dim, heads * dim, 1];
    let elementwise = g.inner(F32, TensorLayout { strides, ..sizes.output() })?;
    g.binary(Pointwise::CUDNN_POINTWISE_MUL, grad_output, output, elementwise)?;
    let row_sums = g.inner(F32, rows)?;
    g.reduce(SUM, elementwise, row_sums)?;
    g.binary(Pointwise::CUDNN_POINTWISE_MUL, row_sums, one, delta)?;

    // The probabilities, recomputed. Here the mask comes after the statistics.
    let product = g.inner(F32, scores)?;
    g.matmul(query, key, product)?;
    let scaled = g.inner(F32, scores)?;
    g.binary(Pointwise::CUDNN_POINTWISE_MUL, product, scale, scaled)?;
    let shifted = g.inner(F32, scores)?;
    g.binary(Pointwise::CUDNN_POINTWISE_SUB, scaled, stats, shifted)?;
    let seen = mask(g, sizes, shifted, masked)?;
    let probabilities = g.inner(F32, scores)?;
    g.unary(Pointwise::CUDNN_POINTWISE_EXP, seen, probabilities)?;

    // grad_value = probabilities^T grad_output
    let transposed = g.inner(BF16, scores.transposed())?;
    g.reshape(probabilities, transposed)?;
    matmul_by_group(g, sizes, transposed, grad_output, grad_value)?;

    // grad_scores = (grad_output value^T - delta) * probabilities * scale
    let grad_probabilities = g.inner(F32, scores)?;
    g.matmul(grad_output, value, grad_probabilities)?;
    let centred = g.inner(F32, scores)?;
    g.binary(Pointwise::CUDNN_POINTWISE_SUB, grad_probabilities, delta, centred)?;
    let weighted = g.inner(F32, scores)?;
    g.binary(Pointwise::CUDNN_POINTWISE_MUL, centred, probabilities, weighted)?;
    let grad_scores = g.inner(F32, scores)?;
    g.binary(Pointwise::CUDNN_POINTWISE_MUL, weighted, scale, grad_scores)?;

    // grad_key = grad_scores^T query
    let transposed = g.inner(BF16, scores.transposed())?;
    g.reshape(grad_scores, transposed)?;
    matmul_by_group(g, sizes, transposed, query, grad_key)?;

    // grad_query = grad_scores key
    let key_rows = g.inner(F32, sizes.keys())?;
    g.reshape(key, key_rows)?;
    if deterministic {
        g.matmul(grad_scores, key_rows, grad_query)?;
    } else {
        let sum = g.real(number::GRAD_QUERY_SUM, F32, sizes.dense_queries())?;
        g.matmul(grad_scores, key_rows, sum)?;
        g.unary(Pointwise::CUDNN_POINTWISE_IDENTITY, sum, grad_query)?;
    }
    Ok(graph)
}

/// `scores` where a query sees the key, else `masked`.
fn mask(g: &mut OperationGraph, sizes: &GraphSizes, scores: GraphTensor, masked: GraphTensor) -> Result<GraphTensor> {
    let layout = sizes.scores();
    let causal = g.inner(F32, layout)?;
    g.causal(layout, scores, masked, causal)?;
    if sizes.window.is_none() {
        return Ok(causal);
    }
    let window = g.scalar(number::WINDOW)?;
    let seen = g.inner(F32, layout)?;
    g.window(layout, causal, window, masked, seen)?;
    Ok(seen)
}

/// `to = a @ b`, summed over the query heads that share a key head.
fn matmul_by_group(
    g: &mut OperationGraph,
    sizes: &GraphSizes,
    a: GraphTensor,
    b: GraphTensor,
    to: GraphTensor,
) -> Result<()> {
    if sizes.heads == sizes.kv_heads {
        return g.matmul(a, b, to);
    }
    let of_each_head = g.inner(BF16, sizes.dense_queries())?;
    g.matmul(a, b, of_each_head)?;
    g.reduce(SUM, of_each_head, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_packed_rows() {
        let sizes = GraphSizes { batch: 2, seq: 5, heads: 4, kv_heads: 2, dim: 8, window: None };
        assert_eq!(sizes.packed_offsets(), [0, 32, 48]);
        assert_eq!(sizes.queries(), TensorLayout { sizes: [2, 4, 5, 8], strides: [5 * 64, 8, 64, 1] });
        assert_eq!(sizes.keys().transposed(), TensorLayout { sizes: [2, 2, 8, 5], strides: [5 * 64, 8, 1, 64] });
        assert_eq!(sizes.output(), TensorLayout { sizes: [2, 4, 5, 8], strides: [5 * 32, 8, 32, 1] });
        assert_eq!(sizes.rows(), TensorLayout { sizes: [2, 4, 5, 1], strides: [20, 5, 1, 1] });
        assert_eq!(sizes.scores().transposed(), TensorLayout { sizes: [2, 4, 5, 5], strides: [100, 25, 1, 5] });
    }
}
