//! Ranks that divide sequences: each has all heads of its tokens, and gets the keys and values of the others. It gathers them
//! (Llama Team, 2024), or they [travel round](super::ring).

use device::Tensor;
use device::ops::{CollectiveKind, Corner, KeysOf, OrderRows, RankKeys, RankKeysBackward, RowOrder, ScaleBlock};
use graph_manager::Result;
use parallel::Ranks;

use crate::model::sequence::WholeSamples;
use crate::step_policy::StepContext;

/// The ranks that divide the sequences of an attention.
pub(super) struct ContextRanks {
    pub(super) whole: WholeSamples,
    /// The column of packed queries, keys and values at which the keys begin. The values follow them, to the end.
    pub(super) keys: usize,
}

/// Keys and values that ranks gathered.
#[derive(Clone, Copy)]
pub(super) struct Gathered {
    /// `(ranks, batch, tokens, 2 * kv_heads * head_dim)`.
    by_rank: Tensor,
}

/// Keys and values that travel round, and the memory that the next ranks' keys arrive in.
#[derive(Clone, Copy)]
pub(super) struct Travelling {
    pub(super) here: Tensor,
    pub(super) next: Tensor,
}

impl Travelling {
    /// Sends the tensor here to the next rank, and gets that of the rank before.
    pub(super) fn pass_on(self, cx: &mut StepContext<'_>, ring: &ContextRanks) -> Result<Travelling> {
        ring.whole.transfer(cx, CollectiveKind::ToNext, [self.here, self.next])?;
        Ok(Travelling { here: self.next, next: self.here })
    }
}

impl ContextRanks {
    /// Sends the keys and values of `qkv` to the next rank. A product that does not need those of the rank before may
    /// come next: then they travel beside it.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn send_round(&self, cx: &mut StepContext<'_>, qkv: Tensor) -> Result<Travelling> {
        let here = self.own_keys(cx, qkv)?;
        let next = cx.tensor("keys_of_rank", here.shape, here.dtype)?;
        Travelling { here, next }.pass_on(cx, self)
    }

    /// `None` if a rank has whole sequences.
    pub(super) fn new(ranks: &Ranks, keys: usize) -> Option<ContextRanks> {
        WholeSamples::new(ranks).map(|whole| ContextRanks { whole, keys })
    }

    /// A copy of the keys and values of `qkv`, `(batch, tokens, width)`, in separate rows.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn own_keys(&self, cx: &mut StepContext<'_>, qkv: Tensor) -> Result<Tensor> {
        let &[batch, tokens, all] = qkv.shape.sizes() else { unreachable!("packed queries have three dimensions") };
        let own = cx.tensor("own_keys", [batch, tokens, all - self.keys], qkv.dtype)?;
        let from = Corner { matrix: qkv, row: 0, column: self.keys };
        cx.run(block(from, Corner::first(own), all - self.keys))?;
        Ok(own)
    }

    /// Gathers the keys and values of all ranks' `qkv`, `(batch, tokens, width)`. A product that does not need them may come
    /// before [`ContextRanks::in_order`]: then they travel beside it.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn gather(&self, cx: &mut StepContext<'_>, qkv: Tensor) -> Result<Gathered> {
        let own = self.own_keys(cx, qkv)?;
        Ok(Gathered { by_rank: self.whole.gather_by_rank(cx, "gathered_keys", own)? })
    }

    /// The keys and values of whole sequences.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn in_order(&self, cx: &mut StepContext<'_>, gathered: Gathered) -> Result<RankKeys> {
        let rows = self.whole.by_position(cx, "whole_keys", gathered.by_rank)?;
        Ok(RankKeys { rows, share: self.whole.share, of: KeysOf::AllRanks })
    }

    /// The same keys with memory for the gradients from the queries here.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn with_gradient(&self, cx: &mut StepContext<'_>, keys: RankKeys) -> Result<RankKeysBackward> {
        Ok(RankKeysBackward { keys, grad: cx.tensor("grad_whole_keys", keys.rows.shape, keys.rows.dtype)? })
    }

    /// Writes the gradients of this rank's keys and values to the columns of keys and values in `grad_qkv`: the sums
    /// over all ranks' queries.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn scatter(&self, cx: &mut StepContext<'_>, keys: RankKeysBackward, grad_qkv: Tensor) -> Result<()> {
        let &[batch, tokens, all] = grad_qkv.shape.sizes() else { unreachable!("as for the queries") };
        let (ranks, width, by_position) = (self.whole.share.ranks, all - self.keys, keys.grad);
        let by_rank = cx.tensor("grad_keys_by_rank", [ranks, batch, tokens, width], by_position.dtype)?;
        cx.run(OrderRows { by_rank, by_position, to: RowOrder::ByRank })?;
        let own = cx.tensor("grad_own_keys", [batch, tokens, width], by_position.dtype)?;
        self.whole.transfer(cx, CollectiveKind::ReduceScatterSum, [by_rank, own])?;
        let to = Corner { matrix: grad_qkv, row: 0, column: self.keys };
        cx.run(block(Corner::first(own), to, width))
    }
}

/// A copy of all rows of `columns` columns.
pub(super) fn block(from: Corner, to: Corner, columns: usize) -> ScaleBlock {
    ScaleBlock { from, to, rows: from.matrix.shape.rows(), columns, factor: 1.0, square_sum: None }
}
