//! Calls that wait or allocate are named in steps that must do neither.

use device::ops::Fill;
use device::{DType, Device, Error, HostOptions, Result, Snapshot, SyncDebug};

/// A call, and how it is named.
type Case<'a> = (&'a str, Box<dyn Fn() -> Result<()> + 'a>);

#[test]
fn every_call_that_waits_or_allocates_fails_with_its_name_and_region_and_none_does_while_it_is_off() {
    let device = Device::host(HostOptions::default()).unwrap();
    let mut areas = Vec::new();
    let x = device.allocate_tensor(&mut areas, "x", [4], DType::F32).unwrap();
    let (stream, event) = (device.stream("compute"), device.event());
    device.set_scope("forward of layer 1");
    stream.submit(Fill { output: x, value: 2.0 }).unwrap();
    stream.record(&event).unwrap();
    let waits = "makes the host wait";
    let cases: Vec<Case<'_>> = vec![
        ("Device::synchronize in `forward of layer 1` makes the host wait", Box::new(|| device.synchronize())),
        ("Stream::synchronize of stream `compute` in `forward of layer 1`", Box::new(|| stream.synchronize())),
        ("Event::synchronize in `forward of layer 1`", Box::new(|| event.synchronize(&device))),
        ("Device::upload of `x` in `forward of layer 1`", Box::new(|| device.upload(&x, &[2.0_f32; 4]))),
        ("Device::zero of `x` in", Box::new(|| device.zero(&x).and_then(|()| device.upload(&x, &[2.0_f32; 4])))),
        ("Device::download of `x` in", Box::new(|| device.download::<f32>(&x).map(|x| assert_eq!(x, [2.0; 4])))),
        ("Readback::wait in no region makes the host wait", Box::new(|| stream.read::<f32>(&x)?.wait().map(drop))),
        ("Device::synchronize in", Box::new(|| device.snapshot(&mut Snapshot::default(), [x]))),
        (
            "Device::allocate of `late`, 16 bytes, in `forward of layer 1` allocates memory",
            Box::new(|| device.allocate("late", 16).map(drop)),
        ),
        ("Device::staging in `forward of layer 1` allocates memory", Box::new(|| device.staging([64]).map(drop))),
    ];
    for (name, call) in &cases {
        call().unwrap();
        device.set_sync_debug(SyncDebug::Error);
        let error = call().unwrap_err();
        device.set_sync_debug(SyncDebug::Off);
        assert!(matches!(error, Error::Hinders { .. }), "{error:?}");
        let text = error.to_string();
        let rule = "Rule: a steady step neither waits for the device nor allocates. Fix: ";
        assert!(text.starts_with(name) && text.contains(rule), "{text}");
    }
    assert!(device.sync_warnings().is_empty());
    device.set_sync_debug(SyncDebug::Warn);
    for _ in 0..3 {
        cases.iter().for_each(|(_, call)| call().unwrap());
    }
    device.set_sync_debug(SyncDebug::Off);
    let warnings = device.sync_warnings();
    assert!(cases.iter().all(|(name, _)| warnings.iter().any(|told| told.starts_with(name))), "{warnings:?}");
    // Each once, and the area that is dropped.
    assert_eq!(warnings.len(), cases.len(), "{warnings:?}");
    assert!(
        warnings.iter().any(|told| told.starts_with("the drop of an area") && told.contains(waits)),
        "{warnings:?}"
    );
}

#[test]
fn work_that_neither_waits_nor_allocates_is_left_alone() {
    let device = Device::host(HostOptions::default()).unwrap();
    let mut areas = Vec::new();
    let x = device.allocate_tensor(&mut areas, "x", [4], DType::F32).unwrap();
    let (stream, other, event) = (device.stream("compute"), device.stream("side"), device.event());
    device.set_sync_debug(SyncDebug::Error);
    stream.write(&x, &[1.0_f32; 4]).unwrap();
    stream.begin_capture().unwrap();
    stream.submit(Fill { output: x, value: 3.0 }).unwrap();
    let graph = stream.end_capture("fill").unwrap();
    graph.launch(&stream).unwrap();
    stream.record(&event).unwrap();
    other.wait(&event).unwrap();
    let values = other.read::<f32>(&x).unwrap();
    device.set_sync_debug(SyncDebug::Off);
    assert_eq!(values.wait().unwrap(), [3.0; 4]);
}
