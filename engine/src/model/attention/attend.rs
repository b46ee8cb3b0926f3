//! Attention over packed queries, keys and values: the part between the products before and after it, whatever kind makes
//! them.

use device::ops::{Attention, AttentionBackward, Documents, DropoutSite, Mask, Scores};
use device::{DType, Tensor};
use graph_manager::Result;
use parallel::Place;

use super::attended::{Attended, AttentionGrads};
use super::context::{ContextRanks, Gathered, Travelling};
use super::heads::HeadExchange;
use super::sinks::Sinks;
use crate::batch_sizes::BatchSizes;
use crate::model::buffers::tensor_like;
use crate::model::builder::LayerBuilder;
use crate::model::gpt::GptShape;
use crate::model::tensor_parallel::{ContextTransfers, TensorParallel};
use crate::step_policy::StepContext;

/// Attention of a block, without the products before and after.
pub(super) struct AttentionCore {
    /// On this rank, as `kv_heads`.
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    /// Channels of the queries of all heads here, and of the output.
    pub(super) width: usize,
    /// How scores follow from products.
    pub(super) scores: Scores,
    /// The tokens that a token sees.
    pub(super) mask: Mask,
    pub(super) sinks: Option<Sinks>,
    context: ContextWay,
}

/// How a rank that has a share of each sequence sees the rest.
enum ContextWay {
    /// A rank has whole sequences.
    Whole,
    /// Keys are gathered.
    Keys(ContextRanks),
    /// Keys travel round, where samples are single documents; keys of samples of several documents are gathered.
    Ring(ContextRanks),
    /// Heads are exchanged.
    Heads(HeadExchange),
}

impl ContextWay {
    fn new(parallel: &TensorParallel, shape: &GptShape, block: usize, width: usize) -> ContextWay {
        let ranks = &parallel.ranks;
        let keys = || ContextRanks::new(ranks, width);
        let has_window = shape.mask(block).within(shape.max_seq_len).window.is_some();
        let way = match parallel.context {
            ContextTransfers::Heads => HeadExchange::new(ranks).map(ContextWay::Heads),
            ContextTransfers::Ring if !has_window => keys().map(ContextWay::Ring),
            ContextTransfers::Ring | ContextTransfers::Keys => keys().map(ContextWay::Keys),
        };
        way.unwrap_or(ContextWay::Whole)
    }
}

/// Keys and values that are under way to this rank.
pub(super) enum SentKeys {
    None,
    Gathered(Gathered),
    Round(Travelling),
}

/// The tensors of an attention's forward that the backward needs.
#[derive(Clone, Copy)]
pub(super) struct Attending {
    /// Packed queries, keys and values.
    pub(super) qkv: Tensor,
    pub(super) attended: Attended,
    pub(super) documents: Option<Documents>,
    /// Of probabilities.
    pub(super) dropout: Option<DropoutSite>,
}

impl AttentionCore {
    /// Attention of a block whose heads have queries and packed keys of so many channels. There are `kv_heads` on this rank.
    pub(super) fn build(builder: &LayerBuilder<'_>, block: usize, kv_heads: usize, channels: usize) -> AttentionCore {
        let (shape, parallel) = (builder.of.shape, builder.of.parallel);
        let heads = shape.heads / parallel.size();
        let (width, mask) = (heads * channels, shape.mask(block));
        let (scores, sinks) = (shape.scores(), Sinks::build(builder, block));
        let context = ContextWay::new(parallel, shape, block, width);
        AttentionCore { heads, kv_heads, width, scores, mask, sinks, context }
    }

    /// Sends keys and values on the way, if this rank sees other ranks' keys so.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn send(&self, cx: &mut StepContext<'_>, qkv: Tensor, documents: Option<Documents>) -> Result<SentKeys> {
        Ok(match &self.context {
            ContextWay::Ring(ring) if documents.is_none() => SentKeys::Round(ring.send_round(cx, qkv)?),
            ContextWay::Keys(ranks) | ContextWay::Ring(ranks) => SentKeys::Gathered(ranks.gather(cx, qkv)?),
            ContextWay::Whole | ContextWay::Heads(_) => SentKeys::None,
        })
    }

    /// The output of attention over queries, keys and values `qkv`.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn attend(
        &self,
        cx: &mut StepContext<'_>,
        qkv: Tensor,
        documents: Option<Documents>,
        dropout: Option<DropoutSite>,
    ) -> Result<Attended> {
        let keys = match &self.context {
            ContextWay::Heads(exchange) => return self.attend_by_heads(cx, exchange, qkv, documents),
            ContextWay::Ring(ring) if documents.is_none() => {
                let attended = self.attend_in_ring(cx, ring, qkv)?;
                return self.with_sinks(cx, attended, Place::ALONE);
            }
            ContextWay::Keys(ranks) | ContextWay::Ring(ranks) => {
                let gathered = ranks.gather(cx, qkv)?;
                Some(ranks.in_order(cx, gathered)?)
            }
            ContextWay::Whole => None,
        };
        let BatchSizes { samples: batch, tokens_per_sample: seq } = BatchSizes::of(cx);
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        let context = tensor_like(cx, "context", &qkv, self.width)?;
        let stats = cx.tensor("attention_stats", [batch, heads, seq], DType::F32)?;
        let (scores, mask) = (self.scores, self.mask);
        cx.run(Attention { qkv, keys, output: context, stats, heads, kv_heads, scores, mask, documents, dropout })?;
        self.with_sinks(cx, Attended { context, stats }, Place::ALONE)
    }

    /// The results of attention over all keys, with the sinks of the attention's heads if there are some: of the heads
    /// at this place in an exchange.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn with_sinks(&self, cx: &StepContext<'_>, attended: Attended, place: Place) -> Result<Attended> {
        self.sinks.as_ref().map_or(Ok(()), |sinks| sinks.join(cx, attended, place))?;
        Ok(attended)
    }

    /// The backward of [`AttentionCore::attend`]. Keys may have been `sent`.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn attend_backward(
        &self,
        cx: &mut StepContext<'_>,
        of: Attending,
        sent: Option<SentKeys>,
        grads: AttentionGrads,
    ) -> Result<()> {
        let Attending { qkv, attended, documents, dropout } = of;
        let sent = match sent {
            Some(sent) => sent,
            None => self.send(cx, qkv, documents)?,
        };
        if let Some(sinks) = self.sinks.as_ref().filter(|_| !matches!(self.context, ContextWay::Heads(_))) {
            sinks.gradient(cx, attended, grads.context)?;
        }
        let backward = |keys| AttentionBackward {
            qkv,
            keys,
            output: attended.context,
            stats: attended.stats,
            grad_output: grads.context,
            grad_qkv: grads.qkv,
            heads: self.heads,
            kv_heads: self.kv_heads,
            scores: self.scores,
            mask: self.mask,
            documents,
            dropout,
        };
        match (&self.context, sent) {
            (ContextWay::Heads(exchange), _) => self.attend_by_heads_backward(cx, exchange, of, grads),
            (ContextWay::Ring(ring), SentKeys::Round(sent)) => {
                self.attend_in_ring_backward(cx, ring, (qkv, attended), sent, grads)
            }
            (ContextWay::Keys(ranks) | ContextWay::Ring(ranks), SentKeys::Gathered(gathered)) => {
                let whole = ranks.in_order(cx, gathered)?;
                let keys = ranks.with_gradient(cx, whole)?;
                cx.run(backward(Some(keys)))?;
                ranks.scatter(cx, keys, grads.qkv)
            }
            _ => cx.run(backward(None)),
        }
    }
}
