//! Rates for the file about a GPU: each operation alone, at the clock that the GPU keeps.

use std::time::Instant;

use device::ops::{Add, Epilogue, Gemm};
use device::{DType, Op, Result};

use super::rates::{REPEATS, attention, graph_of};
use crate::predict::{AttentionRates, Card, Products};
use device::trials::Workbench;
use device::trials::with_one_scale;

/// Seconds that an operation runs until the GPU's clock has settled, and again during the timing.
const SETTLE: f64 = 0.7;

/// The rates in a GPU's file, with each operation alone.
pub(super) struct CardRates {
    pub(super) bf16_tflops: f64,
    pub(super) f32_tflops: f64,
    /// `None` without 8-bit products.
    pub(super) fp8_tflops: Option<f64>,
    /// Forward and backward in TFLOP/s, with heads of 64 and of 128 channels.
    pub(super) attention: [[f64; 2]; 2],
    pub(super) gb_per_s: f64,
}

impl CardRates {
    pub(super) fn put_into(&self, card: &mut Card) {
        card.products = Products {
            bf16_tflops: self.bf16_tflops,
            tf32_tflops: self.bf16_tflops / 2.0,
            f32_tflops: self.f32_tflops,
            fp8_tflops: self.fp8_tflops.unwrap_or(self.bf16_tflops),
        };
        let [narrow, wide] = self.attention;
        card.attention = AttentionRates {
            head_channels: vec![64.0, 128.0],
            forward_tflops: vec![narrow[0], wide[0]],
            backward_tflops: vec![narrow[1], wide[1]],
            ..card.attention
        };
        card.memory.gb_per_s = self.gb_per_s;
    }
}

/// Measures the rates for a GPU's file.
pub(super) fn measure(bench: &mut Workbench, eight_bit: bool) -> Result<CardRates> {
    let size = 8192;
    let cube = 2.0 * (size as f64).powi(3) / 1e12;
    let product = |bench: &mut Workbench, dtype| -> Result<f64> {
        let (a, b) = (bench.input([size, size], dtype)?, bench.scaled([size, size], dtype, 0.01)?);
        let out = bench.output([size, size], dtype)?;
        Ok(cube / settled_seconds(bench, &Gemm::linear(a, b, out, Epilogue::None).into())?)
    };
    let (bf16_tflops, f32_tflops) = (product(bench, DType::Bf16)?, product(bench, DType::F32)?);
    let fp8_tflops = match eight_bit {
        true => {
            let [a, b] = [(); 2].map(|()| with_one_scale(bench, [size, size]));
            let out = bench.output([size, size], DType::Bf16)?;
            Some(cube / settled_seconds(bench, &Gemm::fp8(a?, b?, out, true).into())?)
        }
        false => None,
    };
    let attention = [attention_tflops(bench, [8, 1024, 12, 64])?, attention_tflops(bench, [8, 2048, 16, 128])?];
    let wide = [1usize << 28];
    let (a, b, output) =
        (bench.output(wide, DType::Bf16)?, bench.output(wide, DType::Bf16)?, bench.output(wide, DType::Bf16)?);
    let gb_per_s = 3.0 * a.bytes() as f64 / settled_seconds(bench, &Add { a, b, output }.into())? / 1e9;
    Ok(CardRates { bf16_tflops, f32_tflops, fp8_tflops, attention, gb_per_s })
}

/// Forward and backward of causal attention, TFLOP/s; see [`attention`].
fn attention_tflops(bench: &mut Workbench, sizes: [usize; 4]) -> Result<[f64; 2]> {
    let [forward, backward] = attention(bench, sizes)?;
    let rate = |op: &Op| -> Result<f64> { Ok(op.flops() / settled_seconds(bench, op)? / 1e12) };
    Ok([rate(&forward)?, rate(&backward)?])
}

/// Seconds of an operation at the clock that the GPU keeps under this load: it runs for a while before it is timed.
fn settled_seconds(bench: &Workbench, op: &Op) -> Result<f64> {
    let graph = graph_of(bench, op, REPEATS)?;
    let repeat = |seconds: f64| -> Result<f64> {
        let (started, mut launches) = (Instant::now(), 0);
        while started.elapsed().as_secs_f64() < seconds {
            graph.launch(&bench.stream)?;
            bench.device.synchronize()?;
            launches += REPEATS;
        }
        Ok(started.elapsed().as_secs_f64() / f64::from(launches as u32))
    };
    repeat(SETTLE)?;
    repeat(SETTLE)
}
