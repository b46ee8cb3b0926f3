//! Pipeline schedules: the placement of virtual stages on stages, and the order of each stage's work.

use crate::orders::{in_turn, interleaved_warmup, overlapping_warmup, warmup_in_1f1b, with_weights_deferred};
use crate::{Placement, Task};

/// How the stages of a pipeline share the model and the work of a step.
///
/// A schedule is an order of tasks and a placement of virtual stages. Both are pure functions of a few sizes, so each
/// stage knows its whole step in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    order: Order,
    placement: Placement,
    overlaps: bool,
}

/// The order in which a stage runs tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    OneFOneB,
    ZeroBubble,
    Interleaved {
        /// Microbatches that run through one chunk before the next chunk's turn.
        group: usize,
    },
}

impl Schedule {
    /// One forward, one backward: one chunk per stage, at most as many microbatches in flight as stages.
    ///
    /// # Panics
    /// If `stages` is 0, here and below.
    pub fn one_f_one_b(stages: usize) -> Schedule {
        Schedule { order: Order::OneFOneB, placement: Placement::new(stages, 1), overlaps: false }
    }

    /// Zero bubble (ZB-H1): 1F1B with split backwards. The weight gradients run when a stage would otherwise wait.
    pub fn zero_bubble(stages: usize) -> Schedule {
        Schedule { order: Order::ZeroBubble, placement: Placement::new(stages, 1), overlaps: false }
    }

    /// Interleaved 1F1B: `chunks` chunks per stage, and `group` microbatches through one chunk before the next. One
    /// chunk is plain 1F1B, and `group` has no meaning.
    pub fn interleaved(stages: usize, chunks: usize, group: usize) -> Schedule {
        if chunks == 1 {
            return Schedule::one_f_one_b(stages);
        }
        Schedule { order: Order::Interleaved { group }, placement: Placement::new(stages, chunks), overlaps: false }
    }

    /// The same with another order: forwards can run next to backwards of other microbatches. With one chunk up to
    /// twice as many microbatches are in flight, with several one task more. A step needs more than `2 * stages - 1`
    /// microbatches for any overlap on the first stage. `None` for zero bubble.
    pub fn overlapping(self) -> Option<Schedule> {
        (self.order != Order::ZeroBubble).then_some(Schedule { overlaps: true, ..self })
    }

    /// Whether forwards can run next to backwards of other microbatches.
    pub fn overlaps(self) -> bool {
        self.overlaps
    }

    /// The number of forwards that a stage runs before its first backward, if a step has so many. If tasks overlap,
    /// each later forward can run next to the backward after it.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn warmup(self, stage: usize) -> usize {
        let (stages, chunks) = (self.placement.stages(), self.placement.chunks());
        assert!(stage < stages, "stage {stage} of {stages}");
        match self.order {
            _ if self.overlaps => overlapping_warmup(stages, stage, chunks, self.group().unwrap_or(1)),
            Order::OneFOneB | Order::ZeroBubble => warmup_in_1f1b(stages, stage),
            Order::Interleaved { group } => interleaved_warmup(stages, stage, chunks, group),
        }
    }

    /// The placement of virtual stages on stages.
    pub fn placement(self) -> Placement {
        self.placement
    }

    /// Whether weight gradients are separate tasks ([`Task::Weights`]).
    pub fn splits_backward(self) -> bool {
        self.order == Order::ZeroBubble
    }

    /// Microbatches that run through one chunk before the next chunk's turn. `None` with one chunk per stage.
    pub fn group(self) -> Option<usize> {
        match self.order {
            Order::Interleaved { group } => Some(group),
            Order::OneFOneB | Order::ZeroBubble => None,
        }
    }

    /// Whether a step can have so many microbatches. With several chunks, each group must have at least as many
    /// microbatches as there are stages, the last and possibly incomplete group too: with fewer, stages would wait for each
    /// other forever.
    pub fn takes(self, microbatches: usize) -> bool {
        let Some(group) = self.group() else { return true };
        let stages = self.placement.stages();
        if !(stages..=microbatches).contains(&group) {
            return false;
        }
        let rest = microbatches % group;
        rest == 0 || rest >= stages
    }

    /// The tasks of a stage in a step, in order. `None` if a step cannot have so many microbatches.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn tasks(self, stage: usize, microbatches: usize) -> Option<Vec<Task>> {
        let warmup = self.warmup(stage);
        self.takes(microbatches).then(|| {
            let group = self.group().unwrap_or(1);
            let tasks = in_turn(self.placement.chunks(), microbatches, group, warmup);
            if self.splits_backward() { with_weights_deferred(tasks, stage, microbatches) } else { tasks }
        })
    }
}
