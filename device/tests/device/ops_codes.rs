//! Values of weights that lie as codes, to the bit.

use crate::common::checked_bench;
use device::DType::{Bf16, F32, U8};
use device::bf16;
use device::ops::{CodeForm, CodedValues};

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
