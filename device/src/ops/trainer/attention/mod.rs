//! Causal attention over packed QKV.

mod cache;
mod cached_latent;
mod host;
mod latent;
#[cfg(feature = "cuda")]
mod launch;
mod mask;
mod parts;
mod rotary;
mod scores;
mod sinks;

use std::ops::Range;

use crate::ops::{
    Accesses, DropoutSite, HasTensors, KeysOfRank, Operation, SequenceShare, ensure, ensure_dtype, ensure_elements,
    ensure_float, ensure_heads, ensure_shape, ensure_values, tensors,
};
use crate::{DType, Result, Tensor};
pub use cache::*;
pub use cached_latent::*;
pub use latent::*;
pub use mask::*;
pub use parts::*;
pub use rotary::*;
pub use scores::*;
pub use sinks::*;

/// `output = dropout(softmax(mask(scores(Q K^T)))) V` per head, never holding the scores in memory
/// (Dao et al., 2022).
///
/// Each row of `qkv` holds `[query heads | key heads | value heads]`; with fewer key and value heads, query head `h`
/// uses key head `h / (heads / kv_heads)` (GQA, Ainslie et al., 2023). Scores, softmax and sums are f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`.
    pub qkv: Tensor,
    /// The keys and values in other rows, if `qkv` has a share of each sequence. Those in `qkv` are not read then.
    pub keys: Option<RankKeys>,
    /// `(batch, seq, heads * head_dim)`. Rows of queries that see none of the keys are left alone.
    pub output: Tensor,
    /// `(batch, heads, seq)`, f32, written as `output`: log-sum-exp of each row of scores.
    pub stats: Tensor,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// How scores follow from products.
    pub scores: Scores,
    /// The keys that a query sees.
    pub mask: Mask,
    /// The documents of the samples; `None` if each sample is one document.
    pub documents: Option<Documents>,
    /// Dropout of the probabilities; token = query position, channel = `head * seq + key position`, heads
    /// counted over all ranks. Not with `keys`.
    pub dropout: Option<DropoutSite>,
}

/// The keys and values of ranks that divide sequences, in rows `[key heads | value heads]` of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankKeys {
    /// `(batch, tokens, 2 * kv_heads * head_dim)`, of the queries' type.
    pub rows: Tensor,
    /// The queries here.
    pub share: SequenceShare,
    /// The tokens of the rows.
    pub of: KeysOf,
}

/// The ranks whose keys and values there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeysOf {
    /// All: whole sequences, in the order of positions.
    AllRanks,
    /// Another one: its tokens. There is no window, and a sample is one document.
    Rank(usize),
}

impl RankKeys {
    /// What the queries here see of the keys of another rank. `None` if there are whole sequences.
    pub(crate) fn of_rank(&self, tokens: usize) -> Option<KeysOfRank> {
        match self.of {
            KeysOf::AllRanks => None,
            KeysOf::Rank(rank) => Some(self.share.sees_of(rank, tokens)),
        }
    }
}

impl HasTensors for RankKeys {
    tensors! { rows }
}

/// The keys and values of ranks that divide sequences, and their gradients from the queries here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankKeysBackward {
    /// The forward's keys and values.
    pub keys: RankKeys,
    /// With the sizes of the keys, written: the gradients from the queries here. Other ranks have the other summands. Rows of
    /// another rank's keys that no query here sees are left alone.
    pub grad: Tensor,
}

impl HasTensors for RankKeysBackward {
    tensors! { keys, grad }
}

/// The documents of samples that hold several, one after the other. A query sees only keys of its own document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Documents {
    /// `(batch, seq)`, i32: the position of each token in its document; 0 begins a document. Of whole sequences, also if
    /// a rank has some of the queries.
    pub position_ids: Tensor,
    /// No sample has more documents; at most [`Documents::MOST`].
    pub most: usize,
}

impl HasTensors for Documents {
    tensors! { position_ids }
}

impl Documents {
    /// The largest bound on the documents of a sample.
    pub const MOST: usize = 1024;

    fn check(&self, op: &'static str, tokens: usize) -> Result<()> {
        ensure(op, (1..=Documents::MOST).contains(&self.most), || {
            format!("at most {} documents in a sample, needs 1 to {}", self.most, Documents::MOST)
        })?;
        ensure_values(op, "position_ids", &self.position_ids, DType::I32, tokens)
    }
}

