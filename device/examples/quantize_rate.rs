//! How fast 8-bit copies are made, beside a plain copy: the bytes that must move, per second.
//!
//!     cargo run --release -p graph-manager-device --example quantize_rate
//!
//! Each operation is captured many times into one graph over several sets of tensors, so that nothing is found in a cache
//! and the host adds no time.

use std::time::Instant;

use device::cuda::CudaOptions;
use device::ops::{ActivationKind, Copy, Fp8Matrix, Gate, Quantize, QuantizeSource, Scale};
use device::{Area, DType, Device, Error, Op, Result, Stream, Tensor, bf16};

/// Sets of tensors that take turns.
const SETS: usize = 4;
/// Operations in a graph, and measured launches of it.
const RUNS: usize = 24;
const LAUNCHES: usize = 5;

struct Bench {
    device: Device,
    stream: Stream,
    areas: Vec<Area>,
}

impl Bench {
    fn tensor(&mut self, shape: [usize; 2], dtype: DType) -> Result<Tensor> {
        self.device.allocate_tensor(&mut self.areas, "tensor", shape, dtype)
    }

    /// Evenly spread over [-2, 2).
    fn random(&mut self, shape: [usize; 2]) -> Result<Tensor> {
        let (tensor, mut state) = (self.tensor(shape, DType::Bf16)?, 1u32);
        let values: Vec<bf16> = (0..tensor.elements())
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                bf16::from_f32((state >> 8) as f32 / (1 << 22) as f32 - 2.0)
            })
            .collect();
        self.device.upload(&tensor, &values)?;
        Ok(tensor)
    }

    fn ones(&mut self, count: usize) -> Result<Tensor> {
        let tensor = self.tensor([1, count], DType::F32)?;
        self.device.upload(&tensor, &vec![1.0f32; count])?;
        Ok(tensor)
    }

    /// Seconds of one operation: the fastest of several launches.
    fn seconds(&self, ops: &[Op]) -> Result<f64> {
        self.device.begin_trace();
        ops.iter().try_for_each(|op| self.stream.submit(op.clone()))?;
        self.device.end_trace();
        ops.iter().try_for_each(|op| self.stream.submit(op.clone()))?;
        self.stream.begin_capture()?;
        ops.iter().cycle().take(RUNS).try_for_each(|op| self.stream.submit(op.clone()))?;
        let graph = self.stream.end_capture("rate")?;
        graph.launch(&self.stream)?;
        let mut best = f64::INFINITY;
        for _ in 0..LAUNCHES {
            self.device.synchronize()?;
            let start = Instant::now();
            graph.launch(&self.stream)?;
            self.device.synchronize()?;
            best = best.min(start.elapsed().as_secs_f64() / RUNS as f64);
        }
        Ok(best)
    }
}

/// How a copy is scaled.
#[derive(Clone, Copy)]
enum Scales {
    /// One scale, already known.
    Tensor,
    Rows,
    Groups,
    Blocks,
}

/// The copies and sums made of the matrix.
#[derive(Clone, Copy)]
struct Outputs {
    name: &'static str,
    /// The copy in the source's layout.
    rows: Option<Scales>,
    /// The transposed copy.
    columns: Option<Scales>,
    /// The largest magnitude.
    amax: bool,
    /// The column sums.
    sums: bool,
}

impl Outputs {
    const fn both(name: &'static str, scales: Scales, amax: bool, sums: bool) -> Outputs {
        Outputs { name, rows: Some(scales), columns: Some(scales), amax, sums }
    }
}

const OUTPUTS: [Outputs; 14] = [
    Outputs::both("both copies", Scales::Tensor, false, false),
    Outputs::both("both copies, amax", Scales::Tensor, true, false),
    Outputs::both("both copies, amax, sums", Scales::Tensor, true, true),
    Outputs { name: "row copy", rows: Some(Scales::Tensor), columns: None, amax: false, sums: false },
    Outputs { name: "transposed copy", rows: None, columns: Some(Scales::Tensor), amax: false, sums: false },
    Outputs { name: "amax alone", rows: None, columns: None, amax: true, sums: false },
    Outputs { name: "row copy, row scales", rows: Some(Scales::Rows), columns: None, amax: false, sums: false },
    Outputs {
        name: "both copies, row scales",
        rows: Some(Scales::Rows),
        columns: Some(Scales::Tensor),
        amax: false,
        sums: false,
    },
    Outputs {
        name: "both, row scales, amax, sums",
        rows: Some(Scales::Rows),
        columns: Some(Scales::Tensor),
        amax: true,
        sums: true,
    },
    Outputs::both("both copies of a weight", Scales::Rows, false, false),
    Outputs::both("both copies, groups", Scales::Groups, false, false),
    Outputs::both("both copies, groups, sums", Scales::Groups, false, true),
    Outputs { name: "row copy, groups", rows: Some(Scales::Groups), columns: None, amax: false, sums: false },
    Outputs::both("both copies, blocks", Scales::Blocks, false, false),
];

const SOURCES: [&str; 6] = ["stored", "norm", "gelu", "gelu backward", "swiglu", "swiglu backward"];

