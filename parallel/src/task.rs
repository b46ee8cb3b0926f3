//! The units of work that a pipeline schedule puts in order.

/// The direction of a transfer between stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Activations, sent to the next virtual stage.
    Forward,
    /// Gradients of activations, sent to the previous virtual stage.
    Backward,
}

/// A task of a stage: the forward or the backward of a chunk for one microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// The forward pass of a microbatch through a chunk. In training the head, with the loss, belongs to the backward.
    Forward {
        /// The chunk's number on the stage.
        chunk: usize,
        /// The microbatch's number in the step.
        microbatch: usize,
    },
    /// The backward pass of a microbatch through a chunk. If backward passes are split, only the gradients of
    /// activations: the previous stage waits for them.
    Backward {
        /// The chunk's number on the stage.
        chunk: usize,
        /// The microbatch's number in the step.
        microbatch: usize,
    },
    /// If backward passes are split, the weight gradients: no other stage waits for them.
    Weights {
        /// The chunk's number on the stage.
        chunk: usize,
        /// The microbatch's number in the step.
        microbatch: usize,
    },
}

impl Task {
    /// The chunk's number on the stage.
    pub fn chunk(self) -> usize {
        let (Task::Forward { chunk, .. } | Task::Backward { chunk, .. } | Task::Weights { chunk, .. }) = self;
        chunk
    }

    /// The microbatch's number in the step.
    pub fn microbatch(self) -> usize {
        let (Task::Forward { microbatch, .. } | Task::Backward { microbatch, .. } | Task::Weights { microbatch, .. }) =
            self;
        microbatch
    }

    /// The direction in which the task's result is sent. `None` for weight gradients: they stay on their stage.
    pub fn direction(self) -> Option<Direction> {
        match self {
            Task::Forward { .. } => Some(Direction::Forward),
            Task::Backward { .. } => Some(Direction::Backward),
            Task::Weights { .. } => None,
        }
    }
}

/// For each of `chunks` chunks, the largest number of microbatches in flight: their forward has run, and their backward
/// (or, if backward passes are split, their weight gradients) has not. This is the number of slots the chunk needs.
///
/// # Panics
/// If a backward comes before its forward.
pub fn in_flight(tasks: &[Task], chunks: usize) -> Vec<usize> {
    let split = tasks.iter().any(|task| matches!(task, Task::Weights { .. }));
    let (mut now, mut most) = (vec![0_usize; chunks], vec![0; chunks]);
    for task in tasks {
        match *task {
            Task::Forward { chunk, .. } => {
                now[chunk] += 1;
                most[chunk] = most[chunk].max(now[chunk]);
            }
            Task::Backward { .. } if split => {}
            Task::Backward { chunk, microbatch } | Task::Weights { chunk, microbatch } => {
                assert!(now[chunk] > 0, "backward of microbatch {microbatch} in chunk {chunk} without a forward");
                now[chunk] -= 1;
            }
        }
    }
    most
}
