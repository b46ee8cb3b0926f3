//! The transfers of a pipeline: for all small sizes they match, and no stage waits for ever, though every transfer waits
//! for its partner and those of one edge and direction go one after the other.

use std::collections::HashMap;
use std::time::Duration;

use device::ops::{Collective, CollectiveKind};
use device::{DType, Device, HostOptions};
use parallel::{
    Axis, Connections, Direction, Mesh, MeshSizes, PipelineGroups, PipelineStage, Placement, ReceiveQueue, Schedule,
    Task, ThreadWorld,
};

/// A move of a stage, in the order of its host.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Move {
    /// Begins to receive.
    Begin(Direction),
    /// Waits for that receive.
    Arrived(Direction, usize),
    /// Begins to send the result of that task.
    Send(Task),
    /// Waits for that send.
    Sent(Direction, usize),
}

/// The moves of each task of a step, as a run makes them: receives ahead of the work, one send buffer per direction.
/// The first moves come before all tasks, the last ones after them.
fn moves_by_task(stage: PipelineStage, tasks: &[Task]) -> Vec<Vec<Move>> {
    let ways = [Direction::Forward, Direction::Backward];
    let mut queues = ways.map(|direction| stage.receive_queue(direction, tasks));
    let begin = |ways: &[Direction], begun, queues: &mut [ReceiveQueue; 2]| -> Vec<Move> {
        ways.iter().flat_map(|&way| queues[way as usize].begin(begun).map(move |_| Move::Begin(way))).collect()
    };
    // Forwards may run on the second lane. Then their receives begin there.
    let overlaps = stage.schedule().overlaps() && tasks.iter().any(|task| matches!(task, Task::Backward { .. }));
    let mut sent = [0_usize; 2];
    let mut all = vec![begin(&ways, 0, &mut queues)];
    for (&task, begun) in tasks.iter().zip(1..) {
        let mut moves = Vec::new();
        let is_forward = matches!(task, Task::Forward { .. });
        if overlaps && is_forward {
            moves.extend(begin(&[Direction::Backward], begun, &mut queues));
        }
        if stage.receives(task)
            && let Some(direction) = task.direction()
        {
            let number = queues[direction as usize].take();
            moves.push(Move::Arrived(direction, number));
        }
        let own = if is_forward { Direction::Forward } else { Direction::Backward };
        moves.extend(begin(if overlaps { std::slice::from_ref(&own) } else { &ways }, begun, &mut queues));
        if stage.sends(task)
            && let Some(direction) = task.direction()
        {
            let number = sent[direction as usize];
            moves.extend(number.checked_sub(1).map(|before| Move::Sent(direction, before)));
            moves.push(Move::Send(task));
            sent[direction as usize] += 1;
        }
        all.push(moves);
    }
    let last = ways.iter().zip(sent).filter(|(_, sent)| *sent > 0);
    all.push(last.map(|(direction, sent)| Move::Sent(*direction, sent - 1)).collect());
    all
}

/// The moves of a step. If a forward and the backward after it overlap, the backward may come first.
fn moves(stage: PipelineStage, tasks: &[Task], backward_first: bool) -> Vec<Move> {
    let mut all = moves_by_task(stage, tasks);
    if backward_first {
        for at in stage.schedule().warmup(stage.stage())..tasks.len() {
            if matches!(tasks[at], Task::Forward { .. }) {
                assert!(matches!(tasks[at + 1], Task::Backward { .. }), "{stage:?}");
                // The first moves are those before all tasks.
                all.swap(at + 1, at + 2);
            }
        }
    }
    all.concat()
}

