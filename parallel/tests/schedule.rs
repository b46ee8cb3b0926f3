//! Pipeline schedules: known orders, and for all small sizes that every stage does its work and none waits for ever.

use std::collections::HashSet;

use parallel::{Task, in_flight, interleaved, one_f_one_b};

/// A task as the number Megatron writes: its chunk, counted from 1, negative for a backward.
fn number(task: &Task) -> i32 {
    match *task {
        Task::Forward { chunk, .. } => chunk as i32 + 1,
        Task::Backward { chunk, .. } => -(chunk as i32 + 1),
    }
}

/// A task as `F3` or `B3`.
fn letters(order: &[Task]) -> String {
    let words = order.iter().map(|task| match *task {
        Task::Forward { microbatch, .. } => format!("F{microbatch}"),
        Task::Backward { microbatch, .. } => format!("B{microbatch}"),
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
    let microbatch = |task: &Task| match *task {
        Task::Forward { microbatch, .. } | Task::Backward { microbatch, .. } => microbatch,
    };
    let forwards = order.iter().filter(|task| matches!(task, Task::Forward { .. }));
    assert_eq!(forwards.map(microbatch).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]);
}

#[test]
fn microbatches_in_flight_are_those_of_the_known_tables() {
    for (rank, most) in [[8, 4], [8, 4], [7, 3], [5, 1]].into_iter().enumerate() {
        assert_eq!(in_flight(&interleaved(4, rank, 2, 8, 4), 2), most, "stage {rank}");
    }
    for (rank, most) in [4, 3, 2, 1].into_iter().enumerate() {
        assert_eq!(in_flight(&one_f_one_b(4, rank, 64), 1), [most], "stage {rank}");
        assert_eq!(in_flight(&one_f_one_b(4, rank, 2), 1), [most.min(2)], "stage {rank}, two microbatches");
    }
}

/// Runs all stages side by side, each task as soon as what it needs is done. Fails if a stage has a task twice or lacks
/// one, or if all wait for each other.
fn assert_all_finish(orders: &[Vec<Task>], chunks: usize, microbatches: usize, what: &str) {
    let stages = orders.len();
    let parts = stages * chunks;
    let (mut forwards, mut backwards) = (HashSet::new(), HashSet::new());
    let mut next = vec![0; stages];
    loop {
        let mut progress = false;
        for (stage, order) in orders.iter().enumerate() {
            while let Some(task) = order.get(next[stage]) {
                match *task {
                    Task::Forward { chunk, microbatch } => {
                        let part = chunk * stages + stage;
                        if part > 0 && !forwards.contains(&(part - 1, microbatch)) {
                            break;
                        }
                        assert!(forwards.insert((part, microbatch)), "{what}: {task:?} twice on stage {stage}");
                    }
                    Task::Backward { chunk, microbatch } => {
                        let part = chunk * stages + stage;
                        assert!(forwards.contains(&(part, microbatch)), "{what}: {task:?} before forward on {stage}");
                        if part + 1 < parts && !backwards.contains(&(part + 1, microbatch)) {
                            break;
                        }
                        assert!(backwards.insert((part, microbatch)), "{what}: {task:?} twice on stage {stage}");
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
    assert_eq!(
        (forwards.len(), backwards.len()),
        (parts * microbatches, parts * microbatches),
        "{what}: tasks missing"
    );
}

#[test]
fn every_one_f_one_b_schedule_runs_all_tasks_once_and_finishes() {
    for stages in 1..=16 {
        for microbatches in 0..=64 {
            let orders: Vec<_> = (0..stages).map(|rank| one_f_one_b(stages, rank, microbatches)).collect();
            assert_all_finish(&orders, 1, microbatches, &format!("{stages} stages, {microbatches} microbatches"));
        }
    }
}

#[test]
fn every_interleaved_schedule_runs_all_tasks_once_and_finishes() {
    for (stages, chunks) in (1..=16).flat_map(|stages| (1..=4).map(move |chunks| (stages, chunks))) {
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
fn interleaving_one_chunk_changes_only_how_far_stages_run_ahead() {
    let plain = one_f_one_b(4, 1, 8);
    let doubled = interleaved(4, 1, 1, 8, 4);
    assert_eq!(in_flight(&doubled, 1), [5], "two microbatches ahead of each following stage, and its own");
    assert_eq!(plain.iter().collect::<HashSet<_>>(), doubled.iter().collect::<HashSet<_>>());
}

#[test]
#[should_panic(expected = "a last group of 1 microbatches on 2 stages")]
fn a_last_group_smaller_than_the_stages_is_refused() {
    interleaved(2, 0, 2, 4, 3);
}
