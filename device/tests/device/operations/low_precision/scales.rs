//! Delayed scales of 8-bit copies against a model in f64, on the host or with `TEST_DEVICE=cuda` on a GPU.

use crate::common::{Bench, checked_bench, numbers, rounded};
use device::DType::F32;
use device::Tensor;
use device::ops::*;

/// The rule in f64: `scale = amax * 2^margin / largest`.
struct Model {
    history: Vec<Vec<f64>>,
    length: usize,
    scales: Vec<f64>,
}

impl Model {
    fn step(&mut self, amax: &[f64], largest: &[f64], margin: i32) {
        for (i, amax) in amax.iter().enumerate() {
            if *amax > 0.0 && amax.is_finite() {
                self.history[i].insert(0, *amax);
                self.history[i].truncate(self.length);
            }
            let peak = self.history[i].iter().copied().fold(0.0, f64::max);
            if peak > 0.0 {
                self.scales[i] = peak * 2f64.powi(margin) / largest[i];
            }
        }
    }
}

fn assert_scales(t: &Bench, scale: &Tensor, truth: &[f64], what: &str) {
    for (i, (x, truth)) in t.get(scale).into_iter().zip(truth).enumerate() {
        assert!(
            (x - truth).abs() <= 1e-7 * truth || x.is_nan() && truth.is_nan(),
            "{what}: scale {i} is {x}, not {truth}"
        );
    }
}

#[test]
fn delayed_scales_follow_the_largest_magnitude_of_the_last_steps() {
    for (length, margin) in [(1, 0), (3, 0), (5, 2), (300, -1), (1024, 0)] {
        let t = checked_bench();
        let n = 37;
        let largest: Vec<f64> = (0..n).map(|i| if i % 2 == 0 { 448.0 } else { 57344.0 }).collect();
        let (largest_t, scale) = (t.put(&[n], F32, &largest), t.put(&[n], F32, &vec![0.25; n]));
        let history = t.put(&[n, length], F32, &vec![0.0; length * n]);
        let mut model = Model { history: vec![Vec::new(); n], length, scales: vec![0.25; n] };
        for step in 0..12 {
            let mut amax: Vec<f64> =
                numbers(step + 1, n, F32).into_iter().map(|x| rounded(100.0 * x.abs(), F32)).collect();
            // Magnitudes that say nothing: at the first step, and among others.
            amax[0] = 0.0;
            amax[1] = [f64::NAN, f64::INFINITY][step as usize % 2];
            if step % 3 == 0 {
                (amax[2], amax[3]) = (f64::NAN, 0.0);
            }
            let amax_t = t.put(&[n], F32, &amax);
            t.run(UpdateScales { amax: amax_t, history, largest: largest_t, scale, margin, default: 1.0 });
            model.step(&amax, &largest, margin);
            assert_eq!(t.get(&amax_t), vec![0.0; n], "magnitudes are set to 0");
            assert_scales(&t, &scale, &model.scales, &format!("step {step} of a history of {length}"));
            let truth: Vec<f64> =
                (0..length * n).map(|at| model.history[at / length].get(at % length).copied().unwrap_or(0.0)).collect();
            assert_eq!(t.get(&history), truth, "history of {length} after step {step}");
        }
        assert_eq!(model.scales[..2], [0.25; 2], "nothing was said of these");
    }
}

#[test]
fn a_scale_without_history_stays_if_it_is_a_number_and_becomes_the_default_otherwise() {
    let t = checked_bench();
    let of = |values: &[f64]| t.put(&[5], F32, values);
    let (nan, infinity) = (f64::NAN, f64::INFINITY);
    for default in [0.0, 1.0] {
        let (largest, history) = (of(&[448.0; 5]), t.put(&[5, 2], F32, &[0.0; 10]));
        let scale = of(&[nan, infinity, nan, 0.5, 0.0]);
        let amax = of(&[nan, infinity, 3.0, 0.0, 0.0]);
        t.run(UpdateScales { amax, history, largest, scale, margin: 0, default });
        let default = f64::from(default);
        assert_scales(&t, &scale, &[default, default, 3.0 / 448.0, 0.5, default], "after a step that was not finite");
    }
}

#[test]
fn an_old_peak_leaves_a_long_history_at_its_end() {
    let (t, length) = (checked_bench(), 261);
    let (largest, scale) = (t.put(&[1], F32, &[448.0]), t.put(&[1], F32, &[1.0]));
    let mut start = vec![1.0; length];
    start[length - 2] = 50.0;
    let history = t.put(&[1, length], F32, &start);
    for (step, peak) in [(0, 50.0), (1, 2.0)] {
        let amax = t.put(&[1], F32, &[2.0]);
        t.run(UpdateScales { amax, history, largest, scale, margin: 0, default: 1.0 });
        assert_scales(&t, &scale, &[peak / 448.0], &format!("step {step}"));
    }
}
