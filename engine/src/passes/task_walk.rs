//! Finds the beginnings and ends of a step's tasks among the step's regions.

use graph_manager::{Piece, Then};
use parallel::{PipelineStage, Task};

use crate::model::Chunk;
use crate::regions::Region;

/// A step's tasks, and how many have ended.
pub(super) struct TaskWalk {
    /// By task: its last region. A hook may come after it.
    ends: Vec<Region>,
    ended: usize,
    /// The next piece between regions comes after the end of a task, or before the first one.
    between: bool,
}

impl TaskWalk {
    pub(super) fn new(stage: PipelineStage, chunks: &[Chunk], tasks: &[Task], trains: bool) -> TaskWalk {
        let ends = tasks.iter().map(|&task| last_region(stage, &chunks[task.chunk()], task, trains)).collect();
        TaskWalk { ends, ended: 0, between: false }
    }

    /// Goes on to a piece. If it is the first piece between regions after the end of a task, or after the step's
    /// beginning, returns the number of tasks that have ended.
    pub(super) fn reach(&mut self, piece: &Piece<Region>) -> Option<usize> {
        let region = piece.region();
        if piece.then() == Then::End && (region == Region::Begin || self.ends.get(self.ended) == Some(&region)) {
            self.ended += usize::from(region != Region::Begin);
            self.between = true;
            return None;
        }
        let is_between = region == Region::Iteration && std::mem::take(&mut self.between);
        is_between.then_some(self.ended)
    }

    /// Tasks that have ended.
    pub(super) fn ended(&self) -> usize {
        self.ended
    }
}

/// The last region of a task.
fn last_region(stage: PipelineStage, chunk: &Chunk, task: Task, trains: bool) -> Region {
    let (first, last, microbatch) = (chunk.first, chunk.last(), task.microbatch());
    match task {
        Task::Forward { .. } if stage.sends(task) => Region::Outputs { layer: last, microbatch },
        // An evaluation's forward goes on to the losses.
        Task::Forward { .. } if !trains && chunk.head.is_some() => Region::Forward { layer: last, microbatch },
        Task::Forward { .. } => match chunk.layers.len().checked_sub(1) {
            Some(layers) => Region::Forward { layer: first + layers, microbatch },
            None => Region::Inputs { layer: first, microbatch },
        },
        Task::Backward { .. } if stage.sends(task) => Region::InputGradients { layer: first, microbatch },
        Task::Backward { .. } => Region::Backward { layer: first, microbatch },
        Task::Weights { .. } => Region::WeightGradients { layer: first, microbatch },
    }
}
