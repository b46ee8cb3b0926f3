//! Pipeline schedules: the order in which a stage runs the forwards and backwards of a step.
//!
//! A stage holds one or more chunks of layers; with P stages and V chunks each, the model's part number `c * P + r` is
//! chunk c of stage r. The orders are pure functions of the sizes, so a stage knows its whole step beforehand.

use crate::Direction;

/// One piece of a stage's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// The forward of a microbatch through a chunk.
    Forward {
        /// Which of the stage's chunks.
        chunk: usize,
        /// Which of the step's microbatches.
        microbatch: usize,
    },
    /// The backward of a microbatch through a chunk; where backwards are split, only what other stages wait for.
    Backward {
        /// Which of the stage's chunks.
        chunk: usize,
        /// Which of the step's microbatches.
        microbatch: usize,
    },
    /// Where backwards are split, the rest of one: the gradients of weights, which no other stage waits for.
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

    /// Which way what it makes goes; the gradients of weights stay.
    pub fn direction(self) -> Option<Direction> {
        match self {
            Task::Forward { .. } => Some(Direction::Forward),
            Task::Backward { .. } => Some(Direction::Backward),
            Task::Weights { .. } => None,
        }
    }
}

/// 1F1B for stages of one chunk: a stage runs ahead by as many forwards as stages follow it, then alternates.
///
/// At most `stages - rank` microbatches are in flight. One stage runs each microbatch forward and at once backward.
///
/// # Panics
/// If `rank` is not below `stages`.
pub fn one_f_one_b(stages: usize, rank: usize, microbatches: usize) -> Vec<Task> {
    assert!(rank < stages, "stage {rank} of {stages}");
    let all = (0..microbatches).map(|microbatch| (0, microbatch));
    alternate(all, 1, stages - rank - 1)
}

/// Zero bubble: [`one_f_one_b`] with backwards split, and the gradients of weights put off where a stage would wait for
/// others (ZB-H1 of Qi et al., "Zero Bubble Pipeline Parallelism", 2023).
///
/// A backward reaches the stages one after the other, from the last to the first. Each stage puts off the weights of as
/// many microbatches as there are stages before it: what those wait for then never stands behind gradients of weights, and
/// what was put off is done at the end, while they have backwards left. If forwards, backwards and weights take F, B and W,
/// with W the shortest, a step of at least as many microbatches as stages is idle for `(stages - 1) (F + B - W)`, where
/// 1F1B is for `(stages - 1) (F + B + W)`. At most `stages` microbatches are in flight until their weights' gradients are
/// made, as on 1F1B's first stage.
///
/// # Panics
/// If `rank` is not below `stages`.
pub fn zero_bubble(stages: usize, rank: usize, microbatches: usize) -> Vec<Task> {
    let weights = |microbatch| Task::Weights { chunk: 0, microbatch };
    let with_weights = |task| match task {
        Task::Backward { microbatch, .. } => [Some(task), microbatch.checked_sub(rank).map(weights)],
        _ => [Some(task), None],
    };
    let tasks = one_f_one_b(stages, rank, microbatches).into_iter().flat_map(with_weights).flatten();
    tasks.chain((microbatches.saturating_sub(rank)..microbatches).map(weights)).collect()
}

/// Interleaved 1F1B: each stage holds `chunks` chunks, and runs `group` microbatches through one before the next.
///
/// Shorter idle times than [`one_f_one_b`] for more messages and more microbatches in flight. `group` is usually
/// `stages`; larger ones leave more time for messages.
///
/// # Panics
/// If `rank` is not below `stages`, there are no chunks, `group` is not in `stages..=microbatches`, or the last,
/// incomplete group is smaller than `stages`: the stages would wait for each other for ever. Sizes are checked where a
/// run is planned.
pub fn interleaved(stages: usize, rank: usize, chunks: usize, microbatches: usize, group: usize) -> Vec<Task> {
    assert!(rank < stages, "stage {rank} of {stages}");
    assert!(
        (stages..=microbatches).contains(&group),
        "a group of {group}: {stages} stages, {microbatches} microbatches"
    );
    let rest = microbatches % group;
    assert!(rest == 0 || rest >= stages, "a last group of {rest} microbatches on {stages} stages");
    let groups = (0..microbatches).step_by(group);
    let all = groups.flat_map(|first| {
        let last = (first + group).min(microbatches);
        (0..chunks).flat_map(move |chunk| (first..last).map(move |microbatch| (chunk, microbatch)))
    });
    alternate(all, chunks, 2 * (stages - rank - 1) + (chunks - 1) * group)
}

/// `warmup` forwards, then forward and backward in turn, then the backwards that are left. Backwards come in the order
/// of the forwards, with the chunks reversed.
fn alternate(all: impl Iterator<Item = (usize, usize)>, chunks: usize, warmup: usize) -> Vec<Task> {
    let all: Vec<(usize, usize)> = all.collect();
    let warmup = warmup.min(all.len());
    let forward = |&(chunk, microbatch): &(usize, usize)| Task::Forward { chunk, microbatch };
    let backward = |&(chunk, microbatch): &(usize, usize)| Task::Backward { chunk: chunks - 1 - chunk, microbatch };
    let (ahead, steady) = all.split_at(warmup);
    let pairs = steady.iter().zip(&all).flat_map(|(next, oldest)| [forward(next), backward(oldest)]);
    let left = all[steady.len()..].iter().map(backward);
    ahead.iter().map(forward).chain(pairs).chain(left).collect()
}

/// The most microbatches each of `chunks` chunks has in flight at any time, between forward and backward, or the weights'
/// gradients where backwards are split: the number of slots it needs.
///
/// # Panics
/// If a backward comes before its forward.
pub fn in_flight(order: &[Task], chunks: usize) -> Vec<usize> {
    let split = order.iter().any(|task| matches!(task, Task::Weights { .. }));
    let (mut now, mut most) = (vec![0_usize; chunks], vec![0; chunks]);
    for task in order {
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
