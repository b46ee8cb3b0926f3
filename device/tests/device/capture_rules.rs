//! The mistakes that CUDA punishes during capture are refused here with the same codes, and each error names a fix.

use std::rc::Rc;

use device::ops::{Add, Copy, Custom, Fill};
use device::{CaptureMode, CaptureRule, DType, Device, Error, HostOptions, Staging, Stream, Tensor};

use crate::common::{Body, Probe, SideBench, side_bench};

/// Asserts the rule, the code, and a fix in the message.
fn assert_rule<T>(result: Result<T, Error>, rule: CaptureRule, code: u32, words: &[&str]) {
    let error = result.err().expect("the mistake must be refused");
    let Error::Capture { rule: found, .. } = &error else { panic!("not a capture error: {error}") };
    assert_eq!((*found, found.code()), (rule, code), "{error}");
    let message = error.to_string();
    for word in words.iter().chain(&["Rule:", "Fix:"]) {
        assert!(message.contains(word), "`{word}` is missing from: {message}");
    }
}

fn fill(output: Tensor, value: f32) -> Fill {
    Fill { output, value }
}

#[test]
fn what_is_submitted_during_a_capture_is_recorded_and_not_run() {
    let t = side_bench();
    t.main.begin_capture().unwrap();
    t.main.submit(fill(t.a, 5.0)).unwrap();
    let graph = t.main.end_capture("fill").unwrap();
    assert_eq!(t.device.download::<f32>(&t.a).unwrap()[0], 1.0);
    graph.launch(&t.main).unwrap();
    assert_eq!(t.device.download::<f32>(&t.a).unwrap()[0], 5.0);
}

#[test]
fn a_replay_computes_again_from_the_same_addresses() {
    let t = side_bench();
    t.main.begin_capture().unwrap();
    t.main.submit(Add { a: t.a, b: t.b, output: t.a }).unwrap();
    let graph = t.main.end_capture("add").unwrap();
    for _ in 0..3 {
        graph.launch(&t.main).unwrap();
    }
    assert_eq!(t.device.download::<f32>(&t.a).unwrap(), vec![7.0; 64]);
}

#[test]
fn calls_that_wait_or_copy_during_a_capture_are_error_900_and_named_with_their_tensor() {
    let t = side_bench();
    type Call = fn(&SideBench) -> Result<(), Error>;
    let calls: [(&str, Call); 10] = [
        ("Stream::synchronize of stream `main`", |t| t.main.synchronize()),
        ("Device::synchronize waits", |t| t.device.synchronize()),
        ("Stream::read of `a`", |t| t.main.read::<f32>(&t.a).map(drop)),
        ("Device::download of `a` waits for all work of the device", |t| t.device.download::<f32>(&t.a).map(drop)),
        ("Device::upload of `b` waits for all work of the device", |t| t.device.upload(&t.b, &[1.0f32; 64])),
        ("Device::zero of `b` waits for all work of the device", |t| t.device.zero(&t.b)),
        ("Device::allocate of `late`, 64 bytes", |t| t.device.allocate("late", 64).map(drop)),
        ("Stream::write to `b` passes values", |t| t.main.write(&t.b, &[1.0f32; 64])),
        ("Stream::copy_out of `a` passes values", |t| t.main.copy_out(&[t.a], &Staging::default()).map(drop)),
        ("Event::synchronize waits", |t| t.device.event().synchronize(&t.device)),
    ];
    for (words, call) in calls {
        t.main.begin_capture().unwrap();
        let error = call(&t).expect_err(words);
        assert!(error.to_string().starts_with(&format!("capture error 900: {words}")), "{words}: {error}");
        let allocates = words.contains("allocate");
        let rule = if allocates { CaptureRule::Allocation } else { CaptureRule::Synchronization };
        assert_rule(Err::<(), Error>(error), rule, 900, if allocates { &["planned before"] } else { &[] });
        t.main.end_capture("spoiled").map(drop).unwrap_err();
    }
}

#[test]
fn a_capture_that_is_begun_twice_is_error_401_and_the_first_one_goes_on() {
    let t = side_bench();
    t.main.begin_capture().unwrap();
    assert_rule(
        t.main.begin_capture(),
        CaptureRule::Begun,
        401,
        &["stream `main`, which is part of the capture of `main`"],
    );
    t.in_turn(&t.main, &t.side);
    assert_rule(
        t.side.begin_capture(),
        CaptureRule::Begun,
        401,
        &["stream `side`, which is part of the capture of `main`"],
    );
    t.main.submit(fill(t.a, 5.0)).unwrap();
    t.main.end_capture("fill").unwrap().launch(&t.main).unwrap();
    assert_eq!(t.device.download::<f32>(&t.a).unwrap()[0], 5.0);
}

