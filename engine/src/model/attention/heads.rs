//! Ranks that divide sequences exchange heads (Jacobs et al., 2023): a rank has all tokens of some heads during attention,
//! and some tokens of all heads elsewhere. Attention is then that of one rank.

use std::rc::Rc;

use device::ops::{
    Attention, AttentionBackward, Collective, CollectiveKind, Corner, Documents, Fill, OrderRows, RowOrder,
};
use device::{Communicator, DType, Tensor};
use graph_manager::Result;
use parallel::{Axis, Place, Purpose, Ranks};

use super::attend::{Attending, AttentionCore};
use super::attended::{Attended, AttentionGrads};
use super::context::block;
use crate::model::buffers::tensor_like;
use crate::step_policy::StepContext;

/// The ranks that exchange heads.
pub(super) struct HeadExchange {
    ranks: usize,
    /// The rank's place among the ranks that exchange heads.
    place: Place,
    communicator: Rc<dyn Communicator>,
}

/// Columns of a rank's heads.
struct HeadColumns {
    /// The first one among the columns of all heads.
    all: usize,
    /// The first one among the rank's own.
    own: usize,
    /// The number of columns.
    columns: usize,
}

impl HeadExchange {
    /// `None` if a rank has whole sequences.
    pub(super) fn new(ranks: &Ranks) -> Option<HeadExchange> {
        let communicator = ranks.for_purpose(ranks.axes(Axis::Context), Purpose::Keys)?.clone();
        let place = ranks.at(Axis::Context);
        Some(HeadExchange { ranks: place.count, place, communicator })
    }

    /// From some tokens of all heads, `(batch, tokens, columns)`, to all tokens of some heads,
    /// `(batch, ranks * tokens, columns / ranks)`. Of each of `groups` of columns a rank gets an equal part.
    fn to_heads(&self, cx: &mut StepContext<'_>, name: &'static str, rows: Tensor, groups: &[usize]) -> Result<Tensor> {
        let &[batch, tokens, columns] = rows.shape.sizes() else {
            unreachable!("rows of tokens have three dimensions")
        };
        let (ranks, part) = (self.ranks, columns / self.ranks);
        let sent = cx.tensor("heads_sent", [ranks, batch, tokens, part], rows.dtype)?;
        cx.run(Fill { output: sent, value: 0.0 })?;
        for rank in 0..ranks {
            for HeadColumns { all, own, columns } in self.blocks(rank, groups) {
                let (from, to) = (Corner { matrix: rows, row: 0, column: all }, sent.at(rank));
                cx.run(block(from, Corner { matrix: to, row: 0, column: own }, columns))?;
            }
        }
        let by_rank = self.exchanged(cx, "heads_received", sent)?;
        let by_position = cx.tensor(name, [batch, ranks * tokens, part], rows.dtype)?;
        cx.run(OrderRows { by_rank, by_position, to: RowOrder::ByPosition })?;
        Ok(by_position)
    }

    /// The way back: all tokens of some heads go `into` rows of some tokens of all heads.
    fn to_tokens(&self, cx: &mut StepContext<'_>, whole: Tensor, into: Tensor, groups: &[usize]) -> Result<()> {
        let &[batch, tokens, columns] = into.shape.sizes() else {
            unreachable!("rows of tokens have three dimensions")
        };
        let by_rank = cx.tensor("tokens_sent", [self.ranks, batch, tokens, columns / self.ranks], whole.dtype)?;
        cx.run(OrderRows { by_rank, by_position: whole, to: RowOrder::ByRank })?;
        let received = self.exchanged(cx, "tokens_received", by_rank)?;
        cx.run(Fill { output: into, value: 0.0 })?;
        for rank in 0..self.ranks {
            for HeadColumns { all, own, columns } in self.blocks(rank, groups) {
                let from = Corner { matrix: received.at(rank), row: 0, column: own };
                cx.run(block(from, Corner { matrix: into, row: 0, column: all }, columns))?;
            }
        }
        Ok(())
    }

    /// The columns of a rank's heads in each group.
    fn blocks(&self, rank: usize, groups: &[usize]) -> Vec<HeadColumns> {
        let (mut before, mut blocks) = (0, Vec::new());
        for group in groups {
            let columns = group / self.ranks;
            blocks.push(HeadColumns { all: before + rank * columns, own: before / self.ranks, columns });
            before += group;
        }
        blocks
    }