/// Lets all stages go on as far as they can; fails unless all come to their ends, and every message is the one awaited.
fn assert_all_finish(schedule: Schedule, orders: &[Vec<Task>], backward_first: impl Fn(usize) -> bool) {
    let placement = schedule.placement();
    let stages = placement.stages();
    let all: Vec<PipelineStage> = (0..stages).map(|stage| PipelineStage::new(schedule, stage)).collect();
    let moves = all.iter().zip(orders).map(|(stage, tasks)| moves(*stage, tasks, backward_first(stage.stage())));
    let moves: Vec<Vec<Move>> = moves.collect();
    // The data that each stage's tasks receive, in order: its part and its microbatch.
    let expected = |stage: usize, direction: Direction, number: usize| {
        let due = |task: &&Task| task.direction() == Some(direction) && all[stage].receives(**task);
        let task = orders[stage].iter().filter(due).nth(number).unwrap();
        let part = all[stage].virtual_stage(task.chunk());
        (if direction == Direction::Forward { part - 1 } else { part + 1 }, task.microbatch())
    };
    let neighbour = |stage: usize, direction: Direction| match direction {
        Direction::Forward => (stage + 1) % stages,
        Direction::Backward => (stage + stages - 1) % stages,
    };
    // By receiver and direction.
    let mut begun: HashMap<(usize, Direction), usize> = HashMap::new();
    let mut sends: HashMap<(usize, Direction), Vec<(usize, usize)>> = HashMap::new();
    let mut at = vec![0; stages];
    loop {
        let before = at.clone();
        for stage in 0..stages {
            while let Some(next) = moves[stage].get(at[stage]) {
                let goes_on = match *next {
                    Move::Begin(direction) => {
                        *begun.entry((stage, direction)).or_default() += 1;
                        true
                    }
                    Move::Send(task) => {
                        let message = (all[stage].virtual_stage(task.chunk()), task.microbatch());
                        let direction = task.direction().unwrap();
                        sends.entry((neighbour(stage, direction), direction)).or_default().push(message);
                        true
                    }
                    Move::Arrived(direction, number) => {
                        let message = sends.get(&(stage, direction)).and_then(|sends| sends.get(number));
                        let awaited = expected(stage, direction, number);
                        assert!(message.is_none_or(|message| *message == awaited), "{:?}: {next:?}", all[stage]);
                        message.is_some()
                    }
                    Move::Sent(direction, number) => {
                        begun.get(&(neighbour(stage, direction), direction)).is_some_and(|begun| *begun > number)
                    }
                };
                if !goes_on {
                    break;
                }
                at[stage] += 1;
            }
        }
        if at == before {
            break;
        }
    }
    let ends: Vec<usize> = moves.iter().map(Vec::len).collect();
    assert_eq!(at, ends, "{schedule:?}: stages wait for each other forever");
}

/// Whether a stage runs its backwards first, if they overlap with forwards.
const BACKWARD_FIRST: [fn(usize) -> bool; 4] = [|_| false, |_| true, |stage| stage % 2 == 0, |stage| stage % 2 == 1];

#[test]
fn no_stage_waits_forever_in_any_schedule_of_training_or_evaluation() {
    let mut schedules = 0;
    let mut assert_one_finishes = |schedule: Schedule, microbatches: usize| {
        let stages = 0..schedule.placement().stages();
        let Some(mut orders) = stages.map(|stage| schedule.tasks(stage, microbatches)).collect::<Option<Vec<_>>>()
        else {
            return;
        };
        for backward_first in &BACKWARD_FIRST[..if schedule.overlaps() { 4 } else { 1 }] {
            assert_all_finish(schedule, &orders, backward_first);
        }
        orders.iter_mut().for_each(|tasks| tasks.retain(|task| matches!(task, Task::Forward { .. })));
        assert_all_finish(schedule, &orders, |_| false);
        schedules += 1;
    };
    let mut assert_finishes = |schedule: Schedule, microbatches: usize| {
        assert_one_finishes(schedule, microbatches);
        schedule.overlapping().into_iter().for_each(|schedule| assert_one_finishes(schedule, microbatches));
    };
    for (stages, microbatches) in (1..=7).flat_map(|stages| (1..=18).map(move |count| (stages, count))) {
        assert_finishes(Schedule::one_f_one_b(stages), microbatches);
        assert_finishes(Schedule::zero_bubble(stages), microbatches);
        for (chunks, group) in (2..=4).flat_map(|chunks| (stages..=microbatches).map(move |group| (chunks, group))) {
            if stages > 1 {
                assert_finishes(Schedule::interleaved(stages, chunks, group), microbatches);
            }
        }
    }
    assert!(schedules > 1000, "{schedules}");
}

