//! The checker proves hazards that a lucky order would hide, and names the operations and the buffer.

use device::ops::{Add, Copy, Fill, Poison};
use device::{CheckError, Checked, DType, Device, Error, HostOptions};

use crate::common::{SideBench, side_bench};

fn hazard<T>(result: Result<T, Error>) -> CheckError {
    match result {
        Err(Error::Check(hazard)) => hazard,
        Err(other) => panic!("not a checker's finding: {other}"),
        Ok(_) => panic!("the hazard was missed"),
    }
}

#[track_caller]
fn assert_races<T>(result: Result<T, Error>) {
    let found = hazard(result);
    assert!(matches!(found, CheckError::Race { .. }), "{found}");
}

#[test]
fn two_streams_that_write_and_read_a_buffer_without_an_event_race() {
    let t = side_bench();
    t.device.set_scope("first");
    t.side.submit(Fill { output: t.a, value: 3.0 }).unwrap();
    t.device.set_scope("second");
    let found = hazard(t.main.submit(Copy { input: t.a, output: t.b }));
    let expected = CheckError::Race { buffer: "a".into(), first: "first/fill".into(), second: "second/copy".into() };
    assert_eq!(found, expected);
    assert!(found.to_string().contains("record an event after `first/fill`"), "{found}");
}

#[test]
fn work_on_two_streams_races_unless_an_event_or_the_host_orders_it() {
    type Work = fn(&SideBench) -> Result<(), Error>;
    let reads: Work = |t| t.side.submit(Copy { input: t.a, output: t.b });
    let writes: Work = |t| t.side.submit(Fill { output: t.a, value: 3.0 });
    let host: Work = |t| t.side.synchronize();
    let event: Work = |t| {
        t.in_turn(&t.side, &t.main);
        Ok(())
    };
    let then_reads: Work = |t| t.main.submit(Copy { input: t.a, output: t.b });
    let then_writes: Work = |t| t.main.submit(Fill { output: t.a, value: 4.0 });
    for (before, after, races) in [
        (vec![reads], then_writes, true),
        (vec![writes], then_writes, true),
        (vec![event, writes], then_reads, true),
        (vec![writes, event], then_reads, false),
        (vec![writes, host], then_reads, false),
    ] {
        let t = side_bench();
        before.iter().for_each(|work| work(&t).unwrap());
        if races { assert_races(after(&t)) } else { after(&t).unwrap() }
    }
}

#[test]
fn an_event_recorded_too_early_does_not_order_what_came_after() {
    let t = side_bench();
    let event = t.device.event();
    t.side.record(&event).unwrap();
    t.side.submit(Fill { output: t.a, value: 3.0 }).unwrap();
    t.main.wait(&event).unwrap();
    assert_races(t.main.submit(Copy { input: t.a, output: t.b }));
}

#[test]
fn two_branches_of_a_graph_that_race_are_found_at_the_end_of_the_capture() {
    let t = side_bench();
    t.main.begin_capture().unwrap();
    t.in_turn(&t.main, &t.side);
    t.side.submit(Fill { output: t.a, value: 3.0 }).unwrap();
    t.main.submit(Add { a: t.b, b: t.a, output: t.b }).unwrap();
    t.in_turn(&t.side, &t.main);
    let found = hazard(t.main.end_capture("racing"));
    assert_eq!(found, CheckError::Race { buffer: "a".into(), first: "fill".into(), second: "add".into() });
}

#[test]
fn a_read_of_a_buffer_whose_memory_another_one_took_is_named_with_both() {
    let t = side_bench();
    let reused = t.area.tensor("reused", 0, [64], DType::F32);
    t.main.submit(Fill { output: reused, value: 3.0 }).unwrap();
    let found = hazard(t.main.submit(Copy { input: t.a, output: t.b }));
    let expected = CheckError::Overwritten {
        reader: "copy".into(),
        buffer: "a".into(),
        writer: "fill".into(),
        owner: "reused".into(),
    };
    assert_eq!(found, expected);
}

