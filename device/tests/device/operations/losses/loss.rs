//! The cross-entropy and the z-loss against naive f64 references and finite differences, over odd shapes.

use crate::common::{Bench, FLOATS, assert_close, bench, finite_differences, numbers};
use crate::operations::functions::{capped, dimension};
use device::DType::{self, F32};
use device::ops::*;
use proptest::prelude::*;

fn check_cross_entropy(t: &Bench, rows: usize, vocab: usize, padding: usize, soft_cap: Option<f32>, dtype: DType) {
    let (columns, multiplier, scale) = (vocab + padding, 0.125, 0.25);
    let logits: Vec<f64> = numbers(1, rows * columns, dtype).into_iter().map(|x| x * 4.0).collect();
    let targets: Vec<i32> = (0..rows).map(|r| if r % 5 == 4 { -1 } else { (r * 7 % vocab) as i32 }).collect();
    // Cross-entropy and z-loss of a row.
    let of_row = |row: usize, logits: &[f64]| match usize::try_from(targets[row]) {
        Ok(target) => {
            let logits = capped(logits, soft_cap);
            let log_sum = logits[..vocab].iter().map(|x| x.exp()).sum::<f64>().ln();
            [log_sum - logits[target], f64::from(multiplier) * log_sum * log_sum]
        }
        Err(_) => [0.0; 2],
    };
    let of_rows = |loss: &dyn Fn(usize, &[f64]) -> Vec<f64>| -> Vec<f64> {
        logits.chunks(columns).enumerate().flat_map(|(row, logits)| loss(row, logits)).collect()
    };
    for (trains, adds) in [(false, false), (false, true), (true, false), (true, true)] {
        let (targets, losses) = (t.ints(&[rows], &targets), t.empty(&[rows], F32));
        let (logits_t, z_losses) = (t.put(&[rows, columns], dtype, &logits), t.put(&[rows], F32, &vec![7.0; rows]));
        let z_loss = adds.then_some(ZLoss { multiplier, losses: z_losses });
        let control = trains.then(|| t.block(&Control { grad_scale: scale, ..Control::default() }));
        t.run(CrossEntropy { logits: logits_t, targets, losses, vocab, soft_cap, z_loss, weights: None, control });
        let what = format!("training {trains}, z-loss {adds}");
        assert_close(&what, F32, &t.get(&losses), &of_rows(&|row, logits| vec![of_row(row, logits)[0]]));
        let z_truth = if adds { of_rows(&|row, logits| vec![of_row(row, logits)[1]]) } else { vec![7.0; rows] };
        assert_close(&what, F32, &t.get(&z_losses), &z_truth);
        let sum = |row, logits: &[f64]| of_row(row, logits)[..=usize::from(adds)].iter().sum();
        let gradient =
            |row, logits: &[f64]| finite_differences(logits, &[f64::from(scale)], |logits| vec![sum(row, logits)]);
        match trains {
            true => assert_close(&what, dtype, &t.get(&logits_t), &of_rows(&gradient)),
            false => assert_eq!(t.get(&logits_t), logits, "logits, left alone"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cross_entropy_agrees_with_f64_and_ignores_padding_and_negative_targets(
        rows in dimension(), vocab in dimension(), padding in 0..5usize,
        soft_cap in prop::option::of(prop_oneof![Just(1.5f32), Just(30.0)]), pick in 0..2usize,
    ) {
        check_cross_entropy(&bench(1), rows, vocab, padding, soft_cap, FLOATS[pick]);
    }
}
