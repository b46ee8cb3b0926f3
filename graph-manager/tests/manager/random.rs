//! Random masks of several microbatches in flight.

use std::num::NonZeroUsize;

use device::ops::{Dropout, DropoutSite};
use device::{DType, Tensor};
use graph_manager::{Capture, CaptureAll, CudaGraphManager, ManagerOptions, Pool, RandomState};

use crate::named::Bench;
use crate::toy::assert_refused;

const TWO: NonZeroUsize = NonZeroUsize::new(2).unwrap();

/// Two records, and tensors of 64 ones.
fn bench() -> (Bench, RandomState, [Tensor; 5]) {
    let bench = crate::named::bench();
    let random = RandomState::new(&bench.pool, 7, TWO).unwrap();
    let tensors = [(); 5].map(|()| bench.tensor("t", &[1.0; 64]).reshape([1, 1, 64]));
    (bench, random, tensors)
}

/// A dropout with the masks of a record.
fn dropout(input: Tensor, output: Tensor, masks: DropoutSite) -> Dropout {
    Dropout { input, output, site: DropoutSite { rate: 0.5, ..masks } }
}

#[test]
fn a_backward_drops_what_its_forward_dropped_also_if_another_microbatch_began_in_between() {
    let (bench, mut random, t) = bench();
    let sites = [0, 1].map(|record| random.site(record).unwrap());
    let options = ManagerOptions::default();
    let mut manager = CudaGraphManager::in_pool(&bench.pool, options, CaptureAll::<&str>::default()).unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        let _masks = [random.draw(0).unwrap(), random.draw(1).unwrap()];
        let step = manager.step("step", 1, &mut |cx| {
            cx.region("forward 0", (), |cx, ()| cx.run(dropout(t[0], t[1], sites[0])))?;
            cx.region("forward 1", (), |cx, ()| cx.run(dropout(t[0], t[2], sites[1])))?;
            cx.region("backward 0", (), |cx, ()| cx.run(dropout(t[0], t[3], sites[0])))?;
            cx.region("backward 1", (), |cx, ()| cx.run(dropout(t[0], t[4], sites[1])))
        });
        step.unwrap();
        let values: Vec<Vec<f32>> = t[1..].iter().map(|tensor| bench.read(*tensor)).collect();
        assert_eq!((&values[0], &values[1]), (&values[2], &values[3]));
        seen.extend([values[0].clone(), values[1].clone()]);
    }
    assert!((0..8).all(|a| (0..a).all(|b| seen[a] != seen[b])), "each microbatch has masks of its own");
}

#[test]
fn masks_are_not_drawn_into_the_record_of_a_microbatch_in_flight() {
    let (bench, mut random, t) = bench();
    let (compute, masks) = (bench.device.stream("a"), random.site(0).unwrap());
    let first = random.draw(0).unwrap();
    bench.device.synchronize().unwrap();
    let error = random.draw(0).err().unwrap().to_string();
    let words = "masks were drawn into record 0 while its microbatch is in flight";
    assert!(error.contains(words) && error.contains("drop its Masks after the backward"), "{error}");
    compute.submit(dropout(t[0], t[1], masks)).unwrap();
    let second = random.draw(1).unwrap();
    bench.device.synchronize().unwrap();
    compute.submit(dropout(t[0], t[2], masks)).unwrap();
    assert_eq!(bench.read(t[1]), bench.read(t[2]));
    drop((first, second));
    bench.device.synchronize().unwrap();
    let _third = random.draw(0).unwrap();
    assert_refused(random.draw(2), "record 2 was asked for, of 2 records");
    assert!(random.site(2).is_err());
}

#[test]
fn masks_are_not_drawn_inside_a_region() {
    let (bench, mut random, _) = bench();
    let other = Pool::new(bench.compute.clone());
    let mut manager = CudaGraphManager::in_pool(&other, ManagerOptions::default(), CaptureAll::default()).unwrap();
    let step = manager.step("step", 1, &mut |cx| cx.region("work", (), |_, ()| random.draw(0).map(drop)));
    assert_refused(step, "masks were drawn inside a region");
}

#[test]
fn several_states_in_one_graph_count_their_own_draws() {
    let (bench, mut a, t) = bench();
    // One with another seed, and one with the same seed.
    let [mut b, mut twin] = [8, 7].map(|seed| RandomState::new(&bench.pool, seed, TWO).unwrap());
    let [of_a, of_b, of_twin] = [&a, &b, &twin].map(|state| state.site(0).unwrap());
    let mut capture = Capture::new(&bench.pool, "three", 1, NonZeroUsize::MIN, move |cx, x: Tensor| {
        let mut outputs = Vec::new();
        for (name, site) in [("of a", of_a), ("of b", of_b), ("of the twin", of_twin)] {
            let output = cx.tensor(name, x.shape, DType::F32)?;
            cx.run(dropout(x, output, site))?;
            outputs.push(output);
        }
        Ok(outputs)
    })
    .unwrap();
    let mut run = |a: &mut RandomState, b: &mut RandomState, twin: &mut RandomState| {
        let _masks = [a.draw(0).unwrap(), b.draw(0).unwrap(), twin.draw(0).unwrap()];
        let outputs = capture.run(t[0]).unwrap();
        let values: Vec<Vec<f32>> = outputs.iter().map(|output| bench.read(*output)).collect();
        assert_ne!(values[0], values[1], "seeds differ");
        values
    };
    let first: Vec<_> = (0..4).map(|_| run(&mut a, &mut b, &mut twin)).collect();
    assert!(first.iter().all(|values| values[0] == values[2]), "one seed, the same draws");
    // One of them begins anew, the others go on.
    assert_eq!((a.next_draw(), b.next_draw()), (4, 4));
    a.seek(0);
    for (draw, before) in first.iter().enumerate() {
        let values = run(&mut a, &mut b, &mut twin);
        assert_eq!(values[0], before[0]);
        assert!(first.iter().all(|before| before[1] != values[1] && before[2] != values[2]), "draw {draw}");
    }
    assert_eq!((a.next_draw(), b.next_draw()), (4, 8));
}
