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
    /// The backward of a microbatch through a chunk.
    Backward {
        /// Which of the stage's chunks.
        chunk: usize,
        /// Which of the step's microbatches.
        microbatch: usize,
    },
}

impl Task {
    /// Which of the stage's chunks.
    pub fn chunk(self) -> usize {
        let (Task::Forward { chunk, .. } | Task::Backward { chunk, .. }) = self;
        chunk
    }

    /// Which of the step's microbatches.
    pub fn microbatch(self) -> usize {
        let (Task::Forward { microbatch, .. } | Task::Backward { microbatch, .. }) = self;
        microbatch
    }

    /// Which way what it makes goes.
    pub fn direction(self) -> Direction {
        match self {
            Task::Forward { .. } => Direction::Forward,
            Task::Backward { .. } => Direction::Backward,
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

/// Interleaved 1F1B: each stage holds `chunks` chunks, and runs `group` microbatches through one before the next.
///
/// Shorter idle times than [`one_f_one_b`] for more messages and more microbatches in flight. `group` is usually
/// `stages`; larger ones leave more time for messages.
///
/// # Panics
/// If `rank` is not below `stages`, there are no chunks, `group` is not in `stages..=microbatches`, or the last, incomplete group is smaller
/// than `stages`: the stages would wait for each other for ever. Sizes are checked where a run is planned.
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

/// The most microbatches each of `chunks` chunks has in flight, between forward and backward, at any time: the number
/// of slots it needs.
///
/// # Panics
/// If a backward comes before its forward.
pub fn in_flight(order: &[Task], chunks: usize) -> Vec<usize> {
    let (mut now, mut most) = (vec![0_usize; chunks], vec![0; chunks]);
    for task in order {
        match *task {
            Task::Forward { chunk, .. } => {
                now[chunk] += 1;
                most[chunk] = most[chunk].max(now[chunk]);
            }
            Task::Backward { chunk, microbatch } => {
                assert!(now[chunk] > 0, "backward of microbatch {microbatch} in chunk {chunk} without a forward");
                now[chunk] -= 1;
            }
        }
    }
    most
}
