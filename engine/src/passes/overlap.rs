//! A forward runs next to the backward of another microbatch.
//!
//! The schedule has each such forward right before its backward. The pass puts the regions of forwards on the second
//! lane, with communicators of their own for transfers within layers, so the backward that follows goes on next to them. The first
//! forwards have no backward beside them; they run on that lane too, because a region's graph belongs to one lane.
//!
//! Order that it removes: a backward does not wait for the forward before it; the tasks after both wait for both.

use std::rc::Rc;

use device::Communicator;
use graph_manager::{Phase, Piece, StepPass};
use parallel::Task;

use super::name::PassName;
use super::task_walk::TaskWalk;
use crate::regions::Region;

/// The pass.
pub(crate) struct Overlap {
    tasks: Vec<Task>,
    walk: TaskWalk,
    /// The number of forwards that come before all backwards.
    ahead: usize,
    /// The heads: their forward belongs to a backward.
    heads: Vec<usize>,
    /// Communicators, each with the twin that forwards use.
    twins: Vec<(Rc<dyn Communicator>, Rc<dyn Communicator>)>,
}

impl Overlap {
    /// For the tasks of a step.
    pub(crate) fn new(
        tasks: &[Task],
        walk: TaskWalk,
        ahead: usize,
        heads: Vec<usize>,
        twins: Vec<(Rc<dyn Communicator>, Rc<dyn Communicator>)>,
    ) -> Overlap {
        Overlap { tasks: tasks.to_vec(), walk, ahead, heads, twins }
    }
}

impl StepPass<Region> for Overlap {
    fn name(&self) -> &'static str {
        PassName::Overlap.words()
    }

    fn runs_aside(&mut self, region: Region) -> bool {
        match region {
            Region::Inputs { .. } | Region::Outputs { .. } | Region::Hook { .. } => true,
            Region::Chunk { phase, .. } => phase == Phase::Forward,
            Region::Forward { layer, .. } => !self.heads.contains(&layer),
            _ => false,
        }
    }

    fn apply(&mut self, piece: &mut Piece<Region>) {
        if piece.is_aside() {
            for entry in &mut piece.entries {
                if let Some((_, twin)) = self.twins.iter().find(|(group, _)| entry.is_transfer_of(group)) {
                    entry.change_communicator(twin);
                }
            }
        }
        let Some(ended) = self.walk.reach(piece) else { return };
        piece.joins_aside = match ended.checked_sub(1).map(|last| self.tasks[last]) {
            Some(Task::Forward { .. }) => ended <= self.ahead,
            Some(_) => true,
            None => false,
        };
    }
}
