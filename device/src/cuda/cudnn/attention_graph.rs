//! Causal attention as graphs of cuDNN operations, forward and backward. cuDNN finds its fused kernels by pattern, so
//! these are the patterns that NVIDIA's own frontend builds. The order of operations, the choice of tensors with memory
//! and the strides are all part of a pattern.

use cudarc::cudnn::sys::cudnnPointwiseMode_t as Pointwise;
use cudarc::cudnn::sys::cudnnReduceTensorOp_t::{CUDNN_REDUCE_TENSOR_ADD as SUM, CUDNN_REDUCE_TENSOR_MAX as MAXIMUM};

use super::graph::{BF16, Extent, F32, GraphTensor, OperationGraph, TensorLayout};
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
    /// Host scalar: the factor of the products of queries and keys.
    pub(in crate::cuda::cudnn) const SCALE: i64 = 12;
    /// Host scalar: -inf, the value of masked scores.
    pub(in crate::cuda::cudnn) const MASKED: i64 = 13;
    /// Host scalar: 1.
    pub(in crate::cuda::cudnn) const ONE: i64 = 14;
    /// Host scalar: keys that a query sees at most.
    pub(in crate::cuda::cudnn) const WINDOW: i64 = 15;
    /// i32 `(documents)`, twice: tokens of each document, as lengths of queries and of keys.
    pub(in crate::cuda::cudnn) const LENGTHS: [i64; 2] = [16, 17];
    /// `(documents + 1)`, i32 or i64, three times: the offsets of documents in packed rows, for queries, keys and values.
    pub(in crate::cuda::cudnn) const PACKED_OFFSETS: [i64; 3] = [18, 19, 20];
    /// The same: the offsets of documents in the output.
    pub(in crate::cuda::cudnn) const OUTPUT_OFFSETS: i64 = 21;
    /// The same: the offsets of documents in the statistics.
    pub(in crate::cuda::cudnn) const STATS_OFFSETS: i64 = 22;
    /// bf16, scratch: the gradients of keys and of values, for each query head.
    pub(in crate::cuda::cudnn) const HEAD_GRADS: [i64; 2] = [23, 24];
    /// Host scalars, i32: the numbers of keys and of queries.
    pub(in crate::cuda::cudnn) const KEYS_AND_QUERIES: [i64; 2] = [25, 26];
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
    /// The largest number of documents in a sample. Tensors are then ragged, and each document is an item of their first
    /// axis. `None` if a sample is one document.
    pub(super) documents: Option<i64>,
    /// The queries are a part of a sequence, whose keys and values lie in rows of their own.
    pub(super) part: Option<PartSizes>,
}

/// The sizes of an attention of a part of the queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PartSizes {
    /// Tokens of a sample in the rows of queries.
    pub(super) tokens: i64,
    /// Tokens of a sample in the rows of keys.
    pub(super) whole: i64,
    /// The first keys of a sample: those that some query sees.
    pub(super) keys: i64,
    pub(super) sees: Sees,
}

/// The keys that a query of a part sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sees {
    /// The keys up to the query's own: the last query sees the last key.
    UpToOwn,
    /// All keys.
    All,
}

/// The lengths of all documents, and their offsets in the ragged tensors, in elements.
struct Ragged {
    /// The number of queries and the number of keys. cuDNN wants both, and they are the same.
    lengths: [GraphTensor; 2],
    /// Offsets in queries, keys and values.
    packed: [GraphTensor; 3],
    output: GraphTensor,
    stats: GraphTensor,
}

impl Ragged {
    fn new(g: &mut OperationGraph, sizes: &GraphSizes) -> Result<Ragged> {
        let items = sizes.items();
        let mut offsets = |number| match sizes.has_wide_offsets() {
            true => g.wide_integers(number, items + 1),
            false => g.integers(number, items + 1),
        };
        let [queries, keys] = number::LENGTHS;
        let [query, key, value] = number::PACKED_OFFSETS;
        let packed = [offsets(query)?, offsets(key)?, offsets(value)?];
        let (output, stats) = (offsets(number::OUTPUT_OFFSETS)?, offsets(number::STATS_OFFSETS)?);
        Ok(Ragged { lengths: [g.integers(queries, items)?, g.integers(keys, items)?], packed, output, stats })
    }
}

