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

use device::ops::{Collective, CollectiveKind};
use device::{Communicator, Shape, Tensor};
use graph_manager::Result;
use parallel::{Axis, Place, Purpose, Ranks};

use super::buffers::all_rows;
use crate::params::{ParamSpec, Part};
use crate::step_policy::StepContext;

/// How ranks share layers.
#[derive(Clone, Debug)]
pub struct TensorParallel {
    /// The rank's place in the mesh, and the rank's communicators.
    pub ranks: Rc<Ranks>,
    /// Sequence parallelism: each rank has its own rows of the residual stream.
    pub sequence: bool,
    /// The transfers of ranks that divide sequences.
    pub context: ContextTransfers,
}

/// What ranks that divide sequences exchange in attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextTransfers {
    /// A rank gathers the keys and values of whole sequences.
    #[default]
    Keys,
    /// Keys and values travel round the ranks, one rank's after the other. Layers with windows, and samples of several
    /// documents, have them gathered.
    Ring,
    /// A rank gets all tokens of some heads. The ranks divide the heads, and the key and value heads.
    Heads,
}

impl TensorParallel {
    /// One rank with whole layers.
    pub fn alone() -> TensorParallel {
        TensorParallel { ranks: Ranks::alone(), sequence: false, context: ContextTransfers::Keys }
    }

    /// The ranks that share layers; `None` if each rank has whole layers.
    pub fn group(&self) -> Option<&Rc<dyn Communicator>> {
        self.ranks.along(Axis::Tensor)
    }

    /// This rank within the group.
    pub fn rank(&self) -> usize {
        self.ranks.at(Axis::Tensor).index
    }

    /// Ranks of the group.
    pub fn size(&self) -> usize {
        self.ranks.at(Axis::Tensor).count
    }

    /// This rank's share of a parameter whose rows are divided. The parameter packs `groups`; of each a rank has an equal
    /// part, or a copy of one.
    pub(crate) fn rows(&self, whole: ParamSpec, groups: &[Packed]) -> ParamSpec {
        let [tensor, copies] = [Axis::Tensor, Axis::KeyHeadCopies].map(|axis| self.ranks.axes(axis));
        let part = |packed: &Packed| match packed.has_copies(self.size()) {
            false => Part::whole(vec![packed.size]).cut(0, tensor),
            // Each rank computes a partial sum of a copied head's gradient, from its own query heads.
            true => Part { partial: copies, ..Part::whole(vec![packed.size]).cut(0, tensor - copies) },
        };
        whole.lying_in(&self.ranks, groups.iter().map(part).collect())
    }

    /// This rank's share of a parameter whose columns are divided in equal parts. `rows` are its [rows](Part::rows).
    pub(crate) fn columns(&self, whole: ParamSpec, rows: Vec<usize>) -> ParamSpec {
        let columns = rows.len();
        whole.lying_in(&self.ranks, vec![Part::whole(rows).cut(columns, self.ranks.axes(Axis::Tensor))])
    }

    /// The share that this rank has of a parameter of experts in parts. Ranks divide the experts, which are the first of each part's
    /// [rows](Part::rows), and the channels of each.
    pub(crate) fn of_experts(&self, whole: ParamSpec, parts: Vec<Vec<usize>>, channels: Channels) -> ParamSpec {
        let [experts, within] = [Axis::Expert, Axis::ExpertTensor].map(|axis| self.ranks.axes(axis));
        let part = |rows: Vec<usize>| {
            let dims = rows.len();
            let part = Part::whole(rows).cut(0, experts);
            match channels {
                Channels::None => part,
                Channels::Rows => part.cut(dims - 1, within),
                Channels::Columns => part.cut(dims, within),
            }
        };
        let mut spec = whole.lying_in(&self.ranks, parts.into_iter().map(part).collect());
        spec.spread.more_tokens = self.ranks.axes(Axis::ExpertData) - self.ranks.axes(Axis::Tokens);
        spec
    }

