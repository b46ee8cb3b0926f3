//! How ranks share a layer (Shoeybi et al., 2019; with sequence parallelism Korthikanti et al., 2022).
//!
//! A layer's first matrix is cut by columns of its result, so that each rank computes some attention heads or some
//! channels of the feed-forward layer from the whole input; its second matrix is cut by its inputs, and the ranks' results
//! are summed. Between layers every rank has all rows of the residual stream, or with sequence parallelism its own part:
//! the sum is then a reduce-scatter, and an all-gather comes before the next first matrix.
//!
//! A part is a run of consecutive rows `(sample, token)` of the microbatch, whatever samples they belong to: norms, dropout
//! and residual adds go row by row, and rows of one rank lie together, so no transfer needs a copy.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind, DropoutPart};
use device::{Communicator, Shape, Tensor};
use graph_manager::{Result, StepContext};

use crate::cut::Cut;

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

    /// The cut of a parameter along `axis`, where groups of rows or columns of these sizes are packed; none for a rank
    /// that has its layers whole.
    pub(crate) fn cut(&self, axis: usize, groups: &[usize]) -> Option<Cut> {
        let (rank, ranks) = (self.rank(), self.size());
        (ranks > 1).then(|| Cut { axis, groups: groups.to_vec(), rank, ranks })
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
        (batch, seq): (usize, usize),
    ) -> Result<Tensor> {
        let Some(group) = self.group.as_ref().filter(|_| self.cuts_rows()) else { return Ok(here) };
        let all = cx.tensor(name, [batch, seq, here.shape.last()], here.dtype)?;
        let kind = CollectiveKind::AllGather;
        cx.run(Collective { kind, communicator: group.clone(), input: here, output: all })?;
        Ok(all)
    }

    /// The sum over ranks of `(batch, seq, width)`: in its place, or only the rows that are here.
    ///
    /// # Errors
    /// What the device refused.
    pub(crate) fn sum(&self, cx: &mut StepContext<'_>, name: &'static str, partial: Tensor) -> Result<Tensor> {
        let Some(group) = self.group.clone().filter(|_| self.size() > 1) else { return Ok(partial) };
        if !self.sequence {
            cx.run(Collective::in_place(CollectiveKind::AllReduceSum, group, partial))?;
            return Ok(partial);
        }
        let rows = partial.shape.rows() / self.size();
        let here = cx.tensor(name, Shape::new(&[1, rows, partial.shape.last()]), partial.dtype)?;
        let kind = CollectiveKind::ReduceScatterSum;
        cx.run(Collective { kind, communicator: group, input: partial, output: here })?;
        Ok(here)
    }
}