/// The ragged form of a graph's tensors; empty if samples are single documents.
struct Offsets(Option<Ragged>);

impl Offsets {
    fn packed(&self, at: usize) -> Option<GraphTensor> {
        self.0.as_ref().map(|ragged| ragged.packed[at])
    }

    fn output(&self) -> Option<GraphTensor> {
        self.0.as_ref().map(|ragged| ragged.output)
    }

    fn stats(&self) -> Option<GraphTensor> {
        self.0.as_ref().map(|ragged| ragged.stats)
    }

    /// The extent of a product `(m, n)` of sums over `k`. An axis that runs over [`QUERIES`] or [`KEYS`] ends with the document;
    /// an axis of channels is `None`.
    fn extent(&self, m: Option<usize>, n: Option<usize>, k: Option<usize>) -> Extent {
        let Some(Ragged { lengths, .. }) = &self.0 else { return Extent::default() };
        let length = |axis: Option<usize>| axis.map(|axis| lengths[axis]);
        Extent { m: length(m), n: length(n), k: length(k), pads: false }
    }
}

impl GraphSizes {
    /// `heads` heads that lie in rows of `width` elements, as `(batch, heads, seq, dim)`.
    fn in_rows_of(&self, heads: i64, width: i64) -> TensorLayout {
        TensorLayout {
            sizes: [self.items(), heads, self.seq, self.dim],
            strides: [self.tokens() * width, self.dim, width, 1],
        }
    }

    /// Tokens of a sample in the rows of queries.
    pub(super) fn tokens(&self) -> i64 {
        self.part.map_or(self.seq, |part| part.tokens)
    }

    /// The keys that some query sees.
    pub(super) fn seen_keys(&self) -> i64 {
        self.part.map_or(self.seq, |part| part.keys)
    }

    /// Whether the first query sees keys before its own, and none after it.
    pub(super) fn begins_later(&self) -> bool {
        !self.sees_all() && self.seen_keys() > self.seq
    }

    /// Whether every query sees every key.
    pub(super) fn sees_all(&self) -> bool {
        self.part.is_some_and(|part| part.sees == Sees::All)
    }

    /// The window as a graph takes it: its mask counts columns from the first key, and rows from the first query.
    pub(super) fn shifted_window(&self) -> Option<i64> {
        self.window.map(|window| window - (self.seen_keys() - self.seq))
    }

    /// Items of the first axis: samples, or places for documents.
    pub(super) fn items(&self) -> i64 {
        self.batch * self.documents.unwrap_or(1)
    }

    /// Queries within packed QKV.
    fn queries(&self) -> TensorLayout {
        self.in_rows_of(self.heads, self.packed_width())
    }

    /// Keys or values within packed QKV, or in rows of their own.
    fn keys(&self) -> TensorLayout {
        let Some(PartSizes { whole, keys, .. }) = self.part else {
            return self.in_rows_of(self.kv_heads, self.packed_width());
        };
        let width = 2 * self.kv_heads * self.dim;
        TensorLayout {
            sizes: [self.items(), self.kv_heads, keys, self.dim],
            strides: [whole * width, self.dim, width, 1],
        }
    }

    fn output(&self) -> TensorLayout {
        self.in_rows_of(self.heads, self.heads * self.dim)
    }

    /// `(batch, heads, seq, dim)`, dense in that order.
    fn dense_queries(&self) -> TensorLayout {
        TensorLayout::dense(self.queries().sizes)
    }

    fn scores(&self) -> TensorLayout {
        TensorLayout::dense([self.items(), self.heads, self.seq, self.seen_keys()])
    }

    /// One number per row of scores.
    fn rows(&self) -> TensorLayout {
        let tokens = self.tokens();
        TensorLayout { sizes: [self.items(), self.heads, self.seq, 1], strides: [self.heads * tokens, tokens, 1, 1] }
    }

    /// The gradients of keys or values by query head, before each group of query heads is summed. With documents they lie in
    /// memory. Their offsets are then those of packed rows, so a row is as many packed rows long as a group has heads.
    fn key_grads_of_query_heads(&self) -> TensorLayout {
        match self.documents {
            None => TensorLayout::dense([self.items(), self.heads, self.seen_keys(), self.dim]),
            Some(_) => self.in_rows_of(self.heads, self.head_grads_width()),
        }
    }

