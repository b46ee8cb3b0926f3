//! A bench for single operations: tensors from f64 values, one submission, f64 values back.

use device::cuda::CudaOptions;
use device::ops::{Accesses, CollectiveKind, CustomOp, PartialColumns};
use device::{
    Area, Communicator, DType, Device, F8E4M3, F8E5M2, Float, HostOptions, HostTensors, Op, Request, Result, Stream,
    Tensor, bf16,
};
use std::cell::RefCell;

pub struct Bench {
    pub device: Device,
    pub stream: Stream,
    areas: RefCell<Vec<Area>>,
}

/// A bench with a device of that many threads, with the checker on.
pub fn bench(threads: usize) -> Bench {
    on(Device::host(HostOptions { threads, check: true, dry: false }).unwrap())
}

/// Whether tests run on the first GPU.
pub fn on_gpu() -> bool {
    std::env::var("TEST_DEVICE").is_ok_and(|device| device == "cuda")
}

/// The host device, or with `TEST_DEVICE=cuda` the first GPU, with the checker on.
pub fn checked_device() -> Device {
    if on_gpu() {
        return Device::cuda(CudaOptions { ordinal: 0, deterministic: true, tf32: false, check: true }).unwrap();
    }
    Device::host(HostOptions { check: true, ..HostOptions::default() }).unwrap()
}

/// As [`checked_device`], but the second GPU if there are two. A thread has one of them.
pub fn second_device() -> Device {
    let second = || Device::cuda(CudaOptions { ordinal: 1, deterministic: true, tf32: false, check: true });
    on_gpu().then(second).and_then(Result::ok).unwrap_or_else(checked_device)
}

/// A bench on the first GPU, with the checker on.
pub fn cuda_bench() -> Bench {
    on(Device::cuda(CudaOptions { ordinal: 0, deterministic: true, tf32: false, check: true }).unwrap())
}

/// A bench on [`checked_device`].
pub fn checked_bench() -> Bench {
    on(checked_device())
}

/// A bench on [`second_device`].
pub fn second_bench() -> Bench {
    on(second_device())
}

/// As [`checked_bench`], but on a GPU libraries choose their algorithms by timing.
pub fn timed_bench() -> Bench {
    let device = checked_device();
    if device.gpu().is_none() {
        return on(device);
    }
    drop(device);
    on(Device::cuda(CudaOptions { ordinal: 0, deterministic: false, tf32: false, check: true }).unwrap())
}

/// As [`timed_bench`], but a GPU multiplies f32 factors in TF32.
pub fn tf32_bench() -> Bench {
    match on_gpu() {
        true => on(Device::cuda(CudaOptions { ordinal: 0, deterministic: false, tf32: true, check: true }).unwrap()),
        false => checked_bench(),
    }
}

fn on(device: Device) -> Bench {
    let stream = device.stream("ops");
    Bench { device, stream, areas: RefCell::new(Vec::new()) }
}

/// Two streams, and two tensors of 64 numbers: 1 and 2.
pub struct SideBench {
    pub device: Device,
    pub main: Stream,
    pub side: Stream,
    pub a: Tensor,
    pub b: Tensor,
    pub area: Area,
}

/// A [`SideBench`] on [`checked_device`].
pub fn side_bench() -> SideBench {
    let device = checked_device();
    let area = device.allocate("test", 4096).unwrap();
    let a = area.tensor("a", 0, [64], DType::F32);
    let b = area.tensor("b", 1024, [64], DType::F32);
    device.upload(&a, &[1.0f32; 64]).unwrap();
    device.upload(&b, &[2.0f32; 64]).unwrap();
    let (main, side) = (device.stream("main"), device.stream("side"));
    SideBench { device, main, side, a, b, area }
}

impl SideBench {
    /// Work that `after` takes from now on waits for the work that `before` has.
    pub fn in_turn(&self, before: &Stream, after: &Stream) {
        let event = self.device.event();
        before.record(&event).unwrap();
        after.wait(&event).unwrap();
    }
}