/// A source of `(rows, columns)` and the bytes that it reads.
fn source(bench: &mut Bench, name: &str, [rows, columns]: [usize; 2]) -> Result<(QuantizeSource, usize)> {
    let kind = ActivationKind::Gelu;
    let source = match name {
        "stored" => QuantizeSource::Stored(bench.random([rows, columns])?),
        "norm" => {
            let input = bench.random([rows, columns])?;
            let (mean, rstd) = (Some(bench.ones(rows)?), bench.ones(rows)?);
            let (weight, bias) = (bench.random([1, columns])?, Some(bench.random([1, columns])?));
            QuantizeSource::Norm { input, mean, rstd, weight, weight_offset: 0.0, bias }
        }
        "gelu" => QuantizeSource::Activation { kind, input: bench.random([rows, columns])? },
        "gelu backward" => {
            let (input, grad_output) = (bench.random([rows, columns])?, bench.random([rows, columns])?);
            QuantizeSource::ActivationBackward { kind, input, grad_output }
        }
        "swiglu" => QuantizeSource::Glu { gate: Gate::Silu, input: bench.random([rows, 2 * columns])? },
        _ => {
            let (input, grad_output) = (bench.random([rows, columns])?, bench.random([rows, columns / 2])?);
            QuantizeSource::GluBackward { gate: Gate::Silu, input, grad_output }
        }
    };
    let values = match source {
        QuantizeSource::Stored(_)
        | QuantizeSource::Rounded(_)
        | QuantizeSource::Norm { .. }
        | QuantizeSource::Activation { .. } => rows * columns,
        QuantizeSource::ActivationBackward { .. } | QuantizeSource::Glu { .. } => 2 * rows * columns,
        QuantizeSource::GluBackward { .. } => rows * columns + rows * columns / 2,
    };
    Ok((source, 2 * values))
}

/// An 8-bit copy to be made, and the bytes that are written for it.
fn copy(bench: &mut Bench, [rows, columns]: [usize; 2], scales: Scales) -> Result<(Fp8Matrix, usize)> {
    let [height, width] = match scales {
        Scales::Tensor => [1, 1],
        Scales::Rows => [1, rows],
        Scales::Groups => Scale::group_shape(rows, columns),
        Scales::Blocks => Scale::block_shape(rows, columns),
    };
    let written = rows * columns + 4 * height * width;
    let tensor = bench.ones(height * width)?.reshape([height, width]);
    let scale = match scales {
        Scales::Tensor => Scale::Tensor(tensor),
        Scales::Rows => Scale::Rows(tensor),
        Scales::Groups => Scale::Groups(tensor),
        Scales::Blocks => Scale::Blocks(tensor),
    };
    Ok((Fp8Matrix { values: bench.tensor([rows, columns], DType::F8E4M3)?, scale }, written))
}

fn quantize(bench: &mut Bench, source: QuantizeSource, outputs: Outputs) -> Result<(Quantize, usize)> {
    let (rows, columns) = source.dimensions();
    let mut written = 0;
    let mut made = |bench: &mut Bench, shape, scales: Option<Scales>| {
        let Some(scales) = scales else { return Ok(None) };
        let (copy, bytes) = copy(bench, shape, scales)?;
        written += bytes;
        Ok::<_, Error>(Some(copy))
    };
    let op = Quantize {
        source,
        rows: made(bench, [rows, columns], outputs.rows)?,
        columns: made(bench, [columns, rows], outputs.columns)?,
        amax: if outputs.amax { Some(bench.ones(1)?) } else { None },
        sums: if outputs.sums { Some(bench.ones(columns)?) } else { None },
        accumulate: false,
    };
    Ok((op, written))
}

fn main() -> Result<()> {
    let options = CudaOptions { ordinal: 0, deterministic: false, tf32: false, check: false };
    let device = Device::cuda(options)?;
    let stream = device.stream("compute");
    let mut bench = Bench { device, stream, areas: Vec::new() };

    let bytes = 16384 * 8192 * 2;
    let mut copies: Vec<Op> = Vec::new();
    for _ in 0..SETS {
        let (input, output) = (bench.random([16384, 8192])?, bench.tensor([16384, 8192], DType::Bf16)?);
        copies.push(Copy { input, output }.into());
    }
    let plain = 2.0 * bytes as f64 / bench.seconds(&copies)? / 1e9;
    println!("plain copy of bf16 (16384, 8192): {plain:.0} GB/s");
    bench.areas.clear();

    println!("{:<16} {:>14}  {:<28} {:>9} {:>7} {:>8}", "source", "shape", "outputs", "us", "GB/s", "of copy");
    for (shapes, names) in [
        (&[[16384, 2048], [16384, 6144], [16384, 8192]][..], &SOURCES[..4]),
        (&[[8192, 14336]][..], &SOURCES[4..5]),
        (&[[8192, 28672]][..], &SOURCES[5..]),
    ] {
        for (shape, name) in shapes.iter().flat_map(|shape| names.iter().map(move |name| (*shape, *name))) {
            let sources: Vec<_> = (0..SETS).map(|_| source(&mut bench, name, shape)).collect::<Result<_>>()?;
            // Only stored matrices have a scale for each row of the transposed copy.
            let made_of = |outputs: &Outputs| name == "stored" || !matches!(outputs.columns, Some(Scales::Rows));
            for outputs in OUTPUTS.into_iter().filter(made_of) {
                let made: Vec<_> = sources
                    .iter()
                    .map(|(source, read)| {
                        quantize(&mut bench, *source, outputs).map(|(op, written)| (op, read + written))
                    })
                    .collect::<Result<_>>()?;
                let ops: Vec<Op> = made.iter().map(|(op, _)| op.clone().into()).collect();
                let seconds = bench.seconds(&ops)?;
                let rate = made[0].1 as f64 / seconds / 1e9;
                let (shape, us, share) = (format!("{}x{}", shape[0], shape[1]), seconds * 1e6, 100.0 * rate / plain);
                println!("{name:<16} {shape:>14}  {:<28} {us:>9.1} {rate:>7.0} {share:>7.1}%", outputs.name);
            }
            bench.areas.clear();
        }
    }
    Ok(())
}