    /// Elements of a row of [`GraphSizes::key_grads_of_query_heads`] for documents.
    pub(super) fn head_grads_width(&self) -> i64 {
        self.packed_width() * (self.heads / self.kv_heads)
    }

    /// Whether the offsets of documents need 64 bits: those in the longest rows, which [`GraphSizes::head_grads_width`]
    /// says, are counted in elements.
    pub(super) fn has_wide_offsets(&self) -> bool {
        self.documents.is_some() && self.batch * self.seq * self.head_grads_width() >= i64::from(i32::MAX)
    }

    /// Adds the tensors with lengths and offsets of documents.
    fn offsets(&self, g: &mut OperationGraph) -> Result<Offsets> {
        Ok(Offsets(self.documents.map(|_| Ragged::new(g, self)).transpose()?))
    }

    /// Elements of a row of packed QKV.
    pub(super) fn packed_width(&self) -> i64 {
        (self.heads + 2 * self.kv_heads) * self.dim
    }

    /// The offsets of keys and values in their rows, in elements.
    pub(super) fn key_offsets(&self) -> [u64; 2] {
        let queries = if self.part.is_some() { 0 } else { self.heads };
        [queries * self.dim, (queries + self.kv_heads) * self.dim].map(|offset| offset as u64)
    }
}

// Indices into `Ragged::packed`, and the first two into `Ragged::lengths`.
const QUERIES: usize = 0;
const KEYS: usize = 1;
const VALUES: usize = 2;

/// Forward: 14 operations, five more with a window, and six more with documents.
pub(super) fn forward(sizes: &GraphSizes) -> Result<OperationGraph> {
    let mut graph = OperationGraph::default();
    let g = &mut graph;
    let (scores, rows) = (sizes.scores(), sizes.rows());
    let offsets = sizes.offsets(g)?;
    let query = g.ragged(number::QUERY, BF16, sizes.queries(), offsets.packed(QUERIES))?;
    let key = g.ragged(number::KEY, BF16, sizes.keys().transposed(), offsets.packed(KEYS))?;
    let value = g.ragged(number::VALUE, BF16, sizes.keys(), offsets.packed(VALUES))?;
    let output = g.ragged(number::OUTPUT, BF16, sizes.output(), offsets.output())?;
    let stats = g.ragged(number::STATS, F32, rows, offsets.stats())?;
    let scale = g.scalar(number::SCALE)?;
    let masked = g.scalar(number::MASKED)?;

    let product = g.inner(F32, scores)?;
    let extent = offsets.extent(Some(QUERIES), Some(KEYS), None);
    g.matmul(query, key, product, Extent { pads: offsets.0.is_some(), ..extent })?;
    let scaled = g.inner(F32, scores)?;
    g.binary(Pointwise::CUDNN_POINTWISE_MUL, product, scale, scaled)?;
    let scaled = within_documents(g, sizes, &offsets, scaled, masked)?;
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
    g.matmul(probabilities, value, output, offsets.extent(Some(QUERIES), None, Some(KEYS)))?;
    Ok(graph)
}

