//! Weights that lie as codes, and back, to the bit.

use crate::common::{Bench, checked_bench};
use device::DType::{Bf16, F32, U8};
use device::ops::{CodeForm, CodedValues, CodesOfValues};
use device::{Tensor, bf16};

/// The values of the codes as bitsandbytes publishes them.
const VALUES: [f64; 16] = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
];

/// The values of these bytes in blocks with these scales, as the documentation defines them.
fn expected(form: CodeForm, bytes: &[u8], scales: &[bf16]) -> Vec<f32> {
    let codes: Vec<f32> = match form {
        CodeForm::Nf4 => bytes.iter().flat_map(|b| [b / 16, b % 16]).map(|c| VALUES[usize::from(c)] as f32).collect(),
        CodeForm::Int8 => bytes.iter().map(|byte| f32::from(*byte as i8)).collect(),
    };
    let scale = |at: usize| match form {
        CodeForm::Nf4 => scales[at / 64].to_f32(),
        CodeForm::Int8 => scales[at / 64].to_f32() * (1.0 / 127.0),
    };
    codes.iter().enumerate().map(|(at, code)| code * scale(at)).collect()
}

#[test]
fn values_are_those_of_their_codes_times_the_scale_of_their_block() {
    let t = checked_bench();
    // Every byte.
    let bytes: Vec<u8> = (0..=255u8).flat_map(|byte| [byte, byte ^ 0x5a]).collect();
    for form in [CodeForm::Nf4, CodeForm::Int8] {
        let blocks = bytes.len() / form.bytes(64);
        let scales: Vec<bf16> = (0..blocks).map(|at| bf16::from_f32(0.003 * (at * at) as f32)).collect();
        let (codes, scale) = (t.put_bytes(&[bytes.len()], U8, &bytes), t.empty(&[blocks], Bf16));
        t.device.upload(&scale, &scales).unwrap();
        let expected = expected(form, &bytes, &scales);
        let (exact, rounded) = (t.empty(&[blocks, 64], F32), t.empty(&[blocks, 64], Bf16));
        for output in [exact, rounded] {
            t.run(CodedValues { form, codes, scales: scale, output });
        }
        assert!(t.device.download::<f32>(&exact).unwrap() == expected, "{form:?}");
        let near: Vec<bf16> = expected.iter().map(|x| bf16::from_f32(*x)).collect();
        assert!(t.device.download::<bf16>(&rounded).unwrap() == near, "{form:?}");

        let refused = |output| t.refusal(CodedValues { form, codes, scales: scale, output });
        assert!(refused(t.empty(&[96], F32)).contains("96 values are no multiple of 64"));
        assert!(refused(t.empty(&[blocks, 128], F32)).contains("`codes`"));
    }
}

/// The codes and scales of a tensor's values.
fn codes_of(t: &Bench, form: CodeForm, input: Tensor) -> (Vec<u8>, Vec<bf16>) {
    let (bytes, blocks) = (form.bytes(input.elements()), input.elements() / 64);
    let (codes, scales) = (t.put_bytes(&[bytes], U8, &vec![0x5a; bytes]), t.empty(&[blocks], Bf16));
    t.run(CodesOfValues { form, input, codes, scales });
    (t.device.download(&codes).unwrap(), t.device.download(&scales).unwrap())
}

#[test]
fn codes_and_scales_are_those_of_bitsandbytes() {
    // What quantize_4bit of bitsandbytes 0.50.2 makes of these values: blocks of 64, nf4, no statistics compressed.
    let values: Vec<f64> = (0..128).map(|at| f64::from(at * 37 % 101 - 50) / 64.0).collect();
    let expected = "04c16e29f3b05d17e29f3c05d18e2af4c16e18e3b05d17e29f3b05d18e2af4c16d18e3b04c17e29f3b05d17e2af4c06d18e2a04c16e29f3b05d17e29f3c05d18";
    let t = checked_bench();
    for dtype in [F32, Bf16] {
        let (codes, scales) = codes_of(&t, CodeForm::Nf4, t.put(&[128], dtype, &values));
        let hex: String = codes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((hex.as_str(), &scales[..]), (expected, &[bf16::from_f32(50.0 / 64.0); 2][..]));
    }
}

#[test]
fn codes_of_the_values_of_codes_are_the_same_in_every_type() {
    let t = checked_bench();
    // The first block is 0.
    let values: Vec<f64> =
        (0..640).map(|at| (f64::from(at * 7919 % 1009) / 500.0 - 1.0) * f64::from(at / 64)).collect();
    for form in [CodeForm::Nf4, CodeForm::Int8] {
        let (codes, scales) = codes_of(&t, form, t.put(&[10, 64], F32, &values));
        let near = expected(form, &codes, &scales);
        assert_eq!(near[..64], [0.0; 64]);
        let near: Vec<f64> = near.iter().map(|x| f64::from(*x)).collect();
        for dtype in [F32, Bf16] {
            assert!(codes_of(&t, form, t.put(&[10, 64], dtype, &near)) == (codes.clone(), scales.clone()), "{form:?}");
        }
        for (at, (value, near)) in values.iter().zip(near).enumerate().filter(|_| form == CodeForm::Int8) {
            // Half a code, and the rounding to bf16.
            let most = f64::from(scales[at / 64].to_f32()) * (0.5 / 127.0 + 1.0 / 256.0);
            assert!((value - near).abs() <= most, "{value} as {near}");
        }
    }
}

#[test]
fn codes_of_values_at_the_edges_of_f32_are_in_their_range() {
    let t = checked_bench();
    let (least, nan, infinite) = (f64::from(f32::from_bits(1 << 16)), f64::NAN, f64::INFINITY);
    for edges in [[least, -least, 0.0, nan], [infinite, -infinite, 1.0, nan]] {
        let values: Vec<f64> = edges.into_iter().cycle().take(64).collect();
        let largest = bf16::from_f32(edges[0] as f32);
        // The inverse of the smallest number is infinite, that of infinity 0. What is no number compares as the
        // smallest.
        let (nf4, int8) = match edges[0].is_finite() {
            true => ([0xf0, 0x00], [127, 129, 0, 0]),
            false => ([0x00, 0x70], [0, 0, 0, 0]),
        };
        let input = t.put(&[64], F32, &values);
        assert_eq!(codes_of(&t, CodeForm::Nf4, input), (nf4.repeat(16), vec![largest]));
        assert_eq!(codes_of(&t, CodeForm::Int8, input), (int8.repeat(16), vec![largest]));
    }
}