/// The side of an operation for the host.
pub type Body = Box<dyn Fn(&mut HostTensors<'_>) -> Result<()>>;

/// An operation that declares `reads` and `writes` and runs `body`.
pub struct Probe {
    pub reads: Vec<Tensor>,
    pub writes: Vec<Tensor>,
    pub body: Body,
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Probe")
    }
}

impl CustomOp for Probe {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn accesses(&self) -> Accesses {
        Accesses::new(self.reads.clone(), self.writes.clone())
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        (self.body)(tensors)
    }
}

/// A communicator that must not be used.
#[derive(Debug)]
pub struct Never;

impl Communicator for Never {
    fn name(&self) -> &str {
        "never"
    }

    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn start(&self, _: CollectiveKind, _: &Tensor, _: &Tensor) -> Result<Box<dyn Request>> {
        panic!("a refused transfer was started")
    }
}

/// A value as a tensor of that type holds it.
pub fn rounded(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => bf16::from_f32(x as f32).to_f64(),
        DType::F8E4M3 => F8E4M3::from_f32(x as f32).to_f32().into(),
        DType::F8E5M2 => F8E5M2::from_f32(x as f32).to_f32().into(),
        _ => f64::from(x as f32),
    }
}

impl Bench {
    fn place(&self, name: &str, shape: &[usize], dtype: DType) -> Tensor {
        self.device.allocate_tensor(&mut self.areas.borrow_mut(), name, device::Shape::new(shape), dtype).unwrap()
    }

    /// A tensor that holds these values, rounded to its type.
    pub fn put(&self, shape: &[usize], dtype: DType, values: &[f64]) -> Tensor {
        match dtype {
            DType::F32 => self.put_as::<f32>(shape, values),
            DType::Bf16 => self.put_as::<bf16>(shape, values),
            DType::F8E4M3 => self.put_as::<F8E4M3>(shape, values),
            DType::F8E5M2 => self.put_as::<F8E5M2>(shape, values),
            _ => panic!("put() takes floats"),
        }
    }

    fn put_as<T: Float>(&self, shape: &[usize], values: &[f64]) -> Tensor {
        let tensor = self.place("input", shape, T::DTYPE);
        let values: Vec<T> = values.iter().map(|&x| T::from_f32(x as f32)).collect();
        self.device.upload(&tensor, &values).unwrap();
        tensor
    }

    /// A tensor of an 8-bit type that holds these bytes.
    pub fn put_bytes(&self, shape: &[usize], dtype: DType, bytes: &[u8]) -> Tensor {
        let tensor = self.place("bytes", shape, dtype);
        match dtype {
            DType::F8E5M2 => self.device.upload::<F8E5M2>(&tensor, bytemuck::cast_slice(bytes)).unwrap(),
            DType::U8 => self.device.upload(&tensor, bytes).unwrap(),
            _ => self.device.upload::<F8E4M3>(&tensor, bytemuck::cast_slice(bytes)).unwrap(),
        }
        tensor
    }

    /// The bytes of a tensor of an 8-bit floating type.
    pub fn get_bytes(&self, tensor: &Tensor) -> Vec<u8> {
        match tensor.dtype {
            DType::F8E5M2 => self.device.download::<F8E5M2>(tensor).unwrap().into_iter().map(|x| x.0).collect(),
            _ => self.device.download::<F8E4M3>(tensor).unwrap().into_iter().map(|x| x.0).collect(),
        }
    }

    pub fn ints(&self, shape: &[usize], values: &[i32]) -> Tensor {
        let tensor = self.place("tokens", shape, DType::I32);
        self.device.upload(&tensor, values).unwrap();
        tensor
    }

    /// A tensor of these bits.
    pub fn bits(&self, values: &[u16]) -> Tensor {
        let tensor = self.place("bits", &[values.len()], DType::U16);
        self.device.upload(&tensor, values).unwrap();
        tensor
    }

    /// A tensor of -1 for integers.
    pub fn empty_ints(&self, shape: &[usize]) -> Tensor {
        self.ints(shape, &vec![-1; shape.iter().product()])
    }

    pub fn get_ints(&self, tensor: &Tensor) -> Vec<i32> {
        self.device.download(tensor).unwrap()
    }