/// Backward: 22 operations, two more with fewer key heads, five more with a window, and six more with documents. Without
/// `deterministic` the gradient of queries is first added up in f32 by atomics. With it, that operation is left out, and the
/// gradients of all scores take memory.
pub(super) fn backward(sizes: &GraphSizes, deterministic: bool) -> Result<OperationGraph> {
    let mut graph = OperationGraph::default();
    let g = &mut graph;
    let (scores, rows) = (sizes.scores(), sizes.rows());
    let offsets = sizes.offsets(g)?;
    let query = g.ragged(number::QUERY, BF16, sizes.queries(), offsets.packed(QUERIES))?;
    let key = g.ragged(number::KEY, BF16, sizes.keys().transposed(), offsets.packed(KEYS))?;
    let value = g.ragged(number::VALUE, BF16, sizes.keys().transposed(), offsets.packed(VALUES))?;
    let output = g.ragged(number::OUTPUT, BF16, sizes.output(), offsets.output())?;
    let stats = g.ragged(number::STATS, F32, rows, offsets.stats())?;
    let grad_output = g.ragged(number::GRAD_OUTPUT, BF16, sizes.output(), offsets.output())?;
    let grad_query = g.ragged(number::GRAD_QUERY, BF16, sizes.queries(), offsets.packed(QUERIES))?;
    let grad_key = g.ragged(number::GRAD_KEY, BF16, sizes.keys(), offsets.packed(KEYS))?;
    let grad_value = g.ragged(number::GRAD_VALUE, BF16, sizes.keys(), offsets.packed(VALUES))?;
    let delta = g.ragged(number::DELTA, F32, rows, offsets.stats())?;
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
    g.matmul(query, key, product, offsets.extent(Some(QUERIES), Some(KEYS), None))?;
    let scaled = g.inner(F32, scores)?;
    g.binary(Pointwise::CUDNN_POINTWISE_MUL, product, scale, scaled)?;
    let scaled = within_documents(g, sizes, &offsets, scaled, masked)?;
    let shifted = g.inner(F32, scores)?;
    g.binary(Pointwise::CUDNN_POINTWISE_SUB, scaled, stats, shifted)?;
    let seen = mask(g, sizes, shifted, masked)?;
    let probabilities = g.inner(F32, scores)?;
    g.unary(Pointwise::CUDNN_POINTWISE_EXP, seen, probabilities)?;

    // grad_value = probabilities^T grad_output
    let transposed = g.inner(BF16, scores.transposed())?;
    g.reshape(probabilities, transposed)?;
    matmul_by_group(g, sizes, (transposed, grad_output, grad_value), &offsets, VALUES)?;

    // grad_scores = (grad_output value^T - delta) * probabilities * scale
    let grad_probabilities = g.inner(F32, scores)?;
    g.matmul(grad_output, value, grad_probabilities, offsets.extent(Some(QUERIES), Some(KEYS), None))?;
    let centred = g.inner(F32, scores)?;
    g.binary(Pointwise::CUDNN_POINTWISE_SUB, grad_probabilities, delta, centred)?;
    let weighted = g.inner(F32, scores)?;
    g.binary(Pointwise::CUDNN_POINTWISE_MUL, centred, probabilities, weighted)?;
    let grad_scores = g.inner(F32, scores)?;
    g.binary(Pointwise::CUDNN_POINTWISE_MUL, weighted, scale, grad_scores)?;

    // grad_key = grad_scores^T query
    let transposed = g.inner(BF16, scores.transposed())?;
    g.reshape(grad_scores, transposed)?;
    matmul_by_group(g, sizes, (transposed, query, grad_key), &offsets, KEYS)?;

    // grad_query = grad_scores key
    let key_rows = g.inner_ragged(F32, sizes.keys(), offsets.packed(KEYS))?;
    g.reshape(key, key_rows)?;
    let extent = offsets.extent(Some(QUERIES), None, Some(KEYS));
    if deterministic {
        g.matmul(grad_scores, key_rows, grad_query, extent)?;
    } else {
        let layout = if sizes.documents.is_some() { sizes.queries() } else { sizes.dense_queries() };
        let sum = g.ragged(number::GRAD_QUERY_SUM, F32, layout, offsets.packed(QUERIES))?;
        g.matmul(grad_scores, key_rows, sum, extent)?;
        g.unary(Pointwise::CUDNN_POINTWISE_IDENTITY, sum, grad_query)?;
    }
    Ok(graph)
}

/// `scores` if a query sees the key, else `masked`.
fn mask(g: &mut OperationGraph, sizes: &GraphSizes, scores: GraphTensor, masked: GraphTensor) -> Result<GraphTensor> {
    if sizes.sees_all() {
        return Ok(scores);
    }
    let layout = sizes.scores();
    let causal = g.inner(F32, layout)?;
    let lengths = match sizes.begins_later() {
        true => Some([g.integer(number::KEYS_AND_QUERIES[0])?, g.integer(number::KEYS_AND_QUERIES[1])?]),
        false => None,
    };
    g.causal(layout, scores, lengths, masked, causal)?;
    if sizes.window.is_none() {
        return Ok(causal);
    }
    let window = g.scalar(number::WINDOW)?;
    let seen = g.inner(F32, layout)?;
    g.window(layout, causal, window, masked, seen)?;
    Ok(seen)
}

