//! Areas over memory that other code owns: they are used like all others, are never freed here, and keep their owner.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::rc::Rc;

use device::cuda::StreamHandle;
use device::ops::{Add, Fill};
use device::{Area, CheckError, DType, Device, Error, HostOptions, Result};

use crate::common::{checked_bench, checked_device, on_gpu};

const N: usize = 64;

/// `N` f32 of another owner: in this process, or on a GPU.
struct Foreign {
    host: Vec<[f32; 4]>,
    gpu: u64,
    freed: Rc<Cell<bool>>,
}

impl Foreign {
    fn new(value: f32) -> Foreign {
        let host = vec![[value; 4]; N / 4];
        let mut gpu = 0;
        if on_gpu() {
            // SAFETY: freed once, when dropped.
            gpu = unsafe { cudarc::driver::result::malloc_sync(4 * N) }.unwrap();
            // SAFETY: both are as large.
            unsafe { cudarc::driver::result::memcpy_htod_sync(gpu, host.as_flattened()) }.unwrap();
        }
        Foreign { host, gpu, freed: Rc::default() }
    }

    fn address(&mut self) -> u64 {
        if on_gpu() { self.gpu } else { self.host.as_mut_ptr().expose_provenance() as u64 }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.freed.set(true);
        if on_gpu() {
            // SAFETY: allocated in `new`.
            unsafe { cudarc::driver::result::free_sync(self.gpu) }.unwrap();
        }
    }
}

/// An area over memory that is full of `value`, and whether its owner was dropped.
fn adopted(device: &Device, value: f32) -> (Area, Rc<Cell<bool>>) {
    let mut foreign = Foreign::new(value);
    let (address, freed) = (foreign.address(), foreign.freed.clone());
    // SAFETY: the memory lives until `foreign` is dropped, and nobody else uses it.
    (unsafe { device.adopt("foreign", address, 4 * N, foreign) }.unwrap(), freed)
}

#[test]
fn tensors_of_adopted_memory_have_its_values_and_are_changed_eagerly_and_by_graphs() {
    let t = checked_bench();
    let (area, freed) = adopted(&t.device, 1.5);
    let x = area.tensor("x", 0, [N], DType::F32);
    let y = t.put(&[N], DType::F32, &[1.0; N]);
    assert_eq!(t.get(&x), [1.5; N]);
    t.run(Add { a: x, b: y, output: x });
    t.stream.begin_capture().unwrap();
    t.run(Add { a: x, b: y, output: x });
    let graph = t.stream.end_capture("add").unwrap();
    for _ in 0..3 {
        graph.launch(&t.stream).unwrap();
    }
    assert_eq!(t.get(&x), [5.5; N]);
    assert!(!freed.get());
}

#[test]
fn the_owner_is_dropped_with_the_area_or_when_the_capture_that_uses_it_is_over() {
    let t = checked_bench();
    let allocated = t.device.allocated_bytes();
    let (area, freed) = adopted(&t.device, 1.0);
    assert_eq!(t.device.allocated_bytes(), allocated, "it is not this device's");
    let x = area.tensor("x", 0, [N], DType::F32);
    t.run(Fill { output: x, value: 2.0 });
    drop(area);
    assert!(freed.get());
    let refused = t.stream.submit(Fill { output: x, value: 2.0 });
    assert!(matches!(refused, Err(Error::Check(CheckError::Freed { .. }))), "{refused:?}");

    let (area, freed) = adopted(&t.device, 1.0);
    t.stream.begin_capture().unwrap();
    drop(area);
    assert!(!freed.get(), "captured work may use it");
    t.stream.end_capture("empty").unwrap();
    assert!(freed.get());
}

#[test]
fn an_owner_may_use_the_device_when_it_is_dropped() {
    struct Asks(Device, Rc<Cell<usize>>);
    impl Drop for Asks {
        fn drop(&mut self) {
            self.1.set(self.0.streams_made());
        }
    }
    let device = checked_device();
    let (mut foreign, made) = (Foreign::new(1.0), Rc::new(Cell::new(0)));
    let address = foreign.address();
    let owner = (Asks(device.clone(), made.clone()), foreign);
    // SAFETY: as in `adopted`.
    drop(unsafe { device.adopt("foreign", address, 4 * N, owner) }.unwrap());
    assert_eq!(made.get(), device.streams_made());
}

#[test]
fn the_checker_finds_a_race_in_adopted_memory() {
    let t = checked_bench();
    let (area, _) = adopted(&t.device, 1.0);
    let x = area.tensor("x", 0, [N], DType::F32);
    let side = t.device.stream("side");
    t.run(Fill { output: x, value: 2.0 });
    let found = side.submit(Fill { output: x, value: 3.0 });
    assert!(matches!(found, Err(Error::Check(CheckError::Race { .. }))), "{found:?}");
}

#[test]
fn memory_that_cannot_be_an_area_is_refused_with_its_name_the_rule_and_the_fix() {
    let t = checked_bench();
    let (area, _) = adopted(&t.device, 1.0);
    let (own, here) = (t.device.allocate("own", 256).unwrap(), area.address());
    // SAFETY: every one of them is refused, so nothing is used.
    let adopt = |address, bytes| unsafe { t.device.adopt("theirs", address, bytes, ()) }.map(drop);
    let mut cases: Vec<(&str, Result<()>)> = vec![
        ("lies in an area", adopt(here, 4 * N)),
        ("lies in an area", adopt(own.address(), 16)),
        ("begins elsewhere", adopt(here + 4, 4)),
        ("is not memory", adopt(0, 16)),
        ("is not memory", adopt(here, 0)),
        ("is not memory", adopt(u64::MAX - 255, 256)),
    ];
    if on_gpu() {
        cases.push(("is not memory of that GPU", adopt(1 << 20, 256)));
    }
    for (words, refused) in cases {
        let text = refused.expect_err(words).to_string();
        assert!(text.contains("`theirs`") && text.contains(words) && text.contains("Fix:"), "{words}: {text}");
    }
    t.device.begin_trace();
    let refused = adopt(here + (1 << 30), 256);
    t.device.end_trace();
    assert!(matches!(&refused, Err(Error::Recording { call }) if call.contains("`theirs`")), "{refused:?}");
}

#[test]
fn a_host_device_has_no_stream_of_the_driver_to_adopt() {
    let device = Device::host(HostOptions::default()).unwrap();
    let handle = StreamHandle(std::ptr::null_mut());
    // SAFETY: a host device looks at no handle.
    let refused = unsafe { device.adopt_stream("of cudarc", handle, ()) }.err().unwrap().to_string();
    assert!(refused.starts_with("adopt_stream: `of cudarc` is a stream of the driver") && refused.contains("Fix: "));
}
