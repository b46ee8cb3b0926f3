//! The order of a step's list: it has all waits that are needed and no wait that follows from others, and the checker
//! does not rely on it.

use std::collections::{HashMap, HashSet};

use device::ops::Add;
use device::{Area, CheckError, DType, Device, Event, HostOptions, Op, Stream, StreamId, Tensor};
use graph_manager::{CaptureAll, CudaGraphManager, ListedEntry, ManagerOptions};

use crate::toy::checked_device;

/// Numbers that look random, the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

const PLACES: usize = 6;
const EACH: usize = 4;

/// Numbers that a step works on, and streams.
struct Bench {
    device: Device,
    compute: Stream,
    sides: Vec<Stream>,
    events: Vec<Event>,
    /// `(PLACES, EACH)`, f32.
    all: Tensor,
    _areas: Vec<Area>,
}

fn bench(device: Device) -> Bench {
    let mut areas = Vec::new();
    let all = device.allocate_tensor(&mut areas, "all", [PLACES, EACH], DType::F32).unwrap();
    let compute = device.stream("compute");
    let sides = (0..3).map(|at| device.stream(&format!("side {at}"))).collect();
    let events = (0..3).map(|_| device.event()).collect();
    Bench { device, compute, sides, events, all, _areas: areas }
}

impl Bench {
    fn manager(&self) -> CudaGraphManager<CaptureAll<u32>> {
        let options = ManagerOptions { enable: false, ..ManagerOptions::default() };
        CudaGraphManager::new(self.compute.clone(), options, CaptureAll::default()).unwrap()
    }

    /// A random sum of places. Their bytes may overlap with those of other sums in part.
    fn sum(&self, numbers: &mut Numbers) -> Op {
        let flat = self.all.reshape([PLACES * EACH]);
        let starts = |numbers: &mut Numbers| 2 * numbers.below((PLACES - 1) * EACH / 2);
        let output = starts(numbers);
        let mut input = || loop {
            let start = starts(numbers);
            if start.abs_diff(output) >= EACH {
                return flat.view(start, [EACH]);
            }
        };
        let (a, b) = (input(), input());
        Add { a, b, output: flat.view(output, [EACH]) }.into()
    }

    /// Random work in random regions; some regions do the same as others. Returns the operations with their streams.
    fn record(&self, manager: &mut CudaGraphManager<CaptureAll<u32>>, seed: u64) -> Vec<(StreamId, Op)> {
        let mut submitted = Vec::new();
        let body = &mut |cx: &mut graph_manager::StepContext<'_, CaptureAll<u32>>| {
            let mut numbers = Numbers(seed);
            let mut recorded = [false; 3];
            for region in 0..4 + numbers.below(4) as u32 {
                // Two of three regions do the same as others.
                let mut inside = Numbers(if region % 3 == 0 { seed ^ u64::from(region) } else { seed });
                cx.region(region, (), |_, ()| {
                    for _ in 0..1 + inside.below(8) {
                        let side = inside.below(self.sides.len());
                        let (stream, event) = (&self.sides[side], &self.events[side]);
                        match inside.below(6) {
                            0 | 1 if recorded[side] => self.compute.wait(event)?,
                            2 if recorded[side] => stream.wait(event)?,
                            0 => self.compute.record(event)?,
                            1..4 => {
                                stream.record(event)?;
                                recorded[side] = !recorded[side];
                            }
                            choice => {
                                let stream = if choice == 4 { stream } else { &self.compute };
                                let op = self.sum(&mut inside);
                                submitted.push((stream.id(), op.clone()));
                                stream.submit(op)?;
                            }
                        }
                    }
                    Ok(())
                })?;
            }
            Ok(())
        };
        manager.record("step", 1, body).unwrap();
        submitted
    }
}

fn list(manager: &CudaGraphManager<CaptureAll<u32>>) -> Vec<ListedEntry> {
    let mut entries = Vec::new();
    manager.list("step", 1, |entry| entries.push(entry));
    entries
}

/// By entry: those that must be done before it.
fn before(entries: &[ListedEntry]) -> Vec<HashSet<usize>> {
    let mut last: HashMap<StreamId, usize> = HashMap::new();
    let mut all: Vec<HashSet<usize>> = Vec::new();
    for entry in entries {
        let mut done = HashSet::new();
        for on in last.insert(entry.queue, entry.number).into_iter().chain(entry.waits.iter().copied()) {
            done.insert(on);
            done.extend(&all[on]);
        }
        all.push(done);
    }
    all
}