#[test]
fn a_graph_replayed_after_its_input_was_overwritten_by_another_owner_is_refused() {
    let t = side_bench();
    t.main.begin_capture().unwrap();
    t.main.submit(Copy { input: t.a, output: t.b }).unwrap();
    let graph = t.main.end_capture("reader").unwrap();
    graph.launch(&t.main).unwrap();
    let reused = t.area.tensor("reused", 0, [64], DType::F32);
    t.main.submit(Fill { output: reused, value: 3.0 }).unwrap();
    let found = hazard(graph.launch(&t.main));
    assert!(matches!(&found, CheckError::Overwritten { reader, .. } if reader == "graph reader: copy"), "{found}");
}

#[test]
fn a_read_of_part_of_a_buffer_sees_only_that_part() {
    let t = side_bench();
    let tail = t.area.tensor("tail", 128, [32], DType::F32);
    t.main.submit(Fill { output: tail, value: 3.0 }).unwrap();
    t.main.submit(Copy { input: t.a.narrow(0, 32), output: t.b.narrow(0, 32) }).unwrap();
    let found = hazard(t.main.submit(Copy { input: t.a.narrow(31, 2), output: t.b.narrow(0, 2) }));
    assert!(matches!(found, CheckError::Overwritten { .. }), "{found}");
}

#[test]
fn a_buffer_nobody_wrote_cannot_be_read() {
    let t = side_bench();
    let empty = t.area.tensor("empty", 2048, [64], DType::F32);
    let found = hazard(t.main.submit(Copy { input: empty, output: t.b }));
    assert_eq!(found, CheckError::Uninitialized { reader: "copy".into(), buffer: "empty".into() });
}

#[test]
fn a_graph_whose_input_was_freed_before_replay_is_refused_even_without_the_checker() {
    for check in [true, false] {
        let device = Device::host(HostOptions { check, ..HostOptions::default() }).unwrap();
        let keep = device.allocate("keep", 256).unwrap();
        let gone = device.allocate("gone", 256).unwrap();
        let input = gone.tensor("input", 0, [64], DType::F32);
        let output = keep.tensor("output", 0, [64], DType::F32);
        device.upload(&input, &[1.0f32; 64]).unwrap();
        let main = device.stream("main");
        main.begin_capture().unwrap();
        main.submit(Copy { input, output }).unwrap();
        let graph = main.end_capture("reader").unwrap();
        graph.launch(&main).unwrap();
        drop(gone);
        let found = hazard(graph.launch(&main));
        let expected = CheckError::Freed { user: "graph reader: copy".into(), buffer: "input".into() };
        assert_eq!(found, expected);
    }
}

#[test]
fn memory_that_is_dropped_during_a_capture_lives_until_its_end_and_the_graph_is_refused() {
    for check in [true, false] {
        let device = Device::host(HostOptions { check, ..HostOptions::default() }).unwrap();
        let gone = device.allocate("gone", 256).unwrap();
        let output = gone.tensor("output", 0, [64], DType::F32);
        let main = device.stream("main");
        main.begin_capture().unwrap();
        main.submit(Fill { output, value: 1.0 }).unwrap();
        drop(gone);
        assert_eq!(device.allocated_bytes(), 256, "it is freed when the capture is over");
        let graph = main.end_capture("filler").unwrap();
        assert_eq!(device.allocated_bytes(), 0);
        let found = hazard(graph.launch(&main));
        assert_eq!(found, CheckError::Freed { user: "graph filler: fill".into(), buffer: "output".into() });
    }
}

#[test]
fn two_launches_of_a_graph_on_forked_streams_of_a_capture_race() {
    let t = side_bench();
    t.main.begin_capture().unwrap();
    t.main.submit(Fill { output: t.a, value: 1.0 }).unwrap();
    let graph = t.main.end_capture("fill").unwrap();
    let join = t.device.event();
    let both = |in_turn: bool| {
        t.main.begin_capture().unwrap();
        t.in_turn(&t.main, &t.side);
        graph.launch(&t.side).unwrap();
        t.side.record(&join).unwrap();
        if in_turn {
            t.main.wait(&join).unwrap();
        }
        graph.launch(&t.main).unwrap();
        t.main.wait(&join).unwrap();
        t.main.end_capture("both")
    };
    assert!(matches!(hazard(both(false)), CheckError::Race { .. }));
    both(true).unwrap();
}