/// The sizes of an attention over packed queries, keys and values.
#[derive(Clone, Copy)]
pub(crate) struct AttentionSizes {
    pub(crate) batch: usize,
    pub(crate) seq: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Channels of a head.
    pub(crate) dim: usize,
    /// Tokens of a sample in the rows of keys.
    pub(crate) keys: usize,
    /// The queries of a sequence that are here.
    pub(crate) share: SequenceShare,
    /// The keys that the queries see, if another rank has the keys.
    pub(crate) of_rank: Option<KeysOfRank>,
}

impl AttentionSizes {
    /// The sizes of a checked `qkv`, `(batch, seq, (heads + 2 kv_heads) * head_dim)`.
    pub(crate) fn new(qkv: &Tensor, heads: usize, kv_heads: usize) -> AttentionSizes {
        let sizes = qkv.shape.sizes();
        let (batch, seq, dim) = (sizes[0], sizes[1], sizes[2] / (heads + 2 * kv_heads));
        AttentionSizes { batch, seq, heads, kv_heads, dim, keys: seq, share: SequenceShare::WHOLE, of_rank: None }
    }

    /// The sizes of the same queries with `keys`.
    pub(crate) fn with_keys(self, keys: Option<RankKeys>) -> AttentionSizes {
        let Some(keys) = keys else { return self };
        let (share, of_rank) = (keys.share, keys.of_rank(self.seq));
        let ranks = if of_rank.is_some() { 1 } else { share.ranks };
        AttentionSizes { keys: self.seq * ranks, share, of_rank, ..self }
    }

    /// The queries of a sample that see keys.
    pub(crate) fn queries(&self) -> Range<usize> {
        self.of_rank.map_or(0, |of_rank| of_rank.first_query)..self.seq
    }

    /// The keys of a sample that queries see: the first ones.
    pub(crate) fn seen_keys(&self) -> usize {
        self.of_rank.map_or(self.keys, |of_rank| of_rank.keys)
    }

    /// Elements of a row of `qkv`.
    pub(crate) fn packed_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }

    /// Whether there is nothing to compute.
    pub(crate) fn is_empty(&self) -> bool {
        self.batch * self.seq * self.dim == 0
    }
}

/// Checks the shapes and types that both directions share. `tensors` are `qkv`, `output` and `stats`.
fn check_packed(
    op: &'static str,
    [qkv, output, stats]: [&Tensor; 3],
    (heads, kv_heads): (usize, usize),
    (keys, mask): (Option<RankKeys>, Mask),
    (documents, dropout): (Option<Documents>, Option<DropoutSite>),
) -> Result<()> {
    ensure_heads(op, heads, kv_heads)?;
    let sizes = qkv.shape.sizes();
    let groups = heads + 2 * kv_heads;
    ensure(op, sizes.len() == 3 && sizes[2].is_multiple_of(groups), || {
        format!("`qkv` is {:?}, needs (batch, seq, {groups} * head_dim)", qkv.shape)
    })?;
    let (batch, seq, head_dim) = (sizes[0], sizes[1], sizes[2] / groups);
    ensure_float(op, &[("qkv", *qkv), ("output", *output)])?;
    ensure_elements(op, "output", output, batch * seq * heads * head_dim)?;
    let mut whole = seq;
    if let Some(RankKeys { rows, share: SequenceShare { rank, ranks }, of }) = keys {
        let is_limited = mask.window.is_some() || documents.is_some();
        ensure(op, rank < ranks && (ranks == 1 || seq.is_multiple_of(2)) && dropout.is_none(), || {
            format!("rank {rank} of {ranks} with {seq} queries: they are an even number, without dropout")
        })?;
        let others = match of {
            KeysOf::AllRanks => None,
            KeysOf::Rank(other) => Some(other),
        };
        ensure(op, others.is_none_or(|other| other != rank && other < ranks && !is_limited), || {
            format!("rank {rank} of {ranks} has keys of rank {others:?}: another one, without a window and documents")
        })?;
        whole = if others.is_some() { seq } else { ranks * seq };
        ensure_dtype(op, "keys", &rows, qkv.dtype)?;
        ensure_shape(op, "keys", &rows, &[batch, whole, 2 * kv_heads * head_dim])?;
    }
    documents.map_or(Ok(()), |documents| documents.check(op, batch * whole))?;
    ensure_values(op, "stats", stats, DType::F32, batch * heads * seq)
}

impl Attention {
    /// The most channels of a head on a GPU: as many as our kernels keep in shared memory. cuDNN has no more.
    pub const WIDEST_ON_GPUS: usize = 256;

