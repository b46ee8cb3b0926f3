//! One stage of a pipeline: its tasks, and their exchange of data with other stages.

use crate::{Direction, Placement, ReceiveQueue, Schedule, Task};

/// One stage of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineStage {
    schedule: Schedule,
    stage: usize,
}

impl PipelineStage {
    /// The only stage: it has the whole model.
    pub fn single() -> PipelineStage {
        PipelineStage::new(Schedule::one_f_one_b(1), 0)
    }

    /// Stage `stage` of a schedule, counted from 0.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn new(schedule: Schedule, stage: usize) -> PipelineStage {
        let stages = schedule.placement().stages();
        assert!(stage < stages, "stage {stage} of {stages}");
        PipelineStage { schedule, stage }
    }

    /// The schedule of all stages.
    pub fn schedule(self) -> Schedule {
        self.schedule
    }

    /// The placement of virtual stages on stages.
    pub fn placement(self) -> Placement {
        self.schedule.placement()
    }

    /// The number of this stage, from 0.
    pub fn stage(self) -> usize {
        self.stage
    }

    /// The number of chunks on this stage.
    pub fn chunks(self) -> usize {
        self.placement().chunks()
    }

    /// The virtual stage that is a chunk of this stage.
    pub fn virtual_stage(self, chunk: usize) -> usize {
        self.placement().virtual_stage(self.stage, chunk)
    }

    /// The tasks of a step in order. `None` if a step cannot have so many microbatches.
    pub fn tasks(self, microbatches: usize) -> Option<Vec<Task>> {
        self.schedule.tasks(self.stage, microbatches)
    }

    /// Whether a task begins with data from another stage.
    pub fn receives(self, task: Task) -> bool {
        match task.direction() {
            Some(Direction::Forward) => !self.has_first_part(task),
            Some(Direction::Backward) => !self.has_last_part(task),
            None => false,
        }
    }

    /// Whether the result of a task goes to another stage.
    pub fn sends(self, task: Task) -> bool {
        match task.direction() {
            Some(Direction::Forward) => !self.has_last_part(task),
            Some(Direction::Backward) => !self.has_first_part(task),
            None => false,
        }
    }

    fn has_first_part(self, task: Task) -> bool {
        self.virtual_stage(task.chunk()) == 0
    }

    fn has_last_part(self, task: Task) -> bool {
        self.virtual_stage(task.chunk()) + 1 == self.placement().virtual_stages()
    }

    /// The number of buffers for receives in one direction.
    ///
    /// With several chunks, the last stage feeds the first stage's next chunk. The first stage takes an activation only
    /// after its whole group has passed the previous chunk, so several activations wait there. The same holds for
    /// gradients on the last stage.
    pub fn receive_buffers(self, direction: Direction) -> usize {
        let stages = self.placement().stages();
        let receives_wrapped = match direction {
            Direction::Forward => self.stage == 0,
            Direction::Backward => self.stage + 1 == stages,
        };
        match self.schedule.group() {
            Some(group) if receives_wrapped => group - stages + 1,
            _ => 1,
        }
    }

    /// The receives of one direction in a step with `tasks`.
    pub fn receive_queue(self, direction: Direction, tasks: &[Task]) -> ReceiveQueue {
        let receives = |(_, task): &(usize, &Task)| task.direction() == Some(direction) && self.receives(**task);
        let receivers = tasks.iter().enumerate().filter(receives).map(|(at, _)| at).collect();
        let ahead = if self.schedule.overlaps() { 2 } else { 1 };
        ReceiveQueue::new(receivers, self.receive_buffers(direction), ahead)
    }
}