fn values(bench: &Bench, order: impl Iterator<Item = Op>) -> Vec<u32> {
    let start: Vec<f32> = (0..PLACES * EACH).map(|at| 1.0 + 0.37 * at as f32).collect();
    bench.device.upload(&bench.all, &start).unwrap();
    order.for_each(|op| bench.compute.submit(op).unwrap());
    bench.device.download::<f32>(&bench.all).unwrap().into_iter().map(f32::to_bits).collect()
}

#[test]
fn random_lists_have_the_same_result_in_every_order_that_their_waits_allow() {
    let bench = bench(Device::host(HostOptions::default()).unwrap());
    let (mut reordered, mut waits) = (0, 0);
    for seed in 0..120 {
        let mut manager = bench.manager();
        let submitted = bench.record(&mut manager, seed);
        let entries = list(&manager);
        let listed: Vec<(StreamId, Op)> =
            entries.iter().map(|entry| (entry.queue, entry.op.clone().unwrap())).collect();
        assert_eq!(listed, submitted, "the list says what was submitted, seed {seed}");
        waits += entries.iter().map(|entry| entry.waits.len()).sum::<usize>();
        let before = before(&entries);
        let in_turn = values(&bench, listed.iter().map(|(_, op)| op.clone()));
        let mut numbers = Numbers(seed);
        for _ in 0..4 {
            let (mut left, mut order): (Vec<usize>, Vec<usize>) = ((0..entries.len()).collect(), Vec::new());
            while !left.is_empty() {
                let ready = |at: &usize| before[left[*at]].iter().all(|on| !left.contains(on));
                let all: Vec<usize> = (0..left.len()).filter(ready).collect();
                order.push(left.remove(all[numbers.below(all.len())]));
            }
            reordered += usize::from(!order.is_sorted());
            assert_eq!(values(&bench, order.iter().map(|at| listed[*at].1.clone())), in_turn, "{order:?}, seed {seed}");
        }
    }
    assert!(reordered > 50 && waits > 300, "{reordered} other orders, {waits} waits");
}

#[test]
fn no_wait_of_a_list_follows_from_others() {
    let bench = bench(Device::host(HostOptions::default()).unwrap());
    for seed in 0..200 {
        let mut manager = bench.manager();
        bench.record(&mut manager, seed);
        let entries = list(&manager);
        let before = before(&entries);
        let mut last: HashMap<StreamId, usize> = HashMap::new();
        for entry in &entries {
            let own = last.insert(entry.queue, entry.number);
            for wait in &entry.waits {
                let others = own.iter().chain(entry.waits.iter().filter(|other| *other != wait));
                let implied = { others }.any(|other| other == wait || before[*other].contains(wait));
                assert!(!implied, "entry {} need not wait for {wait}, seed {seed}", entry.number);
                assert_ne!(entries[*wait].queue, entry.queue, "its own queue orders them");
            }
        }
    }
}

#[test]
fn the_checker_finds_a_missing_event_though_the_list_has_the_order() {
    let bench = bench(checked_device());
    let [x, y, z] = [0, 1, 2].map(|at| bench.all.at(at));
    let mut manager = bench.manager();
    let side = &bench.sides[0];
    let forgets = &mut |cx: &mut graph_manager::StepContext<'_, CaptureAll<u32>>| {
        cx.region(0, (), |cx, ()| {
            side.submit(Add { a: x, b: x, output: y })?;
            cx.run(Add { a: y, b: y, output: z })
        })
    };
    manager.record("step", 1, forgets).unwrap();
    let entries = list(&manager);
    assert_eq!(entries[1].waits, [0], "the rule of data");
    // Submitted by hand, with the wait and without.
    let stream = |queue| if queue == side.id() { side } else { &bench.compute };
    let submit = |waits: bool| -> device::Result<()> {
        bench.device.upload(&bench.all, &[1.0; PLACES * EACH])?;
        for entry in &entries {
            for on in entry.waits.iter().filter(|_| waits) {
                stream(entries[*on].queue).record(&bench.events[0])?;
                stream(entry.queue).wait(&bench.events[0])?;
            }
            stream(entry.queue).submit(entry.op.clone().unwrap())?;
        }
        bench.device.synchronize()
    };
    submit(true).unwrap();
    let error = submit(false).unwrap_err();
    assert!(matches!(error, device::Error::Check(CheckError::Race { .. })), "{error}");
    bench.device.synchronize().unwrap();
    // The manager submits its list with all waits.
    for _ in 0..3 {
        bench.device.upload(&bench.all, &[1.0; PLACES * EACH]).unwrap();
        manager.step("step", 1, forgets).unwrap();
        assert_eq!(bench.device.download::<f32>(&z).unwrap(), [4.0; EACH]);
    }
}
