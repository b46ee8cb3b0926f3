//! How ranks share a layer (Shoeybi et al., 2019; with sequence parallelism Korthikanti et al., 2022).
//!
//! A layer's first matrix is cut by columns of its result, so that each rank computes some attention heads or some
//! channels of the feed-forward layer from the whole input; its second matrix is cut by its inputs, and the ranks' results
//! are summed. Between layers every rank has all rows of the residual stream, or with sequence parallelism its own part:
//! the sum is then a reduce-scatter, and an all-gather comes before the next first matrix.
//!
//! In backward most transfers go on beside products that do not wait for them. The first matrix's input is gathered while
//! what lies between it and the second matrix is computed. Its gradient is summed, and the gradient that the other half of
//! the block begins with is gathered, while gradients of weights are computed, which nothing waits for.
//!
//! A part is a run of consecutive rows `(sample, token)` of the microbatch, whatever samples they belong to: norms, dropout
//! and residual adds go row by row, and rows of one rank lie together, so no transfer needs a copy.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind, DropoutPart};
use device::{Communicator, DType, Op, Shape, Tensor};
use graph_manager::{Fork, Result};

use crate::params::TensorShard;
use crate::step_policy::StepContext;

/// What this rank has of each layer.
#[derive(Clone, Debug, Default)]
pub struct TensorParallel {
    /// The ranks that share layers; none where a rank has them whole.
    pub group: Option<Rc<dyn Communicator>>,
    /// Each rank has a part of the residual stream's rows.
    pub sequence: bool,
}

impl TensorParallel {
    /// A rank that has its layers whole.
    pub fn alone() -> TensorParallel {
        TensorParallel::default()
    }

    /// Which part is here.
    pub fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, |group| group.rank())
    }

    /// Into how many parts layers are cut.
    pub fn size(&self) -> usize {
        self.group.as_ref().map_or(1, |group| group.size())
    }

    /// The shard of a parameter that is divided along `axis`, where groups of rows or columns of these sizes are packed;
    /// `None` for a rank that has its layers whole.
    pub(crate) fn shard(&self, axis: usize, groups: &[usize]) -> Option<TensorShard> {
        let (rank, ranks) = (self.rank(), self.size());
        (ranks > 1).then(|| TensorShard { axis, groups: groups.to_vec(), rank, ranks })
    }

    /// Whether gradients of what is computed on the residual stream are of this rank's rows alone.
    pub(crate) fn cuts_rows(&self) -> bool {
        self.sequence && self.size() > 1
    }

    /// `value` on one of the ranks that share a layer, nothing on the others: what is added before a sum over them.
    pub(crate) fn once<T>(&self, value: Option<T>) -> Option<T> {
        value.filter(|_| self.rank() == 0)
    }

    /// Where the rows of the residual stream that are here lie among a microbatch's, for dropout.
    pub(crate) fn rows(&self, batch: usize, seq: usize) -> DropoutPart {
        let first_row = if self.cuts_rows() { self.rank() * (batch * seq / self.size()) } else { 0 };
        DropoutPart { first_row, tokens: seq, first_head: 0 }
    }

    /// All rows `(batch, seq, width)` of what has the rows of the residual stream that are here.
    ///
    /// # Errors
    /// What the device refused.
    pub(crate) fn all_rows(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        here: Tensor,
        tokens: (usize, usize),
    ) -> Result<Tensor> {
        let (all, gather) = self.gather(cx, name, here, tokens)?;
        gather.map_or(Ok(()), |gather| cx.run(gather))?;
        Ok(all)
    }

    /// As [`TensorParallel::all_rows`], beside what follows until it is joined.
    ///
    /// # Errors
    /// What the device refused.
    pub(crate) fn all_rows_beside(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        here: Tensor,
        tokens: (usize, usize),
    ) -> Result<Coming> {
        let (tensor, gather) = self.gather(cx, name, here, tokens)?;
        Ok(Coming { tensor, fork: cx.fork(cx.side_stream(), gather.map(Op::from))? })
    }

    fn gather(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        here: Tensor,
        (batch, seq): (usize, usize),
    ) -> Result<(Tensor, Option<Collective>)> {
        let Some(group) = self.group.as_ref().filter(|_| self.cuts_rows()) else { return Ok((here, None)) };
        let all = cx.tensor(name, [batch, seq, here.shape.last()], here.dtype)?;
        let kind = CollectiveKind::AllGather;
        Ok((all, Some(Collective { kind, communicator: group.clone(), input: here, output: all })))
    }

    /// The sum over ranks of `(batch, seq, width)`: in its place, or only the rows that are here.
    ///
    /// # Errors
    /// What the device refused.
    pub(crate) fn sum(&self, cx: &mut StepContext<'_>, name: &'static str, partial: Tensor) -> Result<Tensor> {
        let (sum, reduce) = self.reduce(cx, name, partial)?;
        reduce.map_or(Ok(()), |reduce| cx.run(reduce))?;
        Ok(sum)
    }

    /// As [`TensorParallel::sum`], beside what follows until it is joined.
    ///
    /// # Errors
    /// What the device refused.
    pub(crate) fn sum_beside(&self, cx: &mut StepContext<'_>, name: &'static str, partial: Tensor) -> Result<Coming> {
        let (tensor, reduce) = self.reduce(cx, name, partial)?;
        Ok(Coming { tensor, fork: cx.fork(cx.side_stream(), reduce.map(Op::from))? })
    }

    fn reduce(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        partial: Tensor,
    ) -> Result<(Tensor, Option<Collective>)> {
        let Some(group) = self.group.clone().filter(|_| self.size() > 1) else { return Ok((partial, None)) };
        if !self.sequence {
            return Ok((partial, Some(Collective::in_place(CollectiveKind::AllReduceSum, group, partial))));
        }
        let rows = partial.shape.rows() / self.size();
        let here = cx.tensor(name, Shape::new(&[1, rows, partial.shape.last()]), partial.dtype)?;
        let kind = CollectiveKind::ReduceScatterSum;
        Ok((here, Some(Collective { kind, communicator: group, input: partial, output: here })))
    }
}

