//! The orders of the pipeline schedules: pure functions from sizes to a stage's tasks.
//!
//! A stage runs some forwards ahead, then forwards and backwards in turn. The orders differ in how far it runs ahead.
//! The callers have checked the sizes, see [`Schedule::takes`](crate::Schedule::takes).

use crate::Task;

/// 1F1B with one chunk per stage: a stage runs ahead by as many forwards as stages follow it.
///
/// At most `stages - stage` microbatches are in flight. A single stage runs each backward right after its forward.
pub(crate) fn warmup_in_1f1b(stages: usize, stage: usize) -> usize {
    stages - stage - 1
}

/// Interleaved 1F1B: each stage has several chunks, and runs `group` microbatches through one chunk before the next.
///
/// The idle time is shorter than in 1F1B, at the price of more messages and more microbatches in flight. `group` is
/// usually `stages`; a larger group leaves more time for messages.
pub(crate) fn interleaved_warmup(stages: usize, stage: usize, chunks: usize, group: usize) -> usize {
    2 * (stages - stage - 1) + (chunks - 1) * group
}

/// Forwards that run next to backwards of other microbatches. With one chunk `group` has no meaning.
///
/// A stage has turns: a forward, a forward and a backward, or a backward. The next stage needs a turn's result in the
/// following turn, forward as well as backward. So each stage runs ahead by two forwards more than the next stage; with
/// one chunk the last stage runs ahead by one. A step has as many idle turns as without overlap.
///
/// With one chunk at most `2 (stages - stage)` microbatches are in flight, twice as many as in 1F1B. With several
/// chunks a stage runs ahead by one forward more than [`interleaved_warmup`].
pub(crate) fn overlapping_warmup(stages: usize, stage: usize, chunks: usize, group: usize) -> usize {
    interleaved_warmup(stages, stage, chunks, group) + 1
}

/// `warmup` forwards, then forwards and backwards in turn, then the remaining backwards. Forwards come in groups:
/// `group` microbatches run through all chunks before the next ones. Backwards come in the order of the forwards, with
/// the chunks reversed.
pub(crate) fn in_turn(chunks: usize, microbatches: usize, group: usize, warmup: usize) -> Vec<Task> {
    let groups = (0..microbatches).step_by(group);
    let all: Vec<(usize, usize)> = groups
        .flat_map(|first| {
            let last = (first + group).min(microbatches);
            (0..chunks).flat_map(move |chunk| (first..last).map(move |microbatch| (chunk, microbatch)))
        })
        .collect();
    let forward = |&(chunk, microbatch): &(usize, usize)| Task::Forward { chunk, microbatch };
    let backward = |&(chunk, microbatch): &(usize, usize)| Task::Backward { chunk: chunks - 1 - chunk, microbatch };
    let (warmup, steady) = all.split_at(warmup.min(all.len()));
    let pairs = steady.iter().zip(&all).flat_map(|(next, oldest)| [forward(next), backward(oldest)]);
    let remaining = all[steady.len()..].iter().map(backward);
    warmup.iter().map(forward).chain(pairs).chain(remaining).collect()
}

/// Zero bubble: the tasks of 1F1B with split backwards. Weight gradients are deferred to times when the stage would
/// wait for others (ZB-H1 of Qi et al., "Zero Bubble Pipeline Parallelism", 2023).
///
/// A backward reaches the stages one after the other, from the last to the first. Each stage defers the weight
/// gradients of as many microbatches as there are stages before it. So the stages before it never wait for weight
/// gradients, and the deferred ones run at the end, while those stages still have backwards to run.
///
/// Let forwards, backwards and weight gradients take F, B and W, W being the shortest. A step of at least as many
/// microbatches as stages is idle for `(stages - 1) (F + B - W)`; 1F1B is idle for `(stages - 1) (F + B + W)`. Each
/// stage has at most `stages` microbatches in flight, as many as the first stage of 1F1B.
pub(crate) fn with_weights_deferred(tasks: Vec<Task>, stage: usize, microbatches: usize) -> Vec<Task> {
    let weights = |microbatch| Task::Weights { chunk: 0, microbatch };
    let with_weights = |task| match task {
        Task::Backward { microbatch, .. } => [Some(task), microbatch.checked_sub(stage).map(weights)],
        _ => [Some(task), None],
    };
    let tasks = tasks.into_iter().flat_map(with_weights).flatten();
    tasks.chain((microbatches.saturating_sub(stage)..microbatches).map(weights)).collect()
}