    /// Part `j` of `(ranks, ...)` goes to rank `j`.
    fn exchanged(&self, cx: &mut StepContext<'_>, name: &'static str, input: Tensor) -> Result<Tensor> {
        let output = cx.tensor(name, input.shape, input.dtype)?;
        let (kind, communicator) = (CollectiveKind::AllToAll, self.communicator.clone());
        cx.run(Collective { kind, communicator, input, output })?;
        Ok(output)
    }
}

impl AttentionCore {
    /// The columns of queries, keys and values in packed rows.
    fn packed_groups(&self, width: usize) -> [usize; 3] {
        let channels = width / (self.heads + 2 * self.kv_heads);
        [self.heads, self.kv_heads, self.kv_heads].map(|heads| heads * channels)
    }

    /// [`AttentionCore::attend`] of ranks that exchange heads.
    pub(super) fn attend_by_heads(
        &self,
        cx: &mut StepContext<'_>,
        exchange: &HeadExchange,
        qkv: Tensor,
        documents: Option<Documents>,
    ) -> Result<Attended> {
        let groups = self.packed_groups(qkv.shape.last());
        let whole = exchange.to_heads(cx, "qkv_of_heads", qkv, &groups)?;
        let [heads, kv_heads] = [self.heads, self.kv_heads].map(|heads| heads / exchange.ranks);
        let (batch, seq) = (whole.shape.sizes()[0], whole.shape.sizes()[1]);
        let output = tensor_like(cx, "context_of_heads", &whole, groups[0] / exchange.ranks)?;
        let stats = cx.tensor("attention_stats", [batch, heads, seq], DType::F32)?;
        let (scores, mask, dropout) = (self.scores, self.mask, None);
        cx.run(Attention { qkv: whole, keys: None, output, stats, heads, kv_heads, scores, mask, documents, dropout })?;
        self.with_sinks(cx, Attended { context: output, stats }, exchange.place)?;
        let context = tensor_like(cx, "context", &qkv, groups[0])?;
        exchange.to_tokens(cx, output, context, &groups[..1])?;
        Ok(Attended { context, stats })
    }

    /// The backward of attention by heads: writes the gradient of `qkv`.
    pub(super) fn attend_by_heads_backward(
        &self,
        cx: &mut StepContext<'_>,
        exchange: &HeadExchange,
        Attending { qkv, attended, documents, .. }: Attending,
        AttentionGrads { context: grad_context, qkv: grad_qkv }: AttentionGrads,
    ) -> Result<()> {
        let groups = self.packed_groups(qkv.shape.last());
        let whole = exchange.to_heads(cx, "qkv_of_heads", qkv, &groups)?;
        let output = exchange.to_heads(cx, "context_of_heads", attended.context, &groups[..1])?;
        let grad_output = exchange.to_heads(cx, "grad_context_of_heads", grad_context, &groups[..1])?;
        if let Some(sinks) = &self.sinks {
            let of_heads = Attended { context: output, stats: attended.stats };
            // From all tokens of some heads. Sums are over some tokens of all heads, as of other parameters.
            if !sinks.is_frozen() {
                let whole = sinks.summands(cx, of_heads, grad_output, exchange.place)?;
                let &[batch, tokens, _] = qkv.shape.sizes() else { unreachable!("packed rows have three dimensions") };
                let here = cx.tensor("grad_sink_summands_here", [batch, tokens, self.heads], DType::F32)?;
                exchange.to_tokens(cx, whole, here, &[self.heads])?;
                sinks.sum(cx, here)?;
            }
        }
        let grad_whole = cx.tensor("grad_qkv_of_heads", whole.shape, grad_qkv.dtype)?;
        cx.run(AttentionBackward {
            qkv: whole,
            keys: None,
            output,
            stats: attended.stats,
            grad_output,
            grad_qkv: grad_whole,
            heads: self.heads / exchange.ranks,
            kv_heads: self.kv_heads / exchange.ranks,
            scores: self.scores,
            mask: self.mask,
            documents,
            dropout: None,
        })?;
        exchange.to_tokens(cx, grad_whole, grad_qkv, &groups)
    }
}
