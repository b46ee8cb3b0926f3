//! The places of a step's buffers.

use std::cmp::Reverse;

use device::ops::{Copy, Fill};
use device::{ALIGNMENT, DType, Tensor};
use graph_manager::{CaptureAll, CudaGraphManager, ManagerOptions};

use crate::toy::checked_device;

/// A buffer: its size, and the regions of its first and last use, counted from 0.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    bytes: usize,
    first: usize,
    last: usize,
}

/// Buffers, each with bytes, first and last.
fn buffers<const N: usize>(all: [(usize, usize, usize); N]) -> Vec<Buffer> {
    all.map(|(bytes, first, last)| Buffer { bytes, first, last }).into()
}

/// The buffers' offsets in a step that uses them, and the bytes of the step's area. Each outlives its first region.
fn planned(buffers: &[Buffer]) -> (Vec<usize>, usize) {
    let device = checked_device();
    let options = ManagerOptions { enable: false, ..ManagerOptions::default() };
    let mut manager = CudaGraphManager::new(device.stream("compute"), options, CaptureAll::<usize>::default()).unwrap();
    let regions = buffers.iter().map(|buffer| buffer.last + 1).max().unwrap();
    let mut tensors: Vec<Option<Tensor>> = vec![None; buffers.len()];
    let step = manager.step("step", 1, &mut |cx| {
        for region in 0..regions {
            cx.region(region, (), |cx, ()| {
                for (buffer, tensor) in buffers.iter().zip(&mut tensors).filter(|(buffer, _)| buffer.first == region) {
                    let output = cx.tensor("buffer", [buffer.bytes / 4], DType::F32)?;
                    cx.run(Fill { output, value: 1.0 })?;
                    *tensor = Some(output);
                }
                for (_, tensor) in buffers.iter().zip(&tensors).filter(|(buffer, _)| buffer.last == region) {
                    cx.run(Fill { output: tensor.unwrap(), value: 2.0 })?;
                }
                Ok(())
            })?;
        }
        Ok(())
    });
    step.unwrap();
    let [area] = &manager.memory()[..] else { panic!("{:?}", manager.memory()) };
    assert_eq!(area.area, "step");
    // The report lists buffers in the order of their taking.
    let taken = (0..regions).flat_map(|region| (0..buffers.len()).filter(move |at| buffers[*at].first == region));
    let mut offsets = vec![0; buffers.len()];
    taken.zip(&manager.report().steps[0].buffers).for_each(|(at, planned)| offsets[at] = planned.offset);
    (offsets, area.bytes)
}

/// Largest first, each at the lowest offset that is free for its whole life, by trying all that could be it.
fn lowest_free(buffers: &[Buffer]) -> (Vec<usize>, usize) {
    let size = |buffer: &Buffer| buffer.bytes.next_multiple_of(ALIGNMENT);
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&i| (Reverse(buffers[i].bytes), buffers[i].first, i));
    let mut placed: Vec<(usize, Buffer)> = Vec::new();
    let mut offsets = vec![0; buffers.len()];
    for i in order {
        let buffer = buffers[i];
        let is_free = |&offset: &usize| {
            placed.iter().all(|(at, other)| {
                let apart_in_time = other.last < buffer.first || buffer.last < other.first;
                apart_in_time || at + size(other) <= offset || offset + size(&buffer) <= *at
            })
        };
        let ends = placed.iter().map(|(at, other)| at + size(other));
        offsets[i] = ends.chain([0]).filter(is_free).min().unwrap();
        placed.push((offsets[i], buffer));
    }
    (offsets, placed.iter().map(|(at, buffer)| at + size(buffer)).max().unwrap())
}

#[test]
fn buffers_that_follow_each_other_share_an_address() {
    assert_eq!(planned(&buffers([(512, 0, 1), (512, 2, 3), (256, 4, 5)])), (vec![0, 0, 0], 512));
}

#[test]
fn a_stack_of_activations_needs_its_peak_and_no_more() {
    // Forward saves four buffers, backward frees them in reverse order. A pair of regions shares a small one.
    let saved = [(1024, 0, 9), (1024, 1, 8), (1024, 2, 7), (1024, 3, 6)];
    let passed = [(256, 0, 1), (256, 2, 3), (256, 4, 5), (256, 6, 7), (256, 8, 9)];
    let (_, bytes) = planned(&[buffers(saved), buffers(passed)].concat());
    assert_eq!(bytes, 4 * 1024 + 256);
}

#[test]
fn each_buffer_lies_at_the_lowest_offset_that_is_free_for_its_whole_life() {
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for (count, regions) in [(30, 8), (200, 40), (300, 300)] {
        let mut buffer = || {
            let first = random(regions - 1);
            Buffer { bytes: 4 * (1 + random(2000)), first, last: first + 1 + random(regions - 1 - first) }
        };
        let all: Vec<Buffer> = (0..count).map(|_| buffer()).collect();
        assert_eq!(planned(&all), lowest_free(&all), "{count} buffers in {regions} regions");
    }
}

#[test]
fn memory_that_is_allocated_anew_for_a_larger_step_leaves_no_graph_at_the_old_address() {
    let device = checked_device();
    let mut manager =
        CudaGraphManager::new(device.stream("compute"), ManagerOptions::default(), CaptureAll::<usize>::default())
            .unwrap();
    let mut areas = Vec::new();
    let output = device.allocate_tensor(&mut areas, "output", [4], DType::F32).unwrap();
    let body = |elements: usize, value: f32| {
        move |cx: &mut graph_manager::StepContext<'_, CaptureAll<usize>>| {
            cx.region(0, (), |cx, ()| {
                let scratch = cx.tensor("scratch", [elements], DType::F32)?;
                cx.run(Fill { output: scratch, value })?;
                cx.run(Copy { input: scratch.view(0, [4]), output })
            })
        }
    };
    for _ in 0..3 {
        manager.step("small", 1, &mut body(4, 1.0)).unwrap();
    }
    manager.record("large", 1, &mut body(4096, 2.0)).unwrap();
    manager.allocate().unwrap();
    for _ in 0..2 {
        manager.step("small", 1, &mut body(4, 1.0)).unwrap();
        assert_eq!(device.download::<f32>(&output).unwrap(), [1.0; 4]);
        manager.step("large", 1, &mut body(4096, 2.0)).unwrap();
        assert_eq!(device.download::<f32>(&output).unwrap(), [2.0; 4]);
    }
}
