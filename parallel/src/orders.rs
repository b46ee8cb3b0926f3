//! The orders of the pipeline schedules: pure functions from sizes to a stage's tasks.
//!
//! The callers have checked the sizes, see [`Schedule::takes`](crate::Schedule::takes).

use crate::Task;

/// 1F1B with one chunk per stage: a stage runs ahead by as many forwards as stages follow it, then alternates.
///
/// At most `stages - stage` microbatches are in flight. A single stage runs each backward right after its forward.
pub(crate) fn one_f_one_b(stages: usize, stage: usize, microbatches: usize) -> Vec<Task> {
    alternate(&forwards(1, microbatches, 1), 1, stages - stage - 1)
}

/// Zero bubble: [`one_f_one_b`] with split backwards, whose weight gradients are deferred to times when the stage would
/// wait for others (ZB-H1 of Qi et al., "Zero Bubble Pipeline Parallelism", 2023).
///
/// A backward reaches the stages one after the other, from the last to the first. Each stage defers the weight gradients of
/// as many microbatches as there are stages before it. So the stages before it never wait for weight gradients, and the
/// deferred ones run at the end, while those stages still have backwards to run.
///
/// Let forwards, backwards and weight gradients take F, B and W, W being the shortest. A step of at least as many
/// microbatches as stages is idle for `(stages - 1) (F + B - W)`, where 1F1B is idle for `(stages - 1) (F + B + W)`. Each
/// stage has at most `stages` microbatches in flight, as many as the first stage of 1F1B.
pub(crate) fn zero_bubble(stages: usize, stage: usize, microbatches: usize) -> Vec<Task> {
    let weights = |microbatch| Task::Weights { chunk: 0, microbatch };
    let with_weights = |task| match task {
        Task::Backward { microbatch, .. } => [Some(task), microbatch.checked_sub(stage).map(weights)],
        _ => [Some(task), None],
    };
    let tasks = one_f_one_b(stages, stage, microbatches).into_iter().flat_map(with_weights).flatten();
    tasks.chain((microbatches.saturating_sub(stage)..microbatches).map(weights)).collect()
}

/// Interleaved 1F1B: each stage has several chunks, and runs `group` microbatches through one chunk before the next.
///
/// The idle time is shorter than with [`one_f_one_b`], at the price of more messages and more microbatches in flight.
/// `group` is usually `stages`; a larger group leaves more time for messages.
pub(crate) fn interleaved(stages: usize, stage: usize, chunks: usize, microbatches: usize, group: usize) -> Vec<Task> {
    let ahead = 2 * (stages - stage - 1) + (chunks - 1) * group;
    alternate(&forwards(chunks, microbatches, group), chunks, ahead)
}

/// The order in which forwards may run next to backwards of other microbatches: after `ahead` forwards, each next to the
/// backward that follows it. See [`ahead_of_overlap`].
pub(crate) fn overlapping(chunks: usize, microbatches: usize, group: usize, ahead: usize) -> Vec<Task> {
    alternate(&forwards(chunks, microbatches, group), chunks, ahead)
}

/// By how many forwards a stage runs ahead where forwards overlap with backwards.
///
/// A stage has turns: a forward, a forward and a backward, or a backward. What a stage computes in one turn, the next stage
/// needs in the following turn, forward as well as backward. So each stage runs ahead by two forwards more than the next
/// stage, and the last one by one forward. A step has as many turns in which a stage is idle as without overlap.
///
/// With several chunks that is one forward more than in [`interleaved`]. With one chunk, where `group` has no meaning, at
/// most `2 (stages - stage)` microbatches are in flight: twice as many as in [`one_f_one_b`].
pub(crate) fn ahead_of_overlap(stages: usize, stage: usize, chunks: usize, group: usize) -> usize {
    2 * (stages - stage - 1) + (chunks - 1) * group + 1
}

/// All forwards of a step, as chunk and microbatch: each group of microbatches runs through all chunks before the next.
fn forwards(chunks: usize, microbatches: usize, group: usize) -> Vec<(usize, usize)> {
    let groups = (0..microbatches).step_by(group);
    let all = groups.flat_map(|first| {
        let last = (first + group).min(microbatches);
        (0..chunks).flat_map(move |chunk| (first..last).map(move |microbatch| (chunk, microbatch)))
    });
    all.collect()
}

/// `warmup` forwards, then forwards and backwards in turn, then the remaining backwards. Backwards come in the order of the
/// forwards, with the chunks reversed.
fn alternate(all: &[(usize, usize)], chunks: usize, warmup: usize) -> Vec<Task> {
    let warmup = warmup.min(all.len());
    let forward = |&(chunk, microbatch): &(usize, usize)| Task::Forward { chunk, microbatch };
    let backward = |&(chunk, microbatch): &(usize, usize)| Task::Backward { chunk: chunks - 1 - chunk, microbatch };
    let (ahead, steady) = all.split_at(warmup);
    let pairs = steady.iter().zip(all).flat_map(|(next, oldest)| [forward(next), backward(oldest)]);
    let remaining = all[steady.len()..].iter().map(backward);
    ahead.iter().map(forward).chain(pairs).chain(remaining).collect()
}
