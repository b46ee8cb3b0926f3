//! The ranks that write a checkpoint, and the share of each.

use std::path::Path;
use std::rc::Rc;

use launch::watch::activity::Activity;
use parallel::Axis;

use super::file::{CheckpointFile, Tensors};
use super::layout::LocalTensor;
use crate::config::plan::RunPlan;
use crate::error::SaveError;
use crate::process_group::ProcessGroup;

/// The ranks that write a checkpoint together. Each writes the state that it alone has.
pub struct Writers {
    /// This rank's number among the ranks with different parts of the state: the ranks that share layers, the stages, and
    /// with a distributed optimizer all ranks.
    pub rank: usize,
    /// How many these are.
    pub ranks: usize,
    /// Whether this rank writes. Other ranks with the same state do not, but go through the same steps.
    pub writes: bool,
    /// Whether it writes the tensors that every rank of its tensor-parallel group has.
    pub writes_replicated: bool,
    /// Whether the argument is true on any rank of the run. All ranks call it together.
    pub any: Rc<dyn Fn(bool) -> bool>,
    /// The sum of the argument over all ranks of the run. All ranks call it together.
    pub sum: Rc<dyn Fn(u64) -> u64>,
    /// Counts each MiB written, so that the watch sees progress.
    pub activity: Activity,
}

impl Writers {
    /// The ranks of a run.
    pub fn new(plan: &RunPlan, group: &ProcessGroup) -> Writers {
        let grid = &plan.parallel.grid;
        let at = |axis| grid.coordinate(group.rank, axis);
        let (any, sum) = (group.control.clone(), group.control.clone());
        // With a distributed optimizer every rank has a part that no other has.
        let divided = plan.parallel.distributed_optimizer;
        Writers {
            rank: if divided { group.rank } else { at(Axis::Pipeline) * grid.size(Axis::Tensor) + at(Axis::Tensor) },
            ranks: if divided { grid.ranks() } else { grid.size(Axis::Pipeline) * grid.size(Axis::Tensor) },
            writes: divided || at(Axis::Data) == 0,
            writes_replicated: at(Axis::Tensor) == 0,
            any: Rc::new(move |here| any.any(here)),
            sum: Rc::new(move |value| sum.sum(value)),
            activity: group.activity.clone(),
        }
    }

    /// One rank that has everything.
    pub fn alone() -> Writers {
        let (any, sum) = (Rc::new(|here| here), Rc::new(|here| here));
        let activity = Activity::default();
        Writers { rank: 0, ranks: 1, writes: true, writes_replicated: true, any, sum, activity }
    }

    /// Whether this rank makes the folder, writes the manifest and publishes the checkpoint.
    pub(super) fn leads(&self) -> bool {
        self.writes && self.rank == 0
    }

    /// Whether this rank writes its updated blocks of a tensor.
    pub(super) fn writes_tensor(&self, tensor: &LocalTensor) -> bool {
        !tensor.tied_replica && (self.writes_replicated || !tensor.replicated)
    }

    /// The result here, or an error if the result of another rank is one. All ranks call it together.
    pub(super) fn agree<T>(&self, path: &Path, result: Result<T, SaveError>) -> Result<T, SaveError> {
        match ((self.any)(result.is_err()), result) {
            (true, Ok(_)) => Err(SaveError::Peer { path: path.into() }),
            (_, result) => result,
        }
    }

    /// This rank's file of these tensors.
    pub(super) fn file(&self, of: Tensors) -> CheckpointFile {
        CheckpointFile::Tensors(of, (self.ranks > 1).then_some((self.rank, self.ranks)))
    }
}
