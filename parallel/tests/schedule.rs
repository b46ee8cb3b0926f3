//! Pipeline schedules: known orders, and for all small sizes that every stage does its work and none waits for ever.

use std::collections::{HashMap, HashSet};

use parallel::{Placement, Schedule, Task, in_flight};

/// The tasks of a stage; the schedule takes so many microbatches.
fn tasks(schedule: Schedule, stage: usize, microbatches: usize) -> Vec<Task> {
    schedule.tasks(stage, microbatches).unwrap()
}

fn one_f_one_b(stages: usize, stage: usize, microbatches: usize) -> Vec<Task> {
    tasks(Schedule::one_f_one_b(stages), stage, microbatches)
}

fn overlapping(stages: usize, stage: usize, microbatches: usize) -> Vec<Task> {
    tasks(Schedule::one_f_one_b(stages).overlapping().unwrap(), stage, microbatches)
}

fn zero_bubble(stages: usize, stage: usize, microbatches: usize) -> Vec<Task> {
    tasks(Schedule::zero_bubble(stages), stage, microbatches)
}

fn interleaved(stages: usize, stage: usize, chunks: usize, microbatches: usize, group: usize) -> Vec<Task> {
    tasks(Schedule::interleaved(stages, chunks, group), stage, microbatches)
}

/// A task as the number Megatron writes: its chunk, counted from 1, negative for a backward.
fn number(task: &Task) -> i32 {
    let chunk = task.chunk() as i32 + 1;
    if matches!(task, Task::Forward { .. }) { chunk } else { -chunk }
}