#[test]
fn a_number_of_microbatches_that_would_have_stages_wait_forever_has_no_tasks() {
    let taken = |group| {
        let schedule = Schedule::interleaved(3, 2, group);
        (1..=10).filter(|&microbatches| schedule.tasks(1, microbatches).is_some()).collect::<Vec<_>>()
    };
    assert_eq!(taken(3), [3, 6, 9]);
    assert_eq!(taken(4), [4, 7, 8]);
    assert_eq!(taken(2), [] as [usize; 0], "a group smaller than the stages");
    for schedule in [Schedule::one_f_one_b(3), Schedule::zero_bubble(3)] {
        assert!((0..=10).all(|microbatches| schedule.takes(microbatches)));
    }
}

/// Every stage sends its number along all its edges. Returns the numbers that each receives, as (from before, from
/// after).
fn neighbours(mesh: Mesh, placement: Placement) -> Vec<(Option<f32>, Option<f32>)> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ThreadWorld::ranks(mesh.ranks(), Duration::from_secs(240))
            .into_iter()
            .map(|rank| {
                scope.spawn(move || {
                    let device = Device::host(HostOptions::default()).unwrap();
                    let connections = Connections { ties_ends: true, ..Connections::new(mesh, placement) };
                    let ranks = rank.connect(&connections).unwrap();
                    let (stage, stages) = (ranks.at(Axis::Pipeline).index, ranks.at(Axis::Pipeline).count);
                    let all = ranks.along(Axis::Pipeline).unwrap();
                    assert_eq!((all.rank(), all.size()), (stage, stages));
                    let groups: PipelineGroups = ranks.pipeline().unwrap().clone();
                    let is_end = stage == 0 || stage + 1 == stages;
                    assert_eq!(groups.ends.as_ref().map(|ends| ends.rank()), is_end.then_some(stage.min(1)));
                    let area = device.allocate("numbers", 3 * 256).unwrap();
                    let numbers = [0, 1, 2].map(|index| area.tensor("number", index * 256, [1], DType::F32));
                    let number = |index: usize| numbers[index];
                    device.upload(&number(0), &[rank.rank() as f32]).unwrap();
                    for (out, stream) in [(groups.forward_out, "a"), (groups.backward_out, "b")] {
                        let Some(communicator) = out else { continue };
                        let send = Collective::in_place(CollectiveKind::Send { to: 1 }, communicator, number(0));
                        device.stream(stream).submit(send).unwrap();
                    }
                    let hear = |from, index, stream| {
                        let communicator = from?;
                        let kind = CollectiveKind::Receive { from: 0 };
                        device.stream(stream).submit(Collective::in_place(kind, communicator, number(index))).unwrap();
                        Some(index)
                    };
                    let heard = [hear(groups.forward_in, 1, "c"), hear(groups.backward_in, 2, "d")];
                    device.synchronize().unwrap();
                    let [before, after] = heard.map(|index| Some(device.download::<f32>(&number(index?)).unwrap()[0]));
                    (before, after)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn every_edge_leads_from_a_stage_to_the_next_in_both_directions() {
    for (stages, tensor, data) in [(2, 1, 1), (3, 2, 1), (4, 1, 2), (5, 1, 1)] {
        let sizes = MeshSizes { tensor, pipeline: stages, ..MeshSizes::of(tensor * data * stages) };
        let mesh = Mesh::new(sizes).unwrap();
        for chunks in [1, 2] {
            let wraps = chunks > 1;
            for (rank, heard) in neighbours(mesh, Placement::new(stages, chunks)).into_iter().enumerate() {
                let stage = mesh.position(rank, Axis::Pipeline);
                let ranks = mesh.members(rank, mesh.axes(Axis::Pipeline));
                let at = |stage: usize| Some(ranks[stage % stages] as f32);
                let before = if stage > 0 || wraps { at(stage + stages - 1) } else { None };
                let after = if stage + 1 < stages || wraps { at(stage + 1) } else { None };
                assert_eq!(heard, (before, after), "rank {rank} of {mesh:?}, {chunks} chunks");
            }
        }
    }
}
