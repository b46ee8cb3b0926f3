//! Dropout against its documented function.

use crate::common::{Bench, FLOATS, assert_close, bench, numbers};
use device::DType::F32;
use device::ops::*;
use device::philox::philox4x32_10;
use proptest::prelude::*;

/// A dropout as its documentation defines it.
#[derive(Clone, Copy)]
pub struct Place {
    pub rate: f32,
    pub seed: u64,
    pub layer: u16,
    pub site: u16,
    pub first_sample: u64,
    pub step: u32,
}

pub const PLACE: Place = Place { rate: 0.3, seed: 0x1234_5678_9abc_def0, layer: 3, site: 2, first_sample: 40, step: 7 };

impl Place {
    /// The factor of a value: 0, or one over the share that is kept.
    pub fn factor(&self, sample: usize, token: usize, channel: usize) -> f64 {
        let place = u32::from(self.layer) << 16 | u32::from(self.site);
        let key = [self.seed as u32, (self.seed >> 32) as u32 ^ place];
        let sample = self.first_sample as u32 + sample as u32;
        let words = philox4x32_10([channel as u32 / 4, token as u32, sample, self.step], key);
        let kept = f64::from(words[channel % 4]) >= (f64::from(self.rate) * 4294967296.0).floor();
        if kept { 1.0 / (1.0 - f64::from(self.rate)) } else { 0.0 }
    }

    pub fn on(&self, t: &Bench) -> DropoutSite {
        let record = SampleRecord { first_sample: self.first_sample, step: self.step, reserved: 0 };
        let record = t.block(&record);
        DropoutSite {
            rate: self.rate,
            seed: self.seed,
            layer: self.layer,
            site: self.site,
            record,
            part: DropoutPart::default(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn dropout_is_the_documented_function(
        batch in 1..4usize, seq in 1..6usize, channels in 1..40usize, in_place: bool, pick in 0..2usize,
    ) {
        let (t, dtype) = (bench(2), FLOATS[pick]);
        let shape = [batch, seq, channels];
        let x = numbers(1, batch * seq * channels, dtype);
        let input = t.put(&shape, dtype, &x);
        let output = if in_place { input } else { t.empty(&shape, dtype) };
        t.run(Dropout { input, output, site: PLACE.on(&t) });
        let truth: Vec<f64> = (0..x.len())
            .map(|i| x[i] * PLACE.factor(i / channels / seq, i / channels % seq, i % channels))
            .collect();
        assert_close("dropped", dtype, &t.get(&output), &truth);

        let input = t.put(&shape, dtype, &x);
        let output = if in_place { input } else { t.empty(&shape, dtype) };
        t.run(ReluDropout { input, output, site: PLACE.on(&t) });
        let truth: Vec<f64> = truth.iter().map(|y| y.max(0.0)).collect();
        assert_close("relu, then dropped", dtype, &t.get(&output), &truth);

        let dy = numbers(2, x.len(), dtype);
        let (grad_output, grad_input) = (t.put(&shape, dtype, &dy), t.empty(&shape, dtype));
        let scale = PLACE.on(&t).keep_scale();
        t.run(ReluDropoutBackward { output, grad_output, grad_input, scale });
        let truth: Vec<f64> = (0..x.len())
            .map(|i| match x[i] > 0.0 {
                true => dy[i] * PLACE.factor(i / channels / seq, i / channels % seq, i % channels),
                false => 0.0,
            })
            .collect();
        assert_close("gradient through both", dtype, &t.get(&grad_input), &truth);
    }
}

#[test]
fn relu_with_dropout_lets_nan_through() {
    let t = bench(1);
    let input = t.put(&[1, 1, 64], F32, &[f64::NAN; 64]);
    let output = t.empty(&[1, 1, 64], F32);
    t.run(ReluDropout { input, output, site: PLACE.on(&t) });
    assert!(t.get(&output).iter().all(|y| y.is_nan()));
}

fn dropped(t: &Bench, place: Place, batch: usize) -> Vec<f64> {
    let ones = t.put(&[batch, 8, 64], F32, &vec![1.0; batch * 8 * 64]);
    let output = t.empty(&[batch, 8, 64], F32);
    t.run(Dropout { input: ones, output, site: place.on(t) });
    t.get(&output)
}

#[test]
fn a_mask_follows_the_global_sample_and_every_part_of_its_place() {
    let t = bench(1);
    let four = dropped(&t, PLACE, 4);
    let later = Place { first_sample: PLACE.first_sample + 2, ..PLACE };
    assert_eq!(four[..1024], dropped(&t, PLACE, 2));
    assert_eq!(four[1024..], dropped(&t, later, 2));
    for other in [
        Place { step: 8, ..PLACE },
        Place { layer: 4, ..PLACE },
        Place { site: 1, ..PLACE },
        Place { seed: PLACE.seed + 1, ..PLACE },
        Place { seed: PLACE.seed ^ 1 << 40, ..PLACE },
        later,
    ] {
        assert_ne!(dropped(&t, other, 4), four);
    }
    let kept = four.iter().filter(|x| **x > 0.0).count() as f64 / four.len() as f64;
    assert!((kept - 0.7).abs() < 0.03, "{kept} were kept at rate 0.3");
}

#[test]
fn a_sample_record_is_the_control_blocks_step_and_the_offset_sample() {
    let t = bench(1);
    let control = t.block(&Control::default());
    let record = t.block(&SampleRecord::default());
    t.run(WriteControl { control, value: Control { step: 9, first_sample: 1 << 33, ..Control::default() } });
    t.run(WriteSampleRecord { control, offset: 5, record });
    let expected = SampleRecord { first_sample: (1 << 33) + 5, step: 9, reserved: 0 };
    assert_eq!(t.get_block::<SampleRecord>(&record), expected);
}
