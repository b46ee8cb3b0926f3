//! Causal attention over packed QKV.

use super::{
    Accesses, DropoutSite, Mask, Operation, Scores, Visit, ensure, ensure_dtype, ensure_elements, ensure_float,
    ensure_heads, visit_all,
};
use crate::{DType, Result, Tensor};

/// `output = dropout(softmax(mask(scores(Q K^T)))) V` per head, never holding the scores in memory
/// (Dao et al., 2022).
///
/// Each row of `qkv` holds `[query heads | key heads | value heads]`; with fewer key and value heads, query head `h`
/// uses key head `h / (heads / kv_heads)` (GQA, Ainslie et al., 2023). Scores, softmax and sums are f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`.
    pub qkv: Tensor,
    /// `(batch, seq, heads * head_dim)`.
    pub output: Tensor,
    /// `(batch, heads, seq)`, f32, written: log-sum-exp of each row of scores.
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
    /// counted over all ranks.
    pub dropout: Option<DropoutSite>,
}

/// The documents of samples that hold several, one after the other. A query sees only keys of its own document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Documents {
    /// `(batch, seq)`, i32: the position of each token in its document; 0 begins a document.
    pub position_ids: Tensor,
    /// No sample has more documents; at most [`Documents::MOST`].
    pub most: usize,
}

impl Visit for Documents {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit(&mut self.position_ids);
    }
}

impl Documents {
    /// The largest bound on the documents of a sample.
    pub const MOST: usize = 1024;

    fn check(&self, op: &'static str, tokens: usize) -> Result<()> {
        ensure(op, (1..=Documents::MOST).contains(&self.most), || {
            format!("at most {} documents in a sample, needs 1 to {}", self.most, Documents::MOST)
        })?;
        ensure_dtype(op, "position_ids", &self.position_ids, DType::I32)?;
        ensure_elements(op, "position_ids", &self.position_ids, tokens)
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
}

impl AttentionSizes {
    /// The sizes of a checked `qkv`, `(batch, seq, (heads + 2 kv_heads) * head_dim)`.
    pub(crate) fn new(qkv: &Tensor, heads: usize, kv_heads: usize) -> AttentionSizes {
        let sizes = qkv.shape.sizes();
        AttentionSizes { batch: sizes[0], seq: sizes[1], heads, kv_heads, dim: sizes[2] / (heads + 2 * kv_heads) }
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
    documents: Option<Documents>,
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
    documents.map_or(Ok(()), |documents| documents.check(op, batch * seq))?;
    ensure_dtype(op, "stats", stats, DType::F32)?;
    ensure_elements(op, "stats", stats, batch * heads * seq)
}

impl Attention {
    /// The backward of this forward. `grad_output` `(batch, seq, heads * head_dim)` is read, `grad_qkv` with the sizes of `qkv`
    /// is written.
    pub fn backward(&self, grad_output: Tensor, grad_qkv: Tensor) -> AttentionBackward {
        let Attention { qkv, output, stats, heads, kv_heads, scores, mask, documents, dropout } = *self;
        AttentionBackward {
            qkv,
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
        check_packed(Self::NAME, tensors, (self.heads, self.kv_heads), self.documents)
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.qkv], [self.output, self.stats])
            .reads(self.documents.map(|documents| documents.position_ids))
            .reads(self.dropout.map(|site| site.record))
    }

    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(visit, [&mut self.qkv, &mut self.output, &mut self.stats, &mut self.documents, &mut self.dropout]);
    }
}

/// Gradient of [`Attention`] with respect to packed QKV; probabilities are recomputed from `stats`.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionBackward {
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`, the forward's input.
    pub qkv: Tensor,
    /// `(batch, seq, heads * head_dim)`, the forward's output.
    pub output: Tensor,
    /// `(batch, heads, seq)`, f32, the forward's.
    pub stats: Tensor,
    /// `(batch, seq, heads * head_dim)`.
    pub grad_output: Tensor,
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`.
    pub grad_qkv: Tensor,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// The forward's.
    pub scores: Scores,
    /// The forward's mask.
    pub mask: Mask,
    /// The forward's.
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
        check_packed(Self::NAME, tensors, (self.heads, self.kv_heads), self.documents)?;
        ensure_float(Self::NAME, &[("qkv", self.qkv), ("grad_output", self.grad_output), ("grad_qkv", self.grad_qkv)])?;
        ensure_elements(Self::NAME, "grad_output", &self.grad_output, self.output.elements())?;
        ensure_elements(Self::NAME, "grad_qkv", &self.grad_qkv, self.qkv.elements())
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.qkv, self.output, self.stats, self.grad_output], [self.grad_qkv])
            .reads(self.documents.map(|documents| documents.position_ids))
            .reads(self.dropout.map(|site| site.record))
    }

    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(
            visit,
            [
                &mut self.qkv,
                &mut self.output,
                &mut self.stats,
                &mut self.grad_output,
                &mut self.grad_qkv,
                &mut self.documents,
                &mut self.dropout,
            ],
        );
    }
}
