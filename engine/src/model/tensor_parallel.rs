//! How the ranks of a tensor-parallel group share a layer (Shoeybi et al., 2019; with sequence parallelism Korthikanti
//! et al., 2022).
//!
//! A layer's first matrix is column parallel: each rank computes some attention heads, or some channels of the
//! feed-forward layer, from the whole input. Its second matrix is row parallel: each rank multiplies its own inputs,
//! and the results are summed over the ranks.
//!
//! Between layers every rank has all rows of the residual stream. With sequence parallelism a rank has only its own
//! rows: the sum is then a reduce-scatter, and an all-gather comes before the next first matrix. A rank's rows are
//! consecutive rows `(sample, token)` of the microbatch, whatever samples they belong to. Norms, dropout and residual
//! adds work row by row, and a rank's rows are contiguous, so no transfer needs a copy.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind, DropoutPart};
use device::{Communicator, DType, Shape, Tensor};
use graph_manager::Result;

use crate::params::{ParamSpec, ShardGroup, TensorShard};
use crate::step_policy::StepContext;

/// The ranks that share layers.
#[derive(Clone, Debug, Default)]
pub struct TensorParallel {
    /// The ranks that share layers; `None` if each rank has whole layers.
    pub group: Option<Rc<dyn Communicator>>,
    /// The same ranks over a communicator of its own, for microbatches that overlap: the forwards that run aside use
    /// it.
    pub aside: Option<Rc<dyn Communicator>>,
    /// Sequence parallelism: each rank has its own rows of the residual stream.
    pub sequence: bool,
}

impl TensorParallel {
    /// One rank with whole layers.
    pub fn alone() -> TensorParallel {
        TensorParallel::default()
    }

    /// This rank within the group.
    pub fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, |group| group.rank())
    }

    /// Ranks of the group.
    pub fn size(&self) -> usize {
        self.group.as_ref().map_or(1, |group| group.size())
    }

    /// This rank's shard of a parameter that is split along `axis`. `groups` are packed along that axis; of each group
    /// a rank has an equal part.
    pub(crate) fn shard(&self, whole: ParamSpec, axis: usize, groups: &[Packed]) -> ParamSpec {
        let (rank, ranks) = (self.rank(), self.size());
        if ranks == 1 {
            return whole;
        }
        let group = |packed: &Packed| ShardGroup { size: packed.size, parts: ranks.min(packed.units) };
        whole.sharded(TensorShard { axis, groups: groups.iter().map(group).collect(), rank, ranks })
    }

    /// Whether this rank has only some rows of the residual stream. Gradients that are computed from these rows are
    /// then partial sums.
    pub(crate) fn splits_rows(&self) -> bool {
        self.sequence && self.size() > 1
    }

    /// `value` on the group's first rank, `None` on the others: for a value that is added once before a sum over the
    /// ranks.
    pub(crate) fn on_first_rank<T>(&self, value: Option<T>) -> Option<T> {
        value.filter(|_| self.rank() == 0)
    }
}

/// Rows or columns packed along an axis, such as queries.
#[derive(Clone, Copy)]
pub(crate) struct Packed {
    size: usize,
    /// The number of their units, such as heads. With more ranks than units, ranks store copies of the same unit.
    units: usize,
}

impl Packed {
    /// Rows or columns that ranks divide in any equal parts.
    pub(crate) fn channels(size: usize) -> Packed {
        Packed { size, units: size }
    }

    /// The number of rows or columns, of all ranks together.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The number of rows or columns that each of so many ranks has.
    pub(crate) fn on_each(&self, ranks: usize) -> usize {
        self.size / ranks.min(self.units)
    }

    /// Heads of so many channels.
    pub(crate) fn heads(heads: usize, head_dim: usize) -> Packed {
        Packed { size: heads * head_dim, units: heads }
    }
}

/// The group that shares a layer, as the layer knows it: the ranks, and the microbatch's sizes.
#[derive(Clone)]
pub(crate) struct LayerRanks {
    pub(crate) parallel: TensorParallel,
    /// Samples of a microbatch and tokens of a sample, whichever rows this rank has.
    pub(crate) tokens: (usize, usize),
}

impl LayerRanks {
    /// This rank's rows of the residual stream among the microbatch's, for dropout.
    pub(crate) fn dropout_rows(&self) -> DropoutPart {
        let (batch, seq) = self.tokens;
        let parallel = &self.parallel;
        let first_row = if parallel.splits_rows() { parallel.rank() * (batch * seq / parallel.size()) } else { 0 };
        DropoutPart { first_row, tokens: seq, ..DropoutPart::default() }
    }

    /// A buffer with all rows of the microbatch, `(batch, seq, width)`.
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

    /// All rows `(batch, seq, width)` of a tensor that has this rank's rows of the residual stream, `(1, rows, width)`.
    /// Without sequence parallelism that is the tensor itself.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn gather_rows(&self, cx: &mut StepContext<'_>, name: &'static str, rows: Tensor) -> Result<Tensor> {
        let Some(communicator) = self.parallel.group.clone().filter(|_| self.parallel.splits_rows()) else {
            return Ok(rows);
        };
        let all = self.tensor(cx, name, rows.shape.last(), rows.dtype)?;
        cx.run(Collective { kind: CollectiveKind::AllGather, communicator, input: rows, output: all })?;
        Ok(all)
    }

    /// The sum over the ranks of `(batch, seq, width)`: in place, or with sequence parallelism this rank's rows of it,
    /// `(1, rows, width)`.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn reduce(&self, cx: &mut StepContext<'_>, name: &'static str, partial: Tensor) -> Result<Tensor> {
        let ranks = self.parallel.size();
        let communicator = self.parallel.group.clone().filter(|_| ranks > 1);
        let Some(communicator) = communicator else { return Ok(partial) };
        if !self.parallel.sequence {
            cx.run(Collective::in_place(CollectiveKind::AllReduceSum, communicator, partial))?;
            return Ok(partial);
        }
        let rows = partial.shape.rows() / ranks;
        let own = cx.tensor(name, Shape::new(&[1, rows, partial.shape.last()]), partial.dtype)?;
        let kind = CollectiveKind::ReduceScatterSum;
        cx.run(Collective { kind, communicator, input: partial, output: own })?;
        Ok(own)
    }
}
