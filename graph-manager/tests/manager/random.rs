//! Random masks of several microbatches in flight.

use std::num::NonZeroUsize;

use device::ops::{Dropout, DropoutPart, DropoutSite};
use device::{Area, DType, Device, Tensor};
use graph_manager::{CaptureAll, CudaGraphManager, ManagerOptions, Pool, RandomState};

use crate::toy::checked_device;

const TWO: NonZeroUsize = NonZeroUsize::new(2).unwrap();

/// Two records, and tensors of 64 ones.
fn bench() -> (Device, Pool, RandomState, Vec<Tensor>, Vec<Area>) {
    let device = checked_device();
    let pool = Pool::new(device.stream("compute"));
    let random = RandomState::new(&pool, TWO).unwrap();
    let mut areas = Vec::new();
    let tensors = (0..5).map(|_| {
        let tensor = device.allocate_tensor(&mut areas, "t", [1, 1, 64], DType::F32).unwrap();
        device.upload(&tensor, &[1.0_f32; 64]).unwrap();
        tensor
    });
    let tensors = tensors.collect();
    (device, pool, random, tensors, areas)
}

fn dropout(input: Tensor, output: Tensor, record: Tensor) -> Dropout {
    let site = DropoutSite { rate: 0.5, seed: 7, layer: 0, site: 0, record, part: DropoutPart::default() };
    Dropout { input, output, site }
}

#[test]
fn a_backward_drops_what_its_forward_dropped_also_if_another_microbatch_began_in_between() {
    let (device, pool, mut random, t, _areas) = bench();
    let records = [0, 1].map(|record| random.record(record).unwrap());
    let options = ManagerOptions::default();
    let mut manager = CudaGraphManager::in_pool(&pool, options, CaptureAll::<&str>::default()).unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        let _masks = [random.draw(0).unwrap(), random.draw(1).unwrap()];
        let step = manager.step("step", 1, &mut |cx| {
            cx.region("forward 0", (), |cx, ()| cx.run(dropout(t[0], t[1], records[0])))?;
            cx.region("forward 1", (), |cx, ()| cx.run(dropout(t[0], t[2], records[1])))?;
            cx.region("backward 0", (), |cx, ()| cx.run(dropout(t[0], t[3], records[0])))?;
            cx.region("backward 1", (), |cx, ()| cx.run(dropout(t[0], t[4], records[1])))
        });
        step.unwrap();
        let values: Vec<Vec<f32>> = t[1..].iter().map(|tensor| device.download(tensor).unwrap()).collect();
        assert_eq!((&values[0], &values[1]), (&values[2], &values[3]));
        seen.extend([values[0].clone(), values[1].clone()]);
    }
    assert!((0..8).all(|a| (0..a).all(|b| seen[a] != seen[b])), "each microbatch has masks of its own");
}

#[test]
fn masks_are_not_drawn_into_the_record_of_a_microbatch_in_flight() {
    let (device, _pool, mut random, t, _areas) = bench();
    let (compute, record) = (device.stream("a"), random.record(0).unwrap());
    let first = random.draw(0).unwrap();
    device.synchronize().unwrap();
    let error = random.draw(0).err().unwrap().to_string();
    let words = "masks were drawn into record 0 while its microbatch is in flight";
    assert!(error.contains(words) && error.contains("drop its Masks after the backward"), "{error}");
    compute.submit(dropout(t[0], t[1], record)).unwrap();
    let second = random.draw(1).unwrap();
    device.synchronize().unwrap();
    compute.submit(dropout(t[0], t[2], record)).unwrap();
    assert_eq!(device.download::<f32>(&t[1]).unwrap(), device.download::<f32>(&t[2]).unwrap());
    drop((first, second));
    device.synchronize().unwrap();
    let _third = random.draw(0).unwrap();
    let error = random.draw(2).err().unwrap().to_string();
    assert!(error.contains("record 2 was asked for, of 2 records"), "{error}");
    assert!(random.record(2).is_err());
}

#[test]
fn masks_are_not_drawn_inside_a_region() {
    let (_device, pool, mut random, _, _areas) = bench();
    let other = Pool::new(pool.compute().clone());
    let mut manager = CudaGraphManager::in_pool(&other, ManagerOptions::default(), CaptureAll::default()).unwrap();
    let step = manager.step("step", 1, &mut |cx| cx.region("work", (), |_, ()| random.draw(0).map(drop)));
    let error = step.unwrap_err().to_string();
    assert!(error.contains("masks were drawn inside a region"), "{error}");
}
