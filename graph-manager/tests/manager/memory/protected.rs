//! Memory that is protected while it is copied: the work that writes to it waits, and no other work does.

use device::ops::Add;
use device::{CheckError, HostCopy, Staging};
use graph_manager::{Error, ManagerOptions, Result};

use crate::toy::{LAYERS, Mode, Toy, ToyPolicy, WIDTH, toy_with};

/// All ways to run the toy: eagerly, with graphs of layers, and with one graph.
fn ways() -> [(bool, bool); 3] {
    [(false, false), (true, false), (true, true)]
}

/// Copies the sums on another stream. A step follows; with `protects` it is told of the copy.
fn copied_before_a_step(toy: &Toy, protects: bool, enable: bool) -> (Result<()>, HostCopy) {
    let mut manager = toy.manager(ManagerOptions { enable, ..ManagerOptions::default() });
    for _ in 0..2 {
        toy.train(&mut manager, 3, 1).unwrap();
    }
    let (stream, written, copied) = (toy.device.stream("copies"), toy.device.event(), toy.device.event());
    toy.compute.record(&written).unwrap();
    stream.wait(&written).unwrap();
    let copy = stream.copy_out(&[toy.sums], &Staging::default()).unwrap();
    stream.record(&copied).unwrap();
    if protects {
        manager.protect([toy.sum(), toy.sums], copied);
    }
    let step = toy.train(&mut manager, 3, 1);
    assert_eq!(manager.report().graphs.is_empty(), !enable);
    (step, copy)
}

fn is_race(result: &Result<()>) -> bool {
    let Err(Error::Device { source, .. }) = result else { return false };
    matches!(source, device::Error::Check(CheckError::Race { .. }))
}

#[test]
fn a_step_that_writes_to_protected_memory_waits_for_the_copy_and_others_race_with_it() {
    for (enable, whole) in ways() {
        let toy = toy_with(ToyPolicy { whole, ..ToyPolicy::default() });
        let (step, copy) = copied_before_a_step(&toy, true, enable);
        step.unwrap();
        let pieces = copy.pieces(&toy.sums).unwrap();
        let bytes: Vec<u8> = pieces.flat_map(|piece| piece.unwrap().as_ref().to_vec()).collect();
        assert_eq!(bytes.len(), LAYERS * WIDTH * 4);
        let toy = toy_with(ToyPolicy { whole, ..ToyPolicy::default() });
        let (step, _copy) = copied_before_a_step(&toy, false, enable);
        assert!(is_race(&step), "graphs {enable}, whole {whole}: {step:?}");
    }
}

#[test]
fn work_that_does_not_write_to_protected_memory_does_not_wait() {
    for (enable, whole) in ways() {
        let toy = toy_with(ToyPolicy { whole, ..ToyPolicy::default() });
        let mut manager = toy.manager(ManagerOptions { enable, ..ManagerOptions::default() });
        let mut step = |protect: Option<device::Event>| {
            protect.into_iter().for_each(|event| manager.protect([toy.sums.at(2)], event));
            manager.step(Mode::Evaluate, 1, &mut |cx| {
                cx.region(crate::toy::Region::Step, (), |cx, ()| {
                    let add = |cx: &mut crate::toy::StepContext<'_>, layer: usize| {
                        cx.region(crate::toy::Region::Forward { layer, microbatch: 0 }, (), |cx, ()| {
                            cx.run(Add { a: toy.inputs.at(layer), b: toy.inputs.at(0), output: toy.sums.at(layer) })
                        })
                    };
                    add(cx, 1)?;
                    add(cx, 2)
                })
            })
        };
        step(None).unwrap();
        step(None).unwrap();
        let (stream, written, copied) = (toy.device.stream("copies"), toy.device.event(), toy.device.event());
        toy.compute.record(&written).unwrap();
        stream.wait(&written).unwrap();
        // Both are copied, and the second alone is protected. The first one's writer would have to wait as well.
        let _copy = stream.copy_out(&[toy.sums.at(1), toy.sums.at(2)], &Staging::default()).unwrap();
        stream.record(&copied).unwrap();
        assert!(is_race(&step(Some(copied))), "graphs {enable}, whole {whole}");
    }
}
