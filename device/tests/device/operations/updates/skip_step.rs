//! The choice of spikes among steps, against a reference in f64.

use crate::common::{bench, numbers};
use device::DType::F32;
use device::ops::*;

const INTERVAL: usize = 6;
const SIGMA_FACTOR: f32 = 2.0;

/// Whether a value is above the mean of those before it by so many standard deviations of a sample.
fn is_spike(value: f64, before: &[f64]) -> bool {
    let n = before.len() as f64;
    let mean = before.iter().sum::<f64>() / n;
    let variance = before.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0);
    value - mean > f64::from(SIGMA_FACTOR) * variance.sqrt()
}

#[test]
fn spikes_of_loss_or_norm_make_no_update_and_what_is_not_finite_is_no_step_to_compare_with() {
    let t = bench(1);
    let control = t.block(&Control { grad_scale: 0.5, ..Control::default() });
    let (loss_sum, history) = (t.empty(&[1], F32), t.put(&[2, INTERVAL], F32, &[0.0; 2 * INTERVAL]));
    let (mut losses, mut norms) = (numbers(1, 24, F32), numbers(2, 24, F32));
    (losses[11], norms[17]) = (90.0, 70.0);
    let mut before: Vec<[f64; 2]> = Vec::new();
    let mut status = Status::default();
    let mut spikes = Vec::new();
    for step in 0..24 {
        let finite = u32::from(step != 8);
        let loss = if step == 9 { f64::NAN } else { losses[step] };
        t.device.upload(&loss_sum, &[2.0 * loss as f32]).unwrap();
        status = Status {
            finite,
            applies: finite,
            grad_norm: norms[step] as f32,
            applied: status.applied + finite,
            ..status
        };
        let block = t.block(&status);
        t.run(SkipStep { loss_sum, history, sigma_factor: SIGMA_FACTOR, control, status: block });
        let known = &before[before.len().saturating_sub(INTERVAL)..];
        let of = |which: usize| known.iter().map(|step| step[which]).collect::<Vec<f64>>();
        let enters = finite == 1 && loss.is_finite();
        let spike = enters
            && known.len() >= INTERVAL / 2
            && (is_spike(loss, &of(0)) || is_spike(f64::from(norms[step] as f32), &of(1)));
        let expected = Status {
            applies: finite - u32::from(spike),
            applied: status.applied - u32::from(spike),
            spikes: status.spikes + u32::from(spike),
            recorded: status.recorded + u32::from(enters),
            ..status
        };
        status = t.get_block(&block);
        assert_eq!(status, expected, "step {step}");
        if enters {
            before.push([loss, f64::from(norms[step] as f32)]);
        }
        spikes.extend(spike.then_some(step));
    }
    assert!(spikes.contains(&11) && spikes.contains(&17), "{spikes:?}");
}

#[test]
fn a_void_step_is_in_no_counter_and_updates_nothing() {
    let t = bench(1);
    let beyond = t.empty(&[1], F32);
    for finite in [0, 1] {
        let before = Status { applied: 3 + finite, skipped: 8 - finite, spikes: 2, recorded: 5, ..Status::default() };
        let status = Status { finite, applies: finite, grad_norm: 1.5, grad_factor: 0.5, ..before };
        for rows in [0.0f32, 7.0] {
            t.device.upload(&beyond, &[rows]).unwrap();
            let block = t.block(&status);
            t.run(VoidStep { beyond, status: block });
            let void = Status { applied: 3, skipped: 7, grad_norm: 1.5, ..before };
            assert_eq!(t.get_block::<Status>(&block), if rows > 0.0 { void } else { status });
        }
    }
}