#[test]
fn the_end_of_a_capture_on_a_forked_stream_is_error_903_and_the_capture_goes_on() {
    let t = side_bench();
    t.main.begin_capture().unwrap();
    t.in_turn(&t.main, &t.side);
    let words = ["Stream::end_capture of graph `mine` on stream `side`", "begun on stream `main`"];
    assert_rule(t.side.end_capture("mine"), CaptureRule::Unmatched, 903, &words);
    t.side.submit(fill(t.b, 5.0)).unwrap();
    t.in_turn(&t.side, &t.main);
    t.main.end_capture("fill").unwrap().launch(&t.main).unwrap();
    assert_eq!(t.device.download::<f32>(&t.b).unwrap()[0], 5.0);
}

#[test]
fn every_mode_of_capture_records_the_same() {
    let t = side_bench();
    for (value, mode) in [(3.0, CaptureMode::ThreadLocal), (4.0, CaptureMode::Global), (5.0, CaptureMode::Relaxed)] {
        t.main.begin_capture_in(mode).unwrap();
        t.main.submit(fill(t.a, value)).unwrap();
        let refused = t.device.allocate("late", 64).map(drop);
        assert_rule(refused, CaptureRule::Allocation, 900, &["`late`"]);
        t.main.end_capture("spoiled").map(drop).unwrap_err();
        t.main.begin_capture_in(mode).unwrap();
        t.main.submit(fill(t.a, value)).unwrap();
        t.main.end_capture("fill").unwrap().launch(&t.main).unwrap();
        assert_eq!(t.device.download::<f32>(&t.a).unwrap()[0], value, "{mode:?}");
    }
}

#[test]
fn after_a_mistake_every_call_of_the_capture_repeats_it() {
    let t = side_bench();
    let (event, fork) = (t.device.event(), t.device.event());
    t.main.begin_capture().unwrap();
    t.main.record(&fork).unwrap();
    t.device.allocate("late", 64).map(drop).unwrap_err();
    let later = [
        t.main.submit(fill(t.a, 3.0)),
        t.main.record(&event),
        t.main.wait(&fork),
        t.side.wait(&fork),
        t.main.end_capture("spoiled").map(drop),
    ];
    for refused in later {
        assert_rule(refused, CaptureRule::Invalidated, 901, &["capture error 900: Device::allocate of `late`"]);
    }
    t.side.submit(fill(t.b, 3.0)).expect("it never became part of that capture");
}

#[test]
fn a_capture_in_which_a_call_failed_ends_with_error_901_and_the_first_mistake() {
    let t = side_bench();
    t.main.begin_capture().unwrap();
    t.main.synchronize().unwrap_err();
    let result = t.main.end_capture("spoiled").map(|_| ());
    assert_rule(result, CaptureRule::Invalidated, 901, &["Stream::synchronize of stream `main`"]);
    t.main.submit(fill(t.a, 3.0)).expect("the stream works again after the failed capture");
}

#[test]
fn a_forked_stream_that_is_not_joined_is_error_904_and_names_the_stream() {
    let t = side_bench();
    t.main.begin_capture().unwrap();
    t.in_turn(&t.main, &t.side);
    t.side.submit(fill(t.b, 3.0)).unwrap();
    let result = t.main.end_capture("forked").map(|_| ());
    assert_rule(result, CaptureRule::Unjoined, 904, &["stream `side` ends with `fill`", "record an event"]);
}

#[test]
fn a_forked_stream_that_is_joined_becomes_part_of_the_graph() {
    let t = side_bench();
    t.main.begin_capture().unwrap();
    t.main.submit(fill(t.a, 4.0)).unwrap();
    t.in_turn(&t.main, &t.side);
    t.side.submit(fill(t.b, 3.0)).unwrap();
    t.in_turn(&t.side, &t.main);
    t.main.submit(Add { a: t.a, b: t.b, output: t.a }).unwrap();
    let graph = t.main.end_capture("joined").unwrap();
    assert_eq!(graph.nodes()[2].dependencies, vec![0, 1]);
    for seed in 0..8 {
        t.device.shuffle_replays(Some(seed));
        graph.launch(&t.main).unwrap();
        assert_eq!(t.device.download::<f32>(&t.a).unwrap()[63], 7.0);
    }
}

#[test]
fn waiting_in_a_capture_for_an_outside_event_is_error_905() {
    let t = side_bench();
    let outside = t.device.event();
    t.side.submit(fill(t.b, 3.0)).unwrap();
    t.side.record(&outside).unwrap();
    t.main.begin_capture().unwrap();
    assert_rule(t.main.wait(&outside), CaptureRule::Isolation, 905, &["`main`", "outside the capture"]);
}

#[test]
fn a_capture_of_the_default_stream_or_that_was_not_begun_is_refused() {
    let t = side_bench();
    let words = ["Stream::end_capture of graph `mine` on stream `main`, which does not capture"];
    assert_rule(t.main.end_capture("mine"), CaptureRule::NotBegun, 401, &words);
    assert_rule(t.device.default_stream().begin_capture(), CaptureRule::Implicit, 906, &["default stream"]);
    // Nor may work of that stream come during another's capture.
    t.main.begin_capture().unwrap();
    let result = t.device.default_stream().submit(fill(t.b, 3.0));
    assert_rule(result, CaptureRule::Implicit, 906, &["`fill`", "default stream"]);
}

