//! Keys and values travel round the ranks that divide sequences (Liu et al., 2023): a rank computes attention over those of
//! one rank after the other, and passes them on meanwhile. Of each rank's keys it computes the pairs that causal attention
//! sees and no others.
//!
//! The order of all sums is fixed: a rank merges the keys of the rank before it, then of the one before that, after its own.
//! In backward the gradients of a rank's keys travel too. Each rank adds its part, and the own rank the last one.

use device::ops::{
    AddRows, Attention, AttentionBackward, Corner, KeyPart, KeysOf, KeysOfRank, MergeAttention, RankKeys,
    RankKeysBackward,
};
use device::{DType, Tensor};
use graph_manager::Result;

use super::attend::AttentionCore;
use super::attended::{Attended, AttentionGrads};
use super::context::{ContextRanks, Travelling};
use crate::batch_sizes::BatchSizes;
use crate::model::buffers::tensor_like;
use crate::step_policy::StepContext;

impl ContextRanks {
    /// The ranks whose keys arrive here, in order.
    fn arrivals(&self) -> impl Iterator<Item = usize> {
        let (rank, ranks) = (self.whole.share.rank, self.whole.share.ranks);
        (1..ranks).map(move |step| (rank + ranks - step) % ranks)
    }
}

impl AttentionCore {
    /// Attention over the keys of `qkv`, or over another rank's keys.
    fn over(&self, qkv: Tensor, keys: Option<RankKeys>, KeyPart { output, stats }: KeyPart) -> Attention {
        let (heads, kv_heads, scores, mask) =
            (self.heads, self.kv_heads, self.scores, self.mask.within(qkv.shape.sizes()[1]));
        Attention { qkv, keys, output, stats, heads, kv_heads, scores, mask, documents: None, dropout: None }
    }

    /// [`AttentionCore::attend`] over keys that travel round.
    pub(super) fn attend_in_ring(
        &self,
        cx: &mut StepContext<'_>,
        ring: &ContextRanks,
        qkv: Tensor,
    ) -> Result<Attended> {
        let BatchSizes { samples, tokens_per_sample: seq } = BatchSizes::of(cx);
        let (width, stats) = (self.width, [samples, self.heads, seq]);
        let own = KeyPart {
            output: tensor_like(cx, "context", &qkv, width)?,
            stats: cx.tensor("attention_stats", stats, DType::F32)?,
        };
        let mut keys = ring.send_round(cx, qkv)?;
        cx.run(self.over(qkv, None, own))?;
        let second = KeyPart {
            output: tensor_like(cx, "context_of_rank", &qkv, width)?,
            stats: cx.tensor("attention_stats_of_rank", stats, DType::F32)?,
        };
        let ranks = ring.whole.share.ranks;
        let sum = match ranks {
            2 => own,
            _ => KeyPart { output: cx.tensor("context_sum", own.output.shape, DType::F32)?, ..own },
        };
        let mut first = own;
        for (at, rank) in ring.arrivals().enumerate() {
            let (rows, is_last) = (keys.here, at + 2 == ranks);
            if !is_last {
                keys = keys.pass_on(cx, ring)?;
            }
            cx.run(self.over(qkv, Some(RankKeys { rows, share: ring.whole.share, of: KeysOf::Rank(rank) }), second))?;
            let KeysOfRank { first_query, .. } = ring.whole.share.sees_of(rank, seq);
            let merged = if is_last { own } else { sum };
            cx.run(MergeAttention { first, second, first_query, merged })?;
            first = merged;
        }
        Ok(Attended { context: own.output, stats: own.stats })
    }

    /// The backward of [`AttentionCore::attend_in_ring`]: writes the gradient of `qkv`. The `keys` of the rank before
    /// are under way here.
    pub(super) fn attend_in_ring_backward(
        &self,
        cx: &mut StepContext<'_>,
        ring: &ContextRanks,
        (qkv, attended): (Tensor, Attended),
        mut keys: Travelling,
        AttentionGrads { context: grad_context, qkv: grad_qkv }: AttentionGrads,
    ) -> Result<()> {
        let BatchSizes { samples, tokens_per_sample: tokens } = BatchSizes::of(cx);
        let Attended { context: output, stats } = attended;
        let whole = self.over(qkv, None, KeyPart { output, stats });
        let mut grad_keys = Travelling {
            here: cx.tensor("grad_keys_sum", keys.here.shape, DType::F32)?,
            next: cx.tensor("grad_keys_sum", keys.here.shape, DType::F32)?,
        };
        let grad_queries = cx.tensor("grad_queries_sum", output.shape, DType::F32)?;
        let of_queries = tensor_like(cx, "grad_queries_of_rank", &grad_qkv, grad_qkv.shape.last())?;
        let of_keys = cx.tensor("grad_keys_of_rank", keys.here.shape, grad_qkv.dtype)?;
        let rows = samples * tokens;
        for (at, rank) in ring.arrivals().enumerate() {
            let is_first = at == 0;
            let arrived = RankKeys { rows: keys.here, share: ring.whole.share, of: KeysOf::Rank(rank) };
            if at + 2 < ring.whole.share.ranks {
                keys = keys.pass_on(cx, ring)?;
            }
            if !is_first {
                grad_keys = grad_keys.pass_on(cx, ring)?;
            }
            let keys = Some(RankKeysBackward { keys: arrived, grad: of_keys });
            cx.run(AttentionBackward { keys, ..whole.backward(grad_context, of_queries) })?;
            let KeysOfRank { first_query, keys: seen } = ring.whole.share.sees_of(rank, tokens);
            for (sum, b, added) in [(grad_queries, of_queries, first_query..tokens), (grad_keys.here, of_keys, 0..seen)]
            {
                let (to, columns) = (Corner::first(sum), sum.shape.last());
                let (a, b) = ((!is_first).then_some(to), Corner::first(b));
                cx.run(AddRows { a, b, added, tokens, rows, columns, to })?;
            }
        }
        let grad_keys = grad_keys.pass_on(cx, ring)?.here;
        cx.run(whole.backward(grad_context, grad_qkv))?;
        for (b, column) in [(grad_queries, 0), (grad_keys, ring.keys)] {
            let (to, columns) = (Corner { matrix: grad_qkv, row: 0, column }, b.shape.last());
            cx.run(AddRows { a: Some(to), b: Corner::first(b), added: 0..tokens, tokens, rows, columns, to })?;
        }
        Ok(())
    }
}
