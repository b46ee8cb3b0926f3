//! First values against the function of the whole parameter's elements, to the bit.

use crate::common::{bench, checked_bench};
use device::DType::{Bf16, F32};
use device::bf16;
use device::ops::{Distribution, FirstValues, split_master};
use device::philox;

const SEED: u64 = 0x1234_5678_9abc_def0;
const STREAM: u64 = 0xfedc_ba98_7654_3210;

/// The number of an element of the whole, as the documentation defines it.
fn number(distribution: Distribution, element: u64) -> f32 {
    match distribution {
        Distribution::Normal(std) => std * philox::normal(SEED, STREAM, element),
        Distribution::Constant(value) => value,
        Distribution::Uniform(bound) => bound * (2.0 * philox::uniform(SEED, STREAM, element) - 1.0),
    }
}

#[test]
fn first_values_have_the_same_bits_on_every_device_and_in_every_box() {
    let t = checked_bench();
    // A whole row after row, columns of a wider whole, and elements beyond 32 bits.
    let boxes = [(200, 500, 500, 0), (7, 33, 100, 12), (1, 1001, 1001, 17), (64, 64, 96, (1 << 32) - 3000)];
    for distribution in
        [Distribution::Normal(0.02), Distribution::Uniform(0.125), Distribution::Constant(1.0 + 1.0 / 256.0)]
    {
        for (rows, row, pitch, first) in boxes {
            let expected: Vec<f32> =
                (0..rows * row).map(|at| number(distribution, first + (at / row * pitch + at % row) as u64)).collect();
            let op = |output, rounded| FirstValues {
                output,
                rounded,
                distribution,
                seed: SEED,
                stream: STREAM,
                first,
                row,
                pitch,
            };
            let (values, rounded, alone) =
                (t.empty(&[rows, row], F32), t.empty(&[rows, row], Bf16), t.empty(&[rows, row], Bf16));
            t.run(op(values, Some(rounded)));
            t.run(op(alone, None));
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let place = format!("{distribution:?}, {rows} rows of {row} from {first}");
            assert!(bits(&t.device.download::<f32>(&values).unwrap()) == bits(&expected), "{place}");
            let near: Vec<bf16> = expected.iter().map(|&x| bf16::from_f32(x)).collect();
            for tensor in [rounded, alone] {
                assert!(t.device.download::<bf16>(&tensor).unwrap() == near, "{place}, rounded");
            }
            let (remainders, weights) = (t.bits(&vec![0; rows * row]), t.empty(&[rows, row], Bf16));
            t.run(op(remainders, Some(weights)));
            let halves = t.device.download::<bf16>(&weights).unwrap().into_iter();
            let halves = halves.zip(t.device.download::<u16>(&remainders).unwrap());
            assert!(halves.eq(expected.iter().map(|&x| split_master(x))), "{place}, remainders");
        }
    }
}

#[test]
fn a_row_that_is_longer_than_the_way_to_the_next_is_refused() {
    let t = bench(1);
    let output = t.empty(&[4, 8], F32);
    let distribution = Distribution::Normal(1.0);
    let refused = |row, pitch| {
        t.refusal(FirstValues { output, rounded: None, distribution, seed: 1, stream: 1, first: 0, row, pitch })
    };
    assert!(refused(8, 7).contains("a row has 8 elements, and the next begins after 7"), "{}", refused(8, 7));
    assert!(refused(0, 7).contains("a row has 0 elements"));
}