    /// The backward of this forward, of which `qkv` has whole sequences. `grad_output` `(batch, seq, heads * head_dim)` is
    /// read, `grad_qkv` with the sizes of `qkv` is written.
    pub fn backward(&self, grad_output: Tensor, grad_qkv: Tensor) -> AttentionBackward {
        let Attention { qkv, output, stats, heads, kv_heads, scores, mask, documents, dropout, .. } = *self;
        AttentionBackward {
            qkv,
            keys: None,
            output,
            stats,
            grad_output,
            grad_qkv,
            heads,
            kv_heads,
            scores,
            mask,
            documents,
            dropout,
        }
    }
}

impl Operation for Attention {
    const NAME: &'static str = "attention";

    fn check(&self) -> Result<()> {
        self.scores.check(Self::NAME)?;
        self.mask.check(Self::NAME)?;
        let tensors = [&self.qkv, &self.output, &self.stats];
        let heads = (self.heads, self.kv_heads);
        check_packed(Self::NAME, tensors, heads, (self.keys, self.mask), (self.documents, self.dropout))
    }

    tensors! { read qkv, keys; write output, stats; read documents, dropout }

    fn flops(&self) -> f64 {
        let sizes = AttentionSizes::new(&self.qkv, self.heads, self.kv_heads).with_keys(self.keys);
        scores(sizes, self.mask) * 2.0
    }

    fn factor_type(&self) -> Option<DType> {
        Some(self.qkv.dtype)
    }
}

/// Gradient of [`Attention`] with respect to packed QKV; probabilities are recomputed from `stats`.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionBackward {
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`, the forward's input.
    pub qkv: Tensor,
    /// The forward's keys and values of ranks, and their gradients.
    pub keys: Option<RankKeysBackward>,
    /// `(batch, seq, heads * head_dim)`, the forward's output.
    pub output: Tensor,
    /// `(batch, heads, seq)`, f32, the forward's.
    pub stats: Tensor,
    /// `(batch, seq, heads * head_dim)`.
    pub grad_output: Tensor,
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`. With `keys` only the queries' columns are written, of the queries that
    /// see keys.
    pub grad_qkv: Tensor,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// The forward's scores.
    pub scores: Scores,
    /// The forward's mask.
    pub mask: Mask,
    /// The forward's documents.
    pub documents: Option<Documents>,
    /// The forward's dropout.
    pub dropout: Option<DropoutSite>,
}

impl Operation for AttentionBackward {
    const NAME: &'static str = "attention_backward";

    fn check(&self) -> Result<()> {
        self.scores.check(Self::NAME)?;
        self.mask.check(Self::NAME)?;
        let tensors = [&self.qkv, &self.output, &self.stats];
        let (heads, keys) = ((self.heads, self.kv_heads), self.keys.map(|keys| keys.keys));
        check_packed(Self::NAME, tensors, heads, (keys, self.mask), (self.documents, self.dropout))?;
        if let Some(RankKeysBackward { keys, grad }) = self.keys {
            ensure_values(Self::NAME, "the gradient of keys", &grad, self.grad_qkv.dtype, keys.rows.elements())?;
        }
        ensure_float(Self::NAME, &[("qkv", self.qkv), ("grad_output", self.grad_output), ("grad_qkv", self.grad_qkv)])?;
        ensure_elements(Self::NAME, "grad_output", &self.grad_output, self.output.elements())?;
        ensure_elements(Self::NAME, "grad_qkv", &self.grad_qkv, self.qkv.elements())
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.qkv, self.output, self.stats, self.grad_output], [self.grad_qkv])
            .reads(self.keys.map(|keys| keys.keys.rows))
            .writes(self.keys.map(|keys| keys.grad))
            .reads(self.documents.map(|documents| documents.position_ids))
            .reads(self.dropout.map(|site| site.record))
    }

    tensors! { qkv, keys, output, stats, grad_output, grad_qkv, documents, dropout }

    fn flops(&self) -> f64 {
        let sizes =
            AttentionSizes::new(&self.qkv, self.heads, self.kv_heads).with_keys(self.keys.map(|keys| keys.keys));
        scores(sizes, self.mask) * 5.0
    }

    fn factor_type(&self) -> Option<DType> {
        Some(self.qkv.dtype)
    }
}

/// Channels times pairs of positions (a query and a key that it sees), over all heads: half of a product's FLOPs. Ranks
/// that divide sequences have equally many pairs, but for the ends of windows.
fn scores(sizes: AttentionSizes, mask: Mask) -> f64 {
    let pairs = match sizes.of_rank {
        None => mask.doubled_pairs(sizes.keys) as f64 / sizes.share.ranks as f64,
        Some(_) => 2.0 * (sizes.queries().len() * sizes.seen_keys()) as f64,
    };
    sizes.batch as f64 * pairs * (sizes.heads * sizes.dim) as f64
}