/// What a transfer under way writes.
#[must_use]
pub(crate) struct Coming {
    tensor: Tensor,
    fork: Fork,
}

impl Coming {
    /// Makes what follows wait for it.
    ///
    /// # Errors
    /// A failed transfer.
    pub(crate) fn join(self, cx: &StepContext<'_>) -> Result<Tensor> {
        cx.join(self.fork)?;
        Ok(self.tensor)
    }
}

/// What a layer knows of the ranks it is shared with.
#[derive(Clone)]
pub(crate) struct Share {
    pub(crate) parallel: TensorParallel,
    /// Samples of a microbatch and tokens of a sample, whatever part of the rows is here.
    pub(crate) tokens: (usize, usize),
}

impl Share {
    /// Whether there are other ranks.
    pub(crate) fn is_shared(&self) -> bool {
        self.parallel.size() > 1
    }

    /// See [`TensorParallel::all_rows`].
    pub(crate) fn all_rows(&self, cx: &mut StepContext<'_>, name: &'static str, here: Tensor) -> Result<Tensor> {
        self.parallel.all_rows(cx, name, here, self.tokens)
    }

    /// See [`TensorParallel::all_rows_beside`].
    pub(crate) fn all_rows_beside(&self, cx: &mut StepContext<'_>, name: &'static str, here: Tensor) -> Result<Coming> {
        self.parallel.all_rows_beside(cx, name, here, self.tokens)
    }

    /// A buffer over all rows of the microbatch.
    pub(crate) fn tensor(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        width: usize,
        dtype: DType,
    ) -> Result<Tensor> {
        let (batch, seq) = self.tokens;
        cx.tensor(name, [batch, seq, width], dtype)
    }
}
