//! The transfers of a pipeline: for all small sizes they match, and no stage waits for ever, though every transfer waits
//! for its partner and those of one edge and direction go one after the other.

use std::collections::HashMap;
use std::time::Duration;

use device::ops::{Collective, CollectiveKind};
use device::{DType, Device, HostOptions};
use parallel::{Direction, Grid, PipelineGroups, PipelineStage, Task, ThreadWorld};

/// What a stage does, in the order of its host.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Move {
    /// Begins to receive.
    Begin(Direction),
    /// Waits for that receive.
    Arrived(Direction, usize),
    /// Begins to send what that task made.
    Send(Task),
    /// Waits for that send.
    Sent(Direction, usize),
}

/// The moves of a step, as a run makes them: receives ahead of the work, one departure buffer by direction.
fn moves(place: PipelineStage, order: &[Task]) -> Vec<Move> {
    let ways = [Direction::Forward, Direction::Backward];
    let mut arrivals = ways.map(|direction| place.arrivals(direction, order));
    let mut sent = [0_usize; 2];
    let mut moves = Vec::new();
    for next in 0..=order.len() {
        if let Some(&task) = next.checked_sub(1).map(|at| &order[at])
            && place.receives(task)
            && let Some(direction) = task.direction()
        {
            let number = arrivals[direction as usize].take();
            moves.push(Move::Arrived(direction, number));
        }
        for (direction, arrivals) in ways.iter().zip(&mut arrivals) {
            moves.extend(arrivals.begin(next).map(|_| Move::Begin(*direction)));
        }
        if let Some(&task) = next.checked_sub(1).map(|at| &order[at])
            && place.sends(task)
            && let Some(direction) = task.direction()
        {
            let number = sent[direction as usize];
            moves.extend(number.checked_sub(1).map(|before| Move::Sent(direction, before)));
            moves.push(Move::Send(task));
            sent[direction as usize] += 1;
        }
    }
    let last = ways.iter().zip(sent).filter(|(_, sent)| *sent > 0);
    moves.extend(last.map(|(direction, sent)| Move::Sent(*direction, sent - 1)));
    moves
}

/// Lets all stages go on as far as they can; fails unless all come to their ends, and every message is the one awaited.
fn assert_all_finish(places: &[PipelineStage], orders: &[Vec<Task>]) {
    let stages = places.len();
    let moves: Vec<Vec<Move>> = places.iter().zip(orders).map(|(place, order)| moves(*place, order)).collect();
    // What each stage's tasks receive, in order: the part and the microbatch that made it.
    let expected = |stage: usize, direction: Direction, number: usize| {
        let place: PipelineStage = places[stage];
        let due = |task: &&Task| task.direction() == Some(direction) && place.receives(**task);
        let task = orders[stage].iter().filter(due).nth(number).unwrap();
        let part = place.part(task.chunk());
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
                        let message = (places[stage].part(task.chunk()), task.microbatch());
                        let direction = task.direction().unwrap();
                        sends.entry((neighbour(stage, direction), direction)).or_default().push(message);
                        true
                    }
                    Move::Arrived(direction, number) => {
                        let message = sends.get(&(stage, direction)).and_then(|sends| sends.get(number));
                        let awaited = expected(stage, direction, number);
                        assert!(message.is_none_or(|message| *message == awaited), "{:?}: {next:?}", places[stage]);
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
    assert_eq!(at, ends, "{:?}: stages wait for each other for ever", places[0]);
}

#[test]
fn no_stage_waits_for_ever_in_any_schedule_of_training_or_evaluation() {
    let mut schedules = 0;
    for (stages, chunks) in (1..=7).flat_map(|stages| (1..=4).map(move |chunks| (stages, chunks))) {
        for microbatches in 1..=18 {
            for group in stages..=if chunks == 1 { stages } else { microbatches } {
                for zero_bubble in [false, true] {
                    let place = |stage| PipelineStage { stages, stage, chunks, group, zero_bubble };
                    if !place(0).takes(microbatches) || (stages == 1 && chunks > 1) {
                        continue;
                    }
                    let places: Vec<PipelineStage> = (0..stages).map(place).collect();
                    let mut orders: Vec<Vec<Task>> =
                        places.iter().map(|place| place.order(microbatches).unwrap()).collect();
                    assert_all_finish(&places, &orders);
                    orders.iter_mut().for_each(|order| order.retain(|task| matches!(task, Task::Forward { .. })));
                    assert_all_finish(&places, &orders);
                    schedules += 1;
                }
            }
        }
    }
    assert!(schedules > 1000, "{schedules}");
}

#[test]
fn a_number_of_microbatches_that_would_have_stages_wait_for_ever_has_no_order() {
    let place = |group| PipelineStage { stages: 3, stage: 1, chunks: 2, group, zero_bubble: false };
    let taken = |group| (1..=10).filter(|&microbatches| place(group).order(microbatches).is_some()).collect::<Vec<_>>();
    assert_eq!(taken(3), [3, 6, 9]);
    assert_eq!(taken(4), [4, 7, 8]);
    assert_eq!(taken(2), [] as [usize; 0], "a group smaller than the stages");
    let plain = PipelineStage { chunks: 1, ..place(3) };
    assert!((0..=10).all(|microbatches| plain.order(microbatches).is_some()));
    let split = |place: PipelineStage| PipelineStage { zero_bubble: true, ..place };
    assert!((0..=10).all(|microbatches| split(plain).order(microbatches).is_some()));
    assert_eq!(split(place(3)).order(6), None, "several chunks with their backwards split");
}

/// Every stage sends its number along every edge it has; what each hears, as (from before, from after).
fn neighbours(grid: Grid, ring: bool) -> Vec<(Option<f32>, Option<f32>)> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ThreadWorld::ranks(grid.ranks(), Duration::from_secs(60))
            .into_iter()
            .map(|rank| {
                scope.spawn(move || {
                    let device = Device::host(HostOptions::default()).unwrap();
                    let mut connect =
                        |name: &str, group: Vec<usize>| Ok(Some(rank.split(name, &group)).filter(|_| group.len() > 1));
                    let groups =
                        PipelineGroups::connect(&grid, rank.rank(), ring, true, &mut connect).unwrap().unwrap();
                    let place = grid.place(rank.rank());
                    assert_eq!((groups.all.rank(), groups.all.size()), (place.pipeline, grid.pipeline));
                    let is_end = place.pipeline == 0 || place.pipeline + 1 == grid.pipeline;
                    assert_eq!(groups.ends.as_ref().map(|ends| ends.rank()), is_end.then_some(place.pipeline.min(1)));
                    let area = device.allocate("numbers", 3 * 256).unwrap();
                    let number = |index: usize| area.tensor("number", index * 256, [1], DType::F32);
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
        let grid = Grid { tensor, data, pipeline: stages };
        for ring in [false, true] {
            for (rank, heard) in neighbours(grid, ring).into_iter().enumerate() {
                let (place, ranks) = (grid.place(rank), grid.pipeline_group(rank));
                let at = |stage: usize| Some(ranks[stage % stages] as f32);
                let before = if place.pipeline > 0 || ring { at(place.pipeline + stages - 1) } else { None };
                let after = if place.pipeline + 1 < stages || ring { at(place.pipeline + 1) } else { None };
                assert_eq!(heard, (before, after), "rank {rank} of {grid:?}, ring {ring}");
            }
        }
    }
}
