//! The units of work that a pipeline schedule puts in order.

/// The direction of a transfer between stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Activations, sent to the next part of the model.
    Forward,
    /// Gradients of activations, sent to the previous part.
    Backward,
}

/// One unit of a stage's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// The forward pass of a microbatch through a chunk. In training the head, with the loss, belongs to the backward.
    Forward {
        /// Which of the stage's chunks.
        chunk: usize,
        /// Which of the step's microbatches.
        microbatch: usize,
    },
    /// The backward pass of a microbatch through a chunk. Where backward passes are split, only the gradients of
    /// activations, which the previous stage waits for.
    Backward {
        /// Which of the stage's chunks.
        chunk: usize,
        /// Which of the step's microbatches.
        microbatch: usize,
    },
    /// Where backward passes are split, the weight gradients, which no other stage waits for.
    Weights {
        /// Which of the stage's chunks.
        chunk: usize,
        /// Which of the step's microbatches.
        microbatch: usize,
    },
}

impl Task {
    /// Which of the stage's chunks.
    pub fn chunk(self) -> usize {
        let (Task::Forward { chunk, .. } | Task::Backward { chunk, .. } | Task::Weights { chunk, .. }) = self;
        chunk
    }

    /// Which of the step's microbatches.
    pub fn microbatch(self) -> usize {
        let (Task::Forward { microbatch, .. } | Task::Backward { microbatch, .. } | Task::Weights { microbatch, .. }) =
            self;
        microbatch
    }

    /// The direction in which the task's result is sent. `None` for weight gradients, which stay on their stage.
    pub fn direction(self) -> Option<Direction> {
        match self {
            Task::Forward { .. } => Some(Direction::Forward),
            Task::Backward { .. } => Some(Direction::Backward),
            Task::Weights { .. } => None,
        }
    }
}

/// For each of `chunks` chunks, the largest number of microbatches in flight: their forward has run, and their backward
/// (or, where backward passes are split, their weight gradients) has not. This is the number of slots the chunk needs.
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
