//! The ranks that write a checkpoint, and the share of each.

use std::path::Path;
use std::rc::Rc;

use launch::watch::activity::Activity;
use parallel::{Axis, Place};

use super::file::{CheckpointFile, Tensors};
use crate::config::plan::RunPlan;
use crate::error::SaveError;
use crate::process_group::ProcessGroup;

/// The ranks that write a checkpoint together. Each writes the state that it alone has.
pub struct Writers {
    /// This rank's number among the ranks with different parts of the state: the ranks that share layers, those that divide
    /// experts, the stages, and with a distributed optimizer all ranks.
    pub rank: usize,
    /// The number of ranks with different parts of the state.
    pub ranks: usize,
    /// Whether this rank writes. Other ranks with the same state do not, but go through the same steps.
    pub writes: bool,
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
        let ranks = &group.ranks;
        let (any, sum) = (group.control.clone(), group.control.clone());
        let divided = plan.parallel.rest() | ranks.mesh().with_other_weights() | ranks.axes(Axis::Pipeline);
        let Place { index: rank, count } = ranks.place(divided);
        Writers {
            rank,
            ranks: count,
            writes: ranks.place(ranks.mesh().everyone() - divided).is_first(),
            any: Rc::new(move |here| any.any(here)),
            sum: Rc::new(move |value| sum.sum(value)),
            activity: group.activity.clone(),
        }
    }

    /// One rank that has everything.
    pub fn alone() -> Writers {
        let (any, sum) = (Rc::new(|here| here), Rc::new(|here| here));
        let activity = Activity::default();
        Writers { rank: 0, ranks: 1, writes: true, any, sum, activity }
    }

    /// Whether this rank makes the folder, writes the manifest and publishes the checkpoint.
    pub(super) fn leads(&self) -> bool {
        self.writes && self.rank == 0
    }

    /// The result here, or an error if the result of another rank is one. All ranks call it together.
    pub(super) fn agree<T>(&self, path: &Path, result: Result<T, SaveError>) -> Result<T, SaveError> {
        match ((self.any)(result.is_err()), result) {
            (true, Ok(_)) => Err(SaveError::Peer { path: path.into() }),
            (_, result) => result,
        }
    }

    /// This rank's file of the tensors `of`.
    pub(super) fn file(&self, of: Tensors) -> CheckpointFile {
        CheckpointFile::Tensors(of, (self.ranks > 1).then_some((self.rank, self.ranks)))
    }
}