#[test]
fn an_event_recorded_in_a_capture_and_used_outside_is_error_907() {
    let t = side_bench();
    let event = t.device.event();
    t.main.begin_capture().unwrap();
    t.main.submit(fill(t.a, 3.0)).unwrap();
    t.main.record(&event).unwrap();
    t.main.end_capture("done").unwrap();
    assert_rule(t.side.wait(&event), CaptureRule::CapturedEvent, 907, &["`side`"]);
    assert_rule(event.synchronize(&t.device), CaptureRule::CapturedEvent, 907, &["was synchronized"]);
}

#[test]
fn a_capture_that_is_given_up_frees_the_memory_that_only_its_operations_own() {
    for fails in [true, false] {
        // The operation has no CUDA side.
        let device = Device::host(HostOptions::default()).unwrap();
        let main = device.stream("main");
        let area = device.allocate("owned", 256).unwrap();
        let owned = area.tensor("owned", 0, [64], DType::F32);
        main.begin_capture().unwrap();
        // The operation owns the memory that it works on.
        let body: Body = Box::new(move |_| {
            let _ = &area;
            Ok(())
        });
        main.submit(Custom::new(Rc::new(Probe { reads: Vec::new(), writes: vec![owned], body }))).unwrap();
        if fails {
            device.allocate("refused", 256).err().expect("nothing is allocated during a capture");
            main.end_capture("owner").err().expect("the capture had failed before");
        } else {
            main.abandon_capture();
        }
        assert_eq!(device.allocated_bytes(), 0);
    }
}

#[test]
fn operations_whose_output_overlaps_with_an_input_are_refused() {
    let t = side_bench();
    let shifted = t.area.place(t.a.buffer, 128, [64], DType::F32);
    for op in [
        device::Op::from(Copy { input: t.a, output: shifted }),
        Copy { input: t.a, output: t.a }.into(),
        Add { a: t.b, b: t.a, output: t.a }.into(),
        Add { a: t.a, b: t.b, output: shifted }.into(),
    ] {
        let error = t.main.submit(op).err().unwrap().to_string();
        assert!(error.contains("`output` overlaps with `"), "{error}");
    }
    t.main.submit(Add { a: t.a, b: t.b, output: t.a }).unwrap();
}

#[test]
fn work_during_a_capture_on_a_stream_that_it_does_not_include_is_error_900_and_does_not_run() {
    let t = side_bench();
    t.main.begin_capture().unwrap();
    t.main.submit(fill(t.a, 4.0)).unwrap();
    let words = ["`fill` was submitted to stream `side`", "which is not part of the capture under way"];
    assert_rule(t.side.submit(fill(t.b, 3.0)), CaptureRule::Outside, 900, &words);
    assert_rule(t.side.write(&t.b, &[3.0_f32; 64]), CaptureRule::Outside, 900, &["`write`"]);
    assert_rule(t.side.read::<f32>(&t.b), CaptureRule::Outside, 900, &["`read`"]);
    assert_rule(t.main.end_capture("spoiled"), CaptureRule::Invalidated, 901, &["`side`"]);
    assert_eq!(t.device.download::<f32>(&t.b).unwrap(), [2.0; 64]);
}

#[test]
fn a_device_waits_for_its_own_work_and_ends_while_another_thread_captures() {
    let (begun, waited) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let t = side_bench();
            t.main.begin_capture().unwrap();
            t.main.submit(Fill { output: t.a, value: 3.0 }).unwrap();
            begun.wait();
            waited.wait();
            t.main.end_capture("fill").unwrap().launch(&t.main).unwrap();
            assert_eq!(t.device.download::<f32>(&t.a).unwrap(), [3.0; 64]);
        });
        let t = side_bench();
        begun.wait();
        t.side.submit(Fill { output: t.b, value: 4.0 }).unwrap();
        let all = t.device.synchronize();
        let filled = t.device.download::<f32>(&t.b);
        // Its libraries go with it.
        drop(t);
        waited.wait();
        all.unwrap();
        assert_eq!(filled.unwrap(), [4.0; 64]);
    });
}

#[test]
fn a_stream_that_nobody_holds_is_followed_by_the_next_of_its_kind() {
    let t = side_bench();
    let id = |stream: Stream| stream.id();
    let first = id(t.device.stream("first"));
    assert_eq!(id(t.device.stream("second")), first);
    assert_ne!(id(t.device.transfer_stream("another kind")), first);
    let held = t.device.stream_named(first);
    assert_ne!(id(t.device.stream("third")), first, "it is held");
    assert_ne!(id(t.device.stream("third")), t.main.id());
    held.begin_capture().unwrap();
    held.submit(fill(t.a, 3.0)).unwrap();
    let graph = held.end_capture("graph").unwrap();
    drop(held);
    assert_ne!(id(t.device.stream("fourth")), first, "a graph was captured on it");
    drop(graph);
    assert_eq!(id(t.device.stream("fifth")), first);
}