    /// The words with which an operation is refused.
    pub fn refusal(&self, op: impl Into<Op>) -> String {
        self.stream.submit(op).unwrap_err().to_string()
    }

    /// A `repr(C)` block.
    pub fn block<T: bytemuck::Pod>(&self, value: &T) -> Tensor {
        let tensor = self.place("block", &[size_of::<T>()], DType::U8);
        self.device.upload(&tensor, bytemuck::bytes_of(value)).unwrap();
        tensor
    }

    pub fn get_block<T: bytemuck::Pod>(&self, tensor: &Tensor) -> T {
        bytemuck::pod_read_unaligned(&self.device.download::<u8>(tensor).unwrap())
    }

    /// Room for so many parts of a sum of columns that goes to `output`.
    pub fn parts(&self, parts: usize, output: Tensor) -> PartialColumns {
        PartialColumns { partial: self.empty(&[parts, output.elements()], DType::F32), output }
    }

    /// A tensor of NaN. It shows elements that an operation leaves unwritten.
    pub fn empty(&self, shape: &[usize], dtype: DType) -> Tensor {
        let nan = vec![f64::NAN; shape.iter().product()];
        self.put(shape, dtype, &nan)
    }

    /// Prepares an operation as a step does before it runs: on a GPU that may choose an algorithm by timing.
    pub fn prepare(&self, op: impl Into<Op>) {
        self.device.begin_trace();
        self.stream.submit(op).unwrap();
        self.device.end_trace();
    }

    pub fn run(&self, op: impl Into<Op>) {
        self.stream.submit(op).unwrap();
    }

    pub fn get(&self, tensor: &Tensor) -> Vec<f64> {
        match tensor.dtype {
            DType::F32 => self.device.download::<f32>(tensor).unwrap().into_iter().map(f64::from).collect(),
            DType::Bf16 => self.device.download::<bf16>(tensor).unwrap().into_iter().map(|x| x.to_f64()).collect(),
            _ => panic!("get() returns floats"),
        }
    }
}

/// `n` numbers in about [-1, 1), a function of the seed, as a tensor of that type holds them.
pub fn numbers(seed: u64, n: usize, dtype: DType) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            rounded((z >> 11) as f64 / (1u64 << 52) as f64 - 1.0, dtype)
        })
        .collect()
}

/// Asserts that values agree in relative L2 norm: 1e-5 for f32, half a percent for bf16.
pub fn assert_close(what: &str, dtype: DType, ours: &[f64], truth: &[f64]) {
    assert_sums_close(what, dtype, ours, truth, &[]);
}

/// As [`assert_close`], for sums of terms that may nearly cancel each other. They are computed in f32, so an error of
/// 1e-6 times the sum of the terms' magnitudes is allowed too.
pub fn assert_sums_close(what: &str, dtype: DType, ours: &[f64], truth: &[f64], magnitudes: &[f64]) {
    assert_eq!(ours.len(), truth.len(), "{what}");
    let norm = |values: &[f64]| values.iter().map(|x| x * x).sum::<f64>().sqrt();
    let difference = ours.iter().zip(truth).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
    let tolerance = if dtype == DType::Bf16 { 6e-3 } else { 1e-5 };
    let allowed = tolerance * norm(truth).max(1e-3) + 1e-6 * norm(magnitudes);
    // NaN fails too.
    assert!(difference <= allowed, "{what} ({dtype}): off by {difference:.2e} of {:.2e}", norm(truth));
}

/// Gradient of `sum(weights * f(x))` by central differences, in f64.
pub fn finite_differences(x: &[f64], weights: &[f64], f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let value = |x: &[f64]| f(x).iter().zip(weights).map(|(y, w)| y * w).sum::<f64>();
    let mut moved = x.to_vec();
    (0..x.len())
        .map(|i| {
            let step = 1e-5;
            moved[i] = x[i] + step;
            let above = value(&moved);
            moved[i] = x[i] - step;
            let below = value(&moved);
            moved[i] = x[i];
            (above - below) / (2.0 * step)
        })
        .collect()
}

pub const FLOATS: [DType; 2] = [DType::F32, DType::Bf16];