/// A task as `F3`, `B3` or `W3`.
fn letters(order: &[Task]) -> String {
    let words = order.iter().map(|task| match *task {
        Task::Forward { microbatch, .. } => format!("F{microbatch}"),
        Task::Backward { microbatch, .. } => format!("B{microbatch}"),
        Task::Weights { microbatch, .. } => format!("W{microbatch}"),
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn one_f_one_b_of_four_stages_has_the_known_orders() {
    let order = |rank| letters(&one_f_one_b(4, rank, 5));
    assert_eq!(order(0), "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4");
    assert_eq!(order(2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4");
    assert_eq!(order(3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4");
    assert_eq!(letters(&one_f_one_b(4, 0, 2)), "F0 F1 B0 B1", "fewer microbatches than stages");
    assert_eq!(letters(&one_f_one_b(1, 0, 3)), "F0 B0 F1 B1 F2 B2", "one stage");
}

#[test]
fn interleaving_two_chunks_on_two_stages_has_the_known_order() {
    // The first of two stages, groups of three: a warm-up of 2 * 1 + 1 * 3.
    let order = interleaved(2, 0, 2, 5, 3);
    let numbers: Vec<i32> = order.iter().map(number).collect();
    assert_eq!(numbers, [1, 1, 1, 2, 2, 2, -2, 1, -2, 1, -2, 2, -1, 2, -1, -1, -2, -2, -1, -1]);
    let forwards = order.iter().filter(|task| matches!(task, Task::Forward { .. }));
    assert_eq!(forwards.map(|task| task.microbatch()).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]);
}

#[test]
fn zero_bubble_of_four_stages_has_the_order_worked_out_by_hand() {
    let order = |rank| letters(&zero_bubble(4, rank, 8));
    assert_eq!(order(0), "F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7");
    assert_eq!(order(1), "F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 B6 W5 B7 W6 W7");
    assert_eq!(order(2), "F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7");
    assert_eq!(order(3), "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7");
    assert_eq!(letters(&zero_bubble(4, 3, 2)), "F0 B0 F1 B1 W0 W1", "fewer microbatches than stages");
    assert_eq!(letters(&zero_bubble(1, 0, 2)), "F0 B0 W0 F1 B1 W1", "one stage");
}

#[test]
fn where_tasks_overlap_each_stage_runs_ahead_by_two_forwards_more_than_the_next() {
    let order = |rank| letters(&overlapping(3, rank, 7));
    assert_eq!(order(0), "F0 F1 F2 F3 F4 F5 B0 F6 B1 B2 B3 B4 B5 B6");
    assert_eq!(order(1), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 B4 B5 B6");
    assert_eq!(order(2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 B6");
    assert_eq!(letters(&overlapping(1, 0, 3)), "F0 F1 B0 F2 B1 B2", "one stage");
    assert_eq!(letters(&overlapping(2, 0, 1)), "F0 B0", "one microbatch");
    assert_eq!(Schedule::zero_bubble(4).overlapping(), None);
    // Two chunks on two stages, groups of two: a warm-up of 2 * 1 + 1 * 2 + 1 on the first stage. Chunks, as above.
    let order = tasks(Schedule::interleaved(2, 2, 2).overlapping().unwrap(), 0, 4);
    let numbers: Vec<i32> = order.iter().map(number).collect();
    assert_eq!(numbers, [1, 1, 2, 2, 1, 1, -2, 2, -2, 2, -1, -1, -2, -2, -1, -1]);
}

#[test]
fn microbatches_in_flight_are_those_of_the_known_tables() {
    for (rank, most) in [[8, 4], [8, 4], [7, 3], [5, 1]].into_iter().enumerate() {
        assert_eq!(in_flight(&interleaved(4, rank, 2, 8, 4), 2), most, "stage {rank}");
    }
    for (rank, most) in [4, 3, 2, 1].into_iter().enumerate() {
        assert_eq!(in_flight(&one_f_one_b(4, rank, 64), 1), [most], "stage {rank}");
        assert_eq!(in_flight(&one_f_one_b(4, rank, 2), 1), [most.min(2)], "stage {rank}, two microbatches");
        assert_eq!(in_flight(&overlapping(4, rank, 64), 1), [2 * most], "stage {rank}, overlapping");
    }
    for (stages, microbatches) in [(1, 4), (2, 8), (4, 3), (4, 8), (16, 64)] {
        for rank in 0..stages {
            let most = in_flight(&zero_bubble(stages, rank, microbatches), 1);
            assert_eq!(most, [stages.min(microbatches)], "stage {rank} of {stages}, {microbatches} microbatches");
        }
    }
}

/// Runs all stages side by side, each task as soon as its inputs are there. Fails if a stage has a task twice or lacks
/// one, or if all wait for each other.
fn assert_all_finish(orders: &[Vec<Task>], chunks: usize, microbatches: usize, what: &str) {
    let stages = orders.len();
    let placement = Placement::new(stages, chunks);
    let parts = placement.virtual_stages();
    let (mut forwards, mut backwards, mut weights) = (HashSet::new(), HashSet::new(), HashSet::new());
    let split = orders.iter().flatten().any(|task| matches!(task, Task::Weights { .. }));
    let mut next = vec![0; stages];
    loop {
        let mut progress = false;
        for (stage, order) in orders.iter().enumerate() {
            while let Some(task) = order.get(next[stage]) {
                match *task {
                    Task::Forward { chunk, microbatch } => {
                        let part = placement.virtual_stage(stage, chunk);
                        if part > 0 && !forwards.contains(&(part - 1, microbatch)) {
                            break;
                        }
                        assert!(forwards.insert((part, microbatch)), "{what}: {task:?} twice on stage {stage}");
                    }
                    Task::Backward { chunk, microbatch } => {
                        let part = placement.virtual_stage(stage, chunk);
                        assert!(forwards.contains(&(part, microbatch)), "{what}: {task:?} before forward on {stage}");
                        if part + 1 < parts && !backwards.contains(&(part + 1, microbatch)) {
                            break;
                        }
                        assert!(backwards.insert((part, microbatch)), "{what}: {task:?} twice on stage {stage}");
                    }
                    Task::Weights { chunk, microbatch } => {
                        let part = placement.virtual_stage(stage, chunk);
                        assert!(backwards.contains(&(part, microbatch)), "{what}: {task:?} before backward on {stage}");
                        let earlier = (0..microbatch).all(|earlier| weights.contains(&(part, earlier)));
                        assert!(earlier, "{what}: {task:?} on {stage} would change the order of sums");
                        assert!(weights.insert((part, microbatch)), "{what}: {task:?} twice on stage {stage}");
                    }
                }
                next[stage] += 1;
                progress = true;
            }
        }
        if !progress {
            break;
        }
    }
    let lengths: Vec<usize> = orders.iter().map(Vec::len).collect();
    assert_eq!(next, lengths, "{what}: stages wait for each other for ever");
    let all = parts * microbatches;
    let done = (forwards.len(), backwards.len(), weights.len());
    assert_eq!(done, (all, all, if split { all } else { 0 }), "{what}: tasks missing");
}

/// Times of a chunk's forward, of a backward's part that other stages wait for, and of the rest of it.
#[derive(Clone, Copy)]
struct Times {
    forward: u64,
    backward: u64,
    weights: u64,
}

const ALIKE: Times = Times { forward: 1, backward: 1, weights: 1 };

/// How much longer a step takes than a stage's own work: each stage goes through its order, a task begins when its
/// inputs are there, and transfers take no time. One chunk a stage.
fn idle(orders: &[Vec<Task>], times: Times) -> u64 {
    let split = orders.iter().flatten().any(|task| matches!(task, Task::Weights { .. }));
    let mut done: HashMap<(usize, Task), u64> = HashMap::new();
    let (mut next, mut now) = (vec![0; orders.len()], vec![0; orders.len()]);
    while next.iter().zip(orders).any(|(next, order)| *next < order.len()) {
        for (stage, order) in orders.iter().enumerate() {
            while let Some(&task) = order.get(next[stage]) {
                let (time, needs) = match task {
                    Task::Forward { .. } => (times.forward, stage.checked_sub(1)),
                    Task::Backward { .. } if split => (times.backward, Some(stage + 1)),
                    Task::Backward { .. } => (times.backward + times.weights, Some(stage + 1)),
                    Task::Weights { .. } => (times.weights, None),
                };
                let ready = match needs.filter(|stage| *stage < orders.len()) {
                    Some(other) => done.get(&(other, task)).copied(),
                    None => Some(0),
                };
                let Some(ready) = ready else { break };
                now[stage] = now[stage].max(ready) + time;
                done.insert((stage, task), now[stage]);
                next[stage] += 1;
            }
        }
    }
    let microbatches = orders[0].iter().filter(|task| matches!(task, Task::Forward { .. })).count() as u64;
    now.iter().max().unwrap() - microbatches * (times.forward + times.backward + times.weights)
}

/// The time of a step if a forward and the backward after it run as one turn of the stage. A turn begins when both can.
/// Forwards and backwards take `times`. Both results are there at the turn's end.
fn length_in_turns(schedule: Schedule, microbatches: usize, (forward, backward): (u64, u64)) -> u64 {
    let placement = schedule.placement();
    let orders: Vec<_> = (0..placement.stages()).map(|stage| tasks(schedule, stage, microbatches)).collect();
    // When the forward or backward (`true`) of a part is done for a microbatch.
    let mut done: HashMap<(usize, usize, bool), u64> = HashMap::new();
    let (mut next, mut now) = (vec![0; orders.len()], vec![0; orders.len()]);
    while next.iter().zip(&orders).any(|(next, order)| *next < order.len()) {
        let before = next.clone();
        for (stage, order) in orders.iter().enumerate() {
            while let Some(first) = order.get(next[stage]) {
                let overlaps = matches!(first, Task::Forward { .. }) && next[stage] >= schedule.warmup(stage);
                let turn = &order[next[stage]..][..if overlaps { 2 } else { 1 }];
                let is_backward = |task: &Task| matches!(task, Task::Backward { .. });
                let part = |task: &Task| placement.virtual_stage(stage, task.chunk());
                let ready = turn.iter().map(|task| {
                    let needed = match is_backward(task) {
                        false => part(task).checked_sub(1),
                        true => Some(part(task) + 1).filter(|part| *part < placement.virtual_stages()),
                    };
                    needed.map_or(Some(0), |part| done.get(&(part, task.microbatch(), is_backward(task))).copied())
                });
                let Some(ready) = ready.collect::<Option<Vec<_>>>() else { break };
                let takes = |task: &Task| if is_backward(task) { backward } else { forward };
                now[stage] = ready.into_iter().fold(now[stage], u64::max) + turn.iter().map(takes).sum::<u64>();
                next[stage] += turn.len();
                done.extend(turn.iter().map(|task| ((part(task), task.microbatch(), is_backward(task)), now[stage])));
            }
        }
        assert_ne!(next, before, "stages wait for each other for ever");
    }
    now.into_iter().max().unwrap()
}

#[test]
fn an_overlapping_step_is_idle_for_as_long_as_1f1b() {
    for (stages, chunks) in (1..=12).flat_map(|stages| (1..=3).map(move |chunks| (stages, chunks))) {
        let schedule = Schedule::interleaved(stages, chunks, stages).overlapping().unwrap();
        for microbatches in (1..=48).filter(|&microbatches| schedule.takes(microbatches)) {
            let turns = (chunks * microbatches + stages - 1) as u64;
            let what = format!("{stages} stages, {chunks} chunks, {microbatches} microbatches");
            assert_eq!(length_in_turns(schedule, microbatches, (2, 5)), turns * (2 + 5), "{what}");
        }
    }
}

#[test]
fn every_one_f_one_b_schedule_runs_all_tasks_once_and_finishes() {
    for stages in 1..=16 {
        for microbatches in 0..=64 {
            let orders: Vec<_> = (0..stages).map(|rank| one_f_one_b(stages, rank, microbatches)).collect();
            assert_all_finish(&orders, 1, microbatches, &format!("{stages} stages, {microbatches} microbatches"));
            let orders: Vec<_> = (0..stages).map(|rank| overlapping(stages, rank, microbatches)).collect();
            assert_all_finish(&orders, 1, microbatches, &format!("{stages} stages, {microbatches}, overlapping"));
        }
    }
}

#[test]
fn every_zero_bubble_schedule_runs_all_tasks_once_in_the_order_of_sums_and_finishes() {
    for stages in 1..=16 {
        for microbatches in 0..=64 {
            let orders: Vec<_> = (0..stages).map(|rank| zero_bubble(stages, rank, microbatches)).collect();
            assert_all_finish(&orders, 1, microbatches, &format!("{stages} stages, {microbatches} microbatches"));
        }
    }
}

#[test]
fn a_zero_bubble_step_is_idle_for_as_long_as_the_paper_says_and_less_than_1f1b() {
    for stages in 2..=16 {
        for microbatches in 1..=64 {
            let plain: Vec<_> = (0..stages).map(|rank| one_f_one_b(stages, rank, microbatches)).collect();
            let split: Vec<_> = (0..stages).map(|rank| zero_bubble(stages, rank, microbatches)).collect();
            let others = stages as u64 - 1;
            // The second: attention is part of a backward, but makes no gradients of weights.
            for times in [ALIKE, Times { forward: 4, backward: 5, weights: 3 }] {
                let Times { forward, backward, weights } = times;
                let what =
                    format!("{stages} stages, {microbatches} microbatches, F {forward} B {backward} W {weights}");
                let (plain, split) = (idle(&plain, times), idle(&split, times));
                assert_eq!(plain, others * (forward + backward + weights), "{what}");
                assert!(split < plain, "{what}: {split} and {plain}");
                if microbatches >= stages {
                    assert_eq!(split, others * (forward + backward - weights), "{what}");
                }
            }
        }
    }
}

#[test]
fn every_interleaved_schedule_runs_all_tasks_once_and_finishes() {
    for (stages, chunks) in (1..=16).flat_map(|stages| (2..=4).map(move |chunks| (stages, chunks))) {
        for microbatches in (stages..=64).filter(|m| m % 7 < 2 || m % stages == 0) {
            let complete = |group: &usize| microbatches % group == 0 || microbatches % group >= stages;
            let larger = [stages, stages + 1, 2 * stages, microbatches].into_iter().filter(|&n| n <= microbatches);
            for group in larger.filter(complete) {
                let orders: Vec<_> =
                    (0..stages).map(|rank| interleaved(stages, rank, chunks, microbatches, group)).collect();
                let what = format!("{stages} stages, {chunks} chunks, {microbatches} microbatches by {group}");
                assert_all_finish(&orders, chunks, microbatches, &what);
            }
        }
    }
}

#[test]
fn interleaving_one_chunk_is_plain_1f1b() {
    assert_eq!(Schedule::interleaved(4, 1, 4), Schedule::one_f_one_b(4));
}
