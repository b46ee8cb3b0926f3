//! The device's rates of matrix products, copies and attention, and the host's time for a launch.

use std::time::Instant;

use device::ops::{Attention, Copy, Epilogue, Fill, Gemm, Mask, Scores};
use device::{DType, Graph, Op, Result};

use device::trials::Workbench;

/// A measured rate.
pub(super) struct Rate {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) unit: Unit,
}

common::choice! {
    /// The unit of a rate.
    pub enum Unit {
        Tflops = "TFLOP/s",
        GigabytesPerSecond = "GB/s",
        Microseconds = "us",
    }
}

/// Operations in a timed graph.
pub(super) const REPEATS: usize = 20;

/// Measures all rates of a GPU.
pub(super) fn measure(bench: &mut Workbench) -> Result<Vec<Rate>> {
    let mut rates = Vec::new();
    let size = 8192;
    let (a, b) = (bench.input([size, size], DType::Bf16)?, bench.scaled([size, size], DType::Bf16, 0.01)?);
    let out = bench.output([size, size], DType::Bf16)?;
    let seconds = seconds(bench, &Gemm::linear(a, b, out, Epilogue::None).into())?;
    let flops = 2.0 * (size as f64).powi(3);
    rates.push(Rate { name: format!("gemm bf16 {size}^3"), value: flops / seconds / 1e12, unit: Unit::Tflops });

    let (from, to) = (bench.input([1 << 28], DType::F32)?, bench.output([1 << 28], DType::F32)?);
    let seconds_copy = self::seconds(bench, &Copy { input: from, output: to }.into())?;
    let moved = 2.0 * from.bytes() as f64;
    rates.push(Rate {
        name: "copy 1 GiB, read + write".into(),
        value: moved / seconds_copy / 1e9,
        unit: Unit::GigabytesPerSecond,
    });

    let (batch, seq, heads, head_dim) = (8, 2048, 16, 128);
    let flops = 2.0 * (batch * heads * seq * seq * head_dim) as f64;
    let passes = [("forward", flops), ("backward", 2.5 * flops)];
    for ((pass, flops), op) in passes.into_iter().zip(attention(bench, [batch, seq, heads, head_dim])?) {
        let name = format!("attention {pass}, b{batch} h{heads} s{seq} d{head_dim}");
        rates.push(Rate { name, value: flops / self::seconds(bench, &op)? / 1e12, unit: Unit::Tflops });
    }

    let small: Op = Fill { output: bench.output([1], DType::F32)?, value: 1.0 }.into();
    let value = host_us(bench, || bench.stream.submit(small.clone()))?;
    rates.push(Rate { name: "host time to launch a kernel".into(), value, unit: Unit::Microseconds });
    for kernels in [1, REPEATS] {
        let graph = graph_of(bench, &small, kernels)?;
        let value = host_us(bench, || graph.launch(&bench.stream))?;
        rates.push(Rate { name: format!("host time to launch a graph of {kernels}"), value, unit: Unit::Microseconds });
    }
    Ok(rates)
}

/// Forward and backward of causal attention in bf16, for `[batch, tokens, heads, channels]`.
pub(super) fn attention(bench: &mut Workbench, [batch, seq, heads, head_dim]: [usize; 4]) -> Result<[Op; 2]> {
    let width = heads * head_dim;
    let qkv = bench.input([batch, seq, 3 * width], DType::Bf16)?;
    let output = bench.output([batch, seq, width], DType::Bf16)?;
    let stats = bench.output([batch, heads, seq], DType::F32)?;
    let grad_output = bench.input([batch, seq, width], DType::Bf16)?;
    let grad_qkv = bench.output(qkv.shape, DType::Bf16)?;
    let (kv_heads, scores, mask) = (heads, Scores::default(), Mask::CAUSAL);
    let forward =
        Attention { qkv, keys: None, output, stats, heads, kv_heads, scores, mask, documents: None, dropout: None };
    let backward = forward.backward(grad_output, grad_qkv).into();
    Ok([forward.into(), backward])
}

/// The host's time to submit to an idle GPU, microseconds: the median of 50.
fn host_us(bench: &Workbench, submit: impl Fn() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..50 {
        bench.device.synchronize()?;
        let started = Instant::now();
        submit()?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// A graph of an operation, `times` times in a row.
pub(super) fn graph_of(bench: &Workbench, op: &Op, times: usize) -> Result<Graph> {
    bench.prepare(op)?;
    bench.stream.submit(op.clone())?;
    bench.stream.begin_capture()?;
    for _ in 0..times {
        bench.stream.submit(op.clone())?;
    }
    bench.stream.end_capture("timed")
}

/// The time of an operation, seconds: the median of five graphs with [`REPEATS`] of it each.
pub(super) fn seconds(bench: &Workbench, op: &Op) -> Result<f64> {
    let graph = graph_of(bench, op, REPEATS)?;
    let mut times = Vec::new();
    for _ in 0..6 {
        bench.device.synchronize()?;
        let started = Instant::now();
        graph.launch(&bench.stream)?;
        bench.device.synchronize()?;
        times.push(started.elapsed().as_secs_f64() / REPEATS as f64);
    }
    times.remove(0); // the first run also warms the GPU up
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