/// `scores` within documents, else `masked`.
fn within_documents(
    g: &mut OperationGraph,
    sizes: &GraphSizes,
    offsets: &Offsets,
    scores: GraphTensor,
    masked: GraphTensor,
) -> Result<GraphTensor> {
    let Some(Ragged { lengths, .. }) = &offsets.0 else { return Ok(scores) };
    let layout = sizes.scores();
    let within = g.inner(F32, layout)?;
    g.within(layout, scores, *lengths, masked, within)?;
    Ok(within)
}

/// `to = a @ b`, summed over the query heads that share a key head. `rows` is [`KEYS`] or [`VALUES`].
fn matmul_by_group(
    g: &mut OperationGraph,
    sizes: &GraphSizes,
    (a, b, to): (GraphTensor, GraphTensor, GraphTensor),
    offsets: &Offsets,
    rows: usize,
) -> Result<()> {
    let extent = offsets.extent(Some(KEYS), None, Some(QUERIES));
    if sizes.heads == sizes.kv_heads {
        return g.matmul(a, b, to, extent);
    }
    let layout = sizes.key_grads_of_query_heads();
    let of_each_head = match sizes.documents {
        None => g.inner(BF16, layout)?,
        Some(_) => g.ragged(number::HEAD_GRADS[rows - 1], BF16, layout, offsets.packed(rows))?,
    };
    g.matmul(a, b, of_each_head, extent)?;
    g.reduce(SUM, of_each_head, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_packed_rows() {
        let (window, documents) = (None, None);
        let sizes = GraphSizes { batch: 2, seq: 5, heads: 4, kv_heads: 2, dim: 8, window, documents, part: None };
        assert_eq!(sizes.key_offsets(), [32, 48]);
        assert_eq!(sizes.queries(), TensorLayout { sizes: [2, 4, 5, 8], strides: [5 * 64, 8, 64, 1] });
        assert_eq!(sizes.keys().transposed(), TensorLayout { sizes: [2, 2, 8, 5], strides: [5 * 64, 8, 1, 64] });
        assert_eq!(sizes.output(), TensorLayout { sizes: [2, 4, 5, 8], strides: [5 * 32, 8, 32, 1] });
        assert_eq!(sizes.rows(), TensorLayout { sizes: [2, 4, 5, 1], strides: [20, 5, 1, 1] });
        assert_eq!(sizes.scores().transposed(), TensorLayout { sizes: [2, 4, 5, 5], strides: [100, 25, 1, 5] });
        // The third of four parts of 20 tokens.
        let part = Some(PartSizes { tokens: 10, whole: 20, keys: 15, sees: Sees::UpToOwn });
        let sizes = GraphSizes { part, window: Some(4), ..sizes };
        assert_eq!((sizes.key_offsets(), sizes.shifted_window()), ([0, 16], Some(-6)));
        assert_eq!(sizes.queries(), TensorLayout { sizes: [2, 4, 5, 8], strides: [10 * 64, 8, 64, 1] });
        assert_eq!(sizes.keys(), TensorLayout { sizes: [2, 2, 15, 8], strides: [20 * 32, 8, 32, 1] });
        assert_eq!(sizes.rows(), TensorLayout { sizes: [2, 4, 5, 1], strides: [40, 10, 1, 1] });
        assert_eq!(sizes.scores(), TensorLayout { sizes: [2, 4, 5, 15], strides: [300, 75, 15, 1] });
        assert!(sizes.begins_later());
        // The later five of ten queries, and ten keys of another rank.
        let part = Some(PartSizes { tokens: 10, whole: 10, keys: 10, sees: Sees::All });
        let sizes = GraphSizes { part, window: None, ..sizes };
        assert_eq!(sizes.keys(), TensorLayout { sizes: [2, 2, 10, 8], strides: [10 * 32, 8, 32, 1] });
        assert!(!sizes.begins_later());
    }

    #[test]
    fn offsets_of_87_382_tokens_of_llama_8b_and_more_take_64_bits() {
        let of = |seq, documents| {
            let (window, part) = (None, None);
            let sizes = GraphSizes { batch: 1, seq, heads: 32, kv_heads: 8, dim: 128, window, documents, part };
            sizes.has_wide_offsets()
        };
        assert_eq!([of(87_381, Some(64)), of(87_382, Some(64)), of(1 << 20, None)], [false, true, false]);
    }
}
