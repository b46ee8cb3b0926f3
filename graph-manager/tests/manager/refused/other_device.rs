//! A device refuses tensors, events and graphs of another, with an error that says so.

use device::ops::{Add, Copy, Fill};
use device::{Area, DType, Device, Error, HostOptions, Snapshot, Tensor};
use graph_manager::{CaptureAll, CudaGraphManager, ManagerOptions};

/// A device that has named so many buffers, and a tensor of it.
fn device(buffers: usize) -> (Device, Tensor, Area) {
    let device = Device::host(HostOptions { check: true, ..HostOptions::default() }).unwrap();
    let area = device.allocate("own", 16).unwrap();
    let tensors: Vec<_> = (0..buffers).map(|_| area.tensor("own", 0, [4], DType::F32)).collect();
    let tensor = *tensors.last().unwrap();
    device.upload(&tensor, &[1.0_f32; 4]).unwrap();
    (device, tensor, area)
}

/// Asserts that it says that the tensor is another device's.
fn is_refused<T>(result: device::Result<T>) {
    let error = result.err().expect("it must be refused");
    assert!(matches!(&error, Error::OtherDevice { .. }), "{error}");
    assert!(error.to_string().contains("is another device's. Fix: make it with this device"), "{error}");
}

#[test]
fn a_tensor_of_another_device_is_refused_as_such_whichever_device_has_more_buffers() {
    for (few, many) in [(1, 50), (50, 1)] {
        let ((here, own, _own), (_there, foreign, _foreign)) = (device(few), device(many));
        let stream = here.stream("compute");
        is_refused(stream.submit(Add { a: own, b: foreign, output: own }));
        is_refused(stream.submit(Copy { input: own, output: foreign }));
        is_refused(stream.write(&foreign, &[2.0_f32; 4]));
        is_refused(stream.read::<f32>(&foreign));
        is_refused(here.upload(&foreign, &[2.0_f32; 4]));
        is_refused(here.download::<f32>(&foreign));
        is_refused(here.zero(&foreign));
        is_refused(here.snapshot(&mut Snapshot::default(), [foreign]));
        assert!(here.buffer_name(foreign.buffer).contains("of another device"));
        stream.begin_capture().unwrap();
        is_refused(stream.submit(Fill { output: foreign, value: 0.0 }));
        stream.abandon_capture();
        assert_eq!(here.download::<f32>(&own).unwrap(), [1.0; 4]);
    }
}

#[test]
fn a_step_on_a_tensor_of_another_device_is_refused_while_it_is_recorded() {
    let ((here, own, _own), (_there, foreign, _foreign)) = (device(1), device(50));
    let policy = CaptureAll::default();
    let mut manager = CudaGraphManager::new(here.stream("compute"), ManagerOptions::default(), policy).unwrap();
    let step = manager
        .record("step", 1, &mut |cx| cx.region("work", (), |cx, ()| cx.run(Add { a: own, b: foreign, output: own })));
    let error = step.unwrap_err().to_string();
    assert!(error.starts_with("work: add: a tensor (4) of f32 is another device's"), "{error}");
}

#[test]
fn events_and_graphs_of_another_device_are_refused() {
    let ((here, own, _own), (there, ..)) = (device(1), device(1));
    let (stream, event) = (here.stream("compute"), there.event());
    is_refused(stream.record(&event));
    is_refused(stream.wait(&event));
    stream.begin_capture().unwrap();
    stream.submit(Fill { output: own, value: 2.0 }).unwrap();
    let graph = stream.end_capture("fill").unwrap();
    is_refused(graph.launch(&there.stream("compute")));
    assert_eq!(here.download::<f32>(&own).unwrap(), [1.0; 4]);
}
