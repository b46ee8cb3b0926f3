//! A buffer that a recording took has no address until it is bound to memory. Work on it is refused.

use device::cuda::CudaOptions;
use device::ops::{Copy, Fill};
use device::{DType, Device, Error, HostArray, HostOptions, Op, Result, Snapshot, Tensor};

use crate::common::on_gpu;

/// A device, with the checker on and off.
fn devices() -> impl Iterator<Item = Device> {
    [true, false].into_iter().map(|check| match on_gpu() {
        true => Device::cuda(CudaOptions { ordinal: 0, deterministic: true, tf32: false, check }).unwrap(),
        false => Device::host(HostOptions { check, ..HostOptions::default() }).unwrap(),
    })
}

fn is_refused<T>(result: Result<T>, user: &str) {
    let error = result.err().unwrap_or_else(|| panic!("{user} ran"));
    assert!(matches!(error, Error::Unbound { .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with(&format!("{user}: buffer `y` has no address yet. Rule: ")), "{text}");
    assert!(text.contains("Fix: "), "{text}");
}

#[test]
fn an_operation_on_a_buffer_without_an_address_is_refused_eagerly_and_in_a_capture() {
    for device in devices() {
        let (mut areas, stream) = (Vec::new(), device.stream("compute"));
        let x = device.allocate_tensor(&mut areas, "x", [4], DType::F32).unwrap();
        let y = device.virtual_tensor("y", [8], DType::F32).narrow(4, 4);
        device.upload(&x, &[1.0f32; 4]).unwrap();
        let read = || Op::from(Copy { input: y, output: x });
        let written = || Op::from(Fill { output: y, value: 2.0 });
        device.set_scope("forward");
        for _ in 0..2 {
            is_refused(stream.submit(read()), "forward/copy");
            is_refused(stream.submit(written()), "forward/fill");
        }
        stream.begin_capture().unwrap();
        is_refused(stream.submit(written()), "forward/fill");
        stream.abandon_capture();
        // Bound to memory it runs.
        let z = device.allocate_tensor(&mut areas, "z", [4], DType::F32).unwrap();
        stream.submit(written().map(|_| z)).unwrap();
        stream.submit(read().map(|tensor| if tensor == y { z } else { tensor })).unwrap();
        assert_eq!(device.download::<f32>(&x).unwrap(), [2.0; 4]);
    }
}

#[test]
fn a_copy_of_a_buffer_without_an_address_is_refused() {
    for device in devices() {
        let stream = device.stream("compute");
        let y = device.virtual_tensor("y", [4], DType::F32);
        let data = [1.0f32; 4];
        is_refused(stream.write(&y, &data), "write");
        is_refused(stream.send_columns(&y, &HostArray::from(data.to_vec()), 4, 0), "write");
        is_refused(stream.read::<f32>(&y), "read");
        is_refused(device.upload(&y, &data), "upload");
        is_refused(device.zero(&y), "zero");
        is_refused(device.download::<f32>(&y), "download");
        is_refused(device.snapshot(&mut Snapshot::default(), [y]), "snapshot");
        is_refused(device.look(&y, |_| ()), "snapshot");
    }
}

#[test]
fn a_buffer_that_was_made_while_nothing_was_allocated_has_no_address_later() {
    for device in devices() {
        let mut areas = Vec::new();
        device.set_dry(true);
        let y: Tensor = device.allocate_tensor(&mut areas, "y", [4], DType::F32).unwrap();
        device.set_dry(false);
        is_refused(device.stream("compute").submit(Fill { output: y, value: 2.0 }), "fill");
        is_refused(device.upload(&y, &[1.0f32; 4]), "upload");
    }
}
