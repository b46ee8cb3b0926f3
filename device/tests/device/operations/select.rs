//! Choices between two tensors, against a loop over the values.

use crate::common::{Bench, FLOATS, checked_bench, numbers};
use device::ops::{Condition, Select};
use device::{DType, Tensor};

/// Sizes with and without a whole number of 16 bytes, larger than one task of a host thread, and none.
const SIZES: [usize; 5] = [0, 1, 37, 64, 40_000];

/// A tensor of these bytes.
fn bytes(t: &Bench, values: &[u8]) -> Tensor {
    let words = t.empty_ints(&[values.len().div_ceil(4)]);
    let tensor = Tensor { shape: [values.len()].into(), dtype: DType::U8, ..words };
    t.device.upload(&tensor, values).unwrap();
    tensor
}

/// Some bytes, about half of them 0.
fn mask_of(n: usize) -> Vec<u8> {
    numbers(3, n, DType::F32).iter().map(|x| if *x < 0.0 { 0 } else { 1 + (x * 250.0) as u8 }).collect()
}

/// Three runs: into a third tensor, into `a`, and into `b`. Each returns the values of the result.
fn runs(
    t: &Bench,
    condition: Condition,
    make: &dyn Fn() -> [Tensor; 3],
    get: &dyn Fn(&Tensor) -> Vec<u64>,
) -> [Vec<u64>; 3] {
    [0, 1, 2].map(|place| {
        let [a, b, other] = make();
        let output = [other, a, b][place];
        t.run(Select { condition, a, b, output });
        get(&output)
    })
}

#[test]
fn a_flag_chooses_a_whole_tensor_and_a_mask_each_value_also_in_place_and_nan_keeps_its_bits() {
    let t = checked_bench();
    for dtype in FLOATS {
        for n in SIZES {
            let (mut a, mut b) = (numbers(1, n, dtype), numbers(2, n, dtype));
            a.iter_mut().step_by(5).for_each(|x| *x = f64::NAN);
            b.iter_mut().step_by(7).for_each(|x| *x = f64::INFINITY);
            let make = || [t.put(&[n], dtype, &a), t.put(&[n], dtype, &b), t.empty(&[n], dtype)];
            let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect::<Vec<u64>>();
            let get = |tensor: &Tensor| bits(&t.get(tensor));
            for flag in [0, 1, -3, i32::MIN] {
                let expected = bits(if flag == 0 { &b } else { &a });
                let condition = Condition::Flag(t.ints(&[1], &[flag]));
                assert_eq!(runs(&t, condition, &make, &get), [(); 3].map(|()| expected.clone()), "{dtype} {n} {flag}");
            }
            let mask = mask_of(n);
            let chosen: Vec<f64> = (0..n).map(|i| if mask[i] != 0 { a[i] } else { b[i] }).collect();
            let condition = Condition::Mask(bytes(&t, &mask));
            assert_eq!(runs(&t, condition, &make, &get), [(); 3].map(|()| bits(&chosen)), "{dtype} {n}, masked");
        }
    }
}

#[test]
fn integers_and_bytes_are_chosen_too_and_so_is_a_part_at_an_odd_address() {
    let t = checked_bench();
    let n = 37;
    let (a, b): (Vec<i32>, Vec<i32>) = (0..n).map(|i| (i, -i)).unzip();
    let mask = mask_of(40);
    let chosen =
        |skip: usize| (0..n as usize).map(|i| if mask[skip + i] != 0 { a[i] } else { b[i] }).collect::<Vec<_>>();
    let all = bytes(&t, &mask);
    for skip in [0, 3] {
        let output = t.empty_ints(&[n as usize]);
        let condition = Condition::Mask(all.view(skip, [n as usize]));
        let (a, b) = (t.ints(&[n as usize], &a), t.ints(&[n as usize], &b));
        t.run(Select { condition, a, b, output });
        assert_eq!(t.get_ints(&output), chosen(skip), "from byte {skip}");
    }
    let low = |values: &[i32]| values.iter().map(|x| *x as u8).collect::<Vec<u8>>();
    let (a_bytes, b_bytes, output) = (bytes(&t, &low(&a)), bytes(&t, &low(&b)), bytes(&t, &[9; 37]));
    t.run(Select { condition: Condition::Mask(all.view(0, [37])), a: a_bytes, b: b_bytes, output });
    assert_eq!(t.device.download::<u8>(&output).unwrap(), low(&chosen(0)));
}

#[test]
fn a_replay_reads_the_flag_anew() {
    let t = checked_bench();
    let (a, b, output) =
        (t.put(&[64], DType::F32, &[1.0; 64]), t.put(&[64], DType::F32, &[2.0; 64]), t.empty(&[64], DType::F32));
    let flag = t.ints(&[1], &[1]);
    t.prepare(Select { condition: Condition::Flag(flag), a, b, output });
    t.stream.begin_capture().unwrap();
    t.run(Select { condition: Condition::Flag(flag), a, b, output });
    let graph = t.stream.end_capture("choose").unwrap();
    for (value, expected) in [(1, 1.0), (0, 2.0), (5, 1.0)] {
        t.device.upload(&flag, &[value]).unwrap();
        graph.launch(&t.stream).unwrap();
        t.stream.synchronize().unwrap();
        assert_eq!(t.get(&output), [expected; 64]);
    }
}

#[test]
fn a_choice_between_tensors_that_do_not_fit_is_refused_with_their_names() {
    let t = checked_bench();
    let [a, b, output] = [(); 3].map(|()| t.empty(&[8], DType::F32));
    let half = t.empty(&[8], DType::Bf16);
    let (flag, flags, mask) = (t.ints(&[1], &[1]), t.ints(&[8], &[1; 8]), bytes(&t, &[1; 8]));
    let (yes, good) = (Condition::Flag(flag), Select { condition: Condition::Flag(flag), a, b, output });
    for (op, words) in [
        (Select { b: half, ..good.clone() }, "`b` is bf16, needs f32"),
        (Select { output: output.narrow(0, 4), ..good.clone() }, "`output` of shape (4) has 4 elements, needs 8"),
        (Select { condition: Condition::Flag(flags), ..good.clone() }, "`flag` is (8) i32, needs one i32"),
        (Select { condition: Condition::Flag(mask.narrow(0, 1)), ..good.clone() }, "`flag` is (1) u8, needs one i32"),
        (Select { condition: Condition::Mask(flags), ..good.clone() }, "`mask` is i32, needs u8"),
        (Select { condition: Condition::Mask(mask.narrow(0, 7)), ..good.clone() }, "`mask` of shape (7)"),
        (
            Select { a: a.narrow(0, 4), b: b.narrow(0, 4), output: a.narrow(2, 4), ..good.clone() },
            "`output` overlaps with `a`",
        ),
        (Select { condition: yes, a: flag, b: flag, output: flag }, "`output` overlaps with `condition`"),
    ] {
        let message = t.refusal(op);
        assert!(message.starts_with("select: ") && message.contains(words), "`{words}` is missing from: {message}");
    }
}