#[test]
fn a_tensor_allocated_alone_is_there_until_its_areas_are_dropped() {
    let t = side_bench();
    let mut areas = Vec::new();
    let first = t.device.allocate_tensor(&mut areas, "first", [64], DType::F32).unwrap();
    let second = t.device.allocate_tensor(&mut areas, "second", [3, 5], DType::I32).unwrap();
    t.device.upload(&first, &[1.0f32; 64]).unwrap();
    t.device.upload(&second, &[7i32; 15]).unwrap();
    assert_eq!(t.device.download::<f32>(&first).unwrap(), [1.0; 64]);
    drop(areas);
    for tensor in [first, second] {
        assert!(matches!(hazard(t.device.zero(&tensor)), CheckError::Freed { .. }));
    }
}

#[test]
fn poison_shows_as_nan() {
    let t = side_bench();
    t.main.submit(Poison { output: t.a }).unwrap();
    assert!(t.device.download::<f32>(&t.a).unwrap().iter().all(|x| x.is_nan()));
}

#[test]
fn a_branch_of_a_graph_that_overwrites_what_another_reads_from_outside_races() {
    let t = side_bench();
    t.main.begin_capture().unwrap();
    t.in_turn(&t.main, &t.side);
    t.side.submit(Copy { input: t.a, output: t.b }).unwrap();
    t.main.submit(Fill { output: t.a, value: 3.0 }).unwrap();
    t.in_turn(&t.side, &t.main);
    assert_races(t.main.end_capture("racing"));
}

#[test]
fn a_writer_that_waits_for_one_of_two_readers_races_with_the_other() {
    let t = side_bench();
    let (third, c) = (t.device.stream("third"), t.area.tensor("c", 2048, [64], DType::F32));
    t.side.submit(Copy { input: t.a, output: t.b }).unwrap();
    third.submit(Copy { input: t.a, output: c }).unwrap();
    t.in_turn(&third, &t.main);
    assert_races(t.main.submit(Fill { output: t.a, value: 3.0 }));
}

#[test]
fn a_node_that_joins_one_branch_does_not_come_after_another() {
    let t = side_bench();
    let (third, c) = (t.device.stream("third"), t.area.tensor("c", 2048, [64], DType::F32));
    t.device.upload(&c, &[3.0f32; 64]).unwrap();
    t.main.begin_capture().unwrap();
    t.main.submit(Fill { output: t.b, value: 0.0 }).unwrap();
    t.in_turn(&t.main, &t.side);
    t.in_turn(&t.main, &third);
    t.side.submit(Fill { output: t.a, value: 3.0 }).unwrap();
    third.submit(Fill { output: c, value: 3.0 }).unwrap();
    t.main.submit(Fill { output: t.b, value: 1.0 }).unwrap();
    t.in_turn(&t.side, &t.main);
    t.main.submit(Add { a: t.a, b: c, output: t.b }).unwrap();
    t.in_turn(&third, &t.main);
    assert_races(t.main.end_capture("racing"));
}

#[test]
fn what_was_checked_is_counted_by_operation_launch_read_and_ordered_pair() {
    let t = side_bench();
    assert_eq!(t.device.checked().unwrap(), Checked::default(), "uploads are no operations");
    t.main.submit(Fill { output: t.a, value: 3.0 }).unwrap(); // a pair with the upload of a
    t.main.submit(Copy { input: t.a, output: t.b }).unwrap(); // with the fill, and with the upload of b
    let eager = Checked { eager: 2, reads: 1, pairs: 3, ..Checked::default() };
    assert_eq!(t.device.checked().unwrap(), eager);
    t.main.begin_capture().unwrap();
    t.main.submit(Copy { input: t.b, output: t.a }).unwrap();
    t.main.submit(Copy { input: t.a, output: t.b }).unwrap(); // reads a, and writes b after its read
    let graph = t.main.end_capture("both").unwrap();
    let captured = Checked { reads: 2, pairs: 5, ..eager };
    assert_eq!(t.device.checked().unwrap(), captured);
    graph.launch(&t.main).unwrap(); // reads b; writes a, which the copy before has read and the fill written, and b
    let launched = t.device.checked().unwrap();
    assert_eq!((launched.launches, launched.reads), (1, 3));
    assert!(launched.pairs > captured.pairs && launched.eager == 2);
    let unchecked = Device::host(HostOptions { check: false, ..HostOptions::default() }).unwrap();
    assert_eq!(unchecked.checked(), None);
}