    /// The ranks with other experts of the same layers; `None` if each rank has all.
    pub(crate) fn expert_group(&self) -> Option<Rc<dyn Communicator>> {
        self.ranks.for_purpose(self.ranks.axes(Axis::Expert), Purpose::Rows).cloned()
    }

    /// A parameter that each rank has whole, while each rank computes a partial sum of the gradient.
    pub(crate) fn partial(&self, whole: ParamSpec) -> ParamSpec {
        whole.partial_over(self.ranks.axes(Axis::Tensor))
    }

    /// A parameter of the residual stream's rows. If this rank has only some rows, it computes a partial sum of the
    /// gradient.
    pub(crate) fn partial_of_rows(&self, whole: ParamSpec) -> ParamSpec {
        if self.splits_rows() { self.partial(whole) } else { whole }
    }

    /// Whether this rank has only some rows of the residual stream. Gradients that are computed from these rows are
    /// then partial sums.
    pub(crate) fn splits_rows(&self) -> bool {
        self.sequence && self.size() > 1
    }

    /// This rank's rows of the residual stream.
    pub(crate) fn row_share(&self) -> Place {
        if self.sequence { self.ranks.at(Axis::Tensor) } else { Place::ALONE }
    }

    /// `value` on the group's first rank, `None` on the others: for a value that is added once before a sum over the
    /// ranks.
    pub(crate) fn on_first_rank<T>(&self, value: Option<T>) -> Option<T> {
        value.filter(|_| self.rank() == 0)
    }

    /// All rows `(batch, seq, width)` of a tensor that has this rank's rows of the residual stream, `(1, rows, width)`.
    /// Without sequence parallelism that is the tensor itself.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn gather_rows(&self, cx: &mut StepContext<'_>, name: &'static str, rows: Tensor) -> Result<Tensor> {
        let Some(communicator) = self.group().cloned().filter(|_| self.splits_rows()) else {
            return Ok(rows);
        };
        let all = all_rows(cx, name, rows.shape.last(), rows.dtype)?;
        cx.run(Collective { kind: CollectiveKind::AllGather, communicator, input: rows, output: all })?;
        Ok(all)
    }

    /// The sum over the ranks of `(batch, seq, width)`: in place, or with sequence parallelism this rank's rows of it,
    /// `(1, rows, width)`.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn reduce(&self, cx: &mut StepContext<'_>, name: &'static str, partial: Tensor) -> Result<Tensor> {
        let ranks = self.size();
        let communicator = self.group().cloned().filter(|_| ranks > 1);
        let Some(communicator) = communicator else { return Ok(partial) };
        if !self.sequence {
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

/// The channels of an expert that ranks may divide, in a parameter of experts.
#[derive(Clone, Copy)]
pub(crate) enum Channels {
    /// A parameter without such channels.
    None,
    /// The last rows of a part.
    Rows,
    /// The columns.
    Columns,
}

/// Rows or columns packed along an axis, such as queries.
#[derive(Clone, Copy)]
pub(crate) struct Packed {
    size: usize,
    /// The number of groups of rows or columns that ranks do not cut, such as heads. With more ranks than groups, ranks store
    /// copies of the same group.
    groups: usize,
}

impl Packed {
    /// Rows or columns that ranks divide in any equal parts.
    pub(crate) fn channels(size: usize) -> Packed {
        Packed { size, groups: size }
    }

    /// Rows or columns that every rank stores.
    pub(crate) fn copied(size: usize) -> Packed {
        Packed { size, groups: 1 }
    }

    /// Whether several of so many ranks store copies of a unit.
    fn has_copies(&self, ranks: usize) -> bool {
        self.groups < ranks
    }

    /// The number of rows or columns, of all ranks together.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The number of rows or columns that each of so many ranks has.
    pub(crate) fn on_each(&self, ranks: usize) -> usize {
        self.size / ranks.min(self.groups)
    }

    /// Heads of so many channels.
    pub(crate) fn heads(heads: usize, head_dim: usize) -> Packed {
        Packed { size: heads * head_dim, groups: heads }
    }
}
