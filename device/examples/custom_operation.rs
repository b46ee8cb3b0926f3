//! An operation of a caller's own, `y = a * x + y`: on a GPU if there is one, else on the host. It runs eagerly, is
//! captured into a graph, and the graph is launched twice.
//!
//!     cargo run -p graph-manager-device --example custom_operation

use device::cuda::{CudaCode, CudaKernel, CudaLaunch, CudaOptions, CudaWork, GpuProperties, gpu_count};
use device::ops::{Accesses, CustomOp};
use device::{DType, Device, Error, HostOptions, HostTensors, Result, Tensor};

const KERNEL: CudaKernel =
    CudaKernel { file: "axpy.cu", code: CudaCode::Source(include_str!("axpy.cu")), function: "axpy" };

/// `y = a * x + y`, f32.
#[derive(Debug)]
struct Axpy {
    a: f32,
    /// Any shape.
    x: Tensor,
    /// The same shape, updated.
    y: Tensor,
}

impl CustomOp for Axpy {
    fn name(&self) -> &'static str {
        "axpy"
    }

    fn check(&self) -> Result<()> {
        let fits = self.x.dtype == DType::F32 && self.y.dtype == DType::F32 && self.x.shape == self.y.shape;
        if fits { Ok(()) } else { Err(Error::operation("axpy", "`x` and `y` are f32 and of one shape")) }
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.x, self.y], [self.y])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        const CHUNK: usize = 4096;
        let (x, y) = (tensors.read::<f32>(&self.x)?, tensors.write::<f32>(&self.y)?);
        tensors.pool().for_each_chunk(y, CHUNK, |chunk, y| {
            y.iter_mut().zip(&x[chunk * CHUNK..]).for_each(|(y, x)| *y = self.a.mul_add(*x, *y));
        });
        Ok(())
    }

    fn cuda_work(&self, _gpu: &GpuProperties) -> Option<CudaWork<'_>> {
        let count = self.y.elements();
        let launch = CudaLaunch {
            kernel: KERNEL,
            blocks: (count.div_ceil(256) as u32, 1, 1),
            threads: (256, 1, 1),
            shared_bytes: 0,
            arguments: vec![self.a.into(), self.x.into(), self.y.into(), (count as u64).into()],
        };
        Some(launch.into())
    }
}

fn main() -> Result<()> {
    let device = if gpu_count() > 0 {
        Device::cuda(CudaOptions { ordinal: 0, deterministic: false, tf32: false, check: true })?
    } else {
        Device::host(HostOptions { threads: 2, check: true, dry: false })?
    };
    println!("on {}", device.gpu().map_or("the host".into(), |gpu| gpu.name));

    const COUNT: usize = 1 << 20;
    let mut areas = Vec::new();
    let x = device.allocate_tensor(&mut areas, "x", [COUNT], DType::F32)?;
    let y = device.allocate_tensor(&mut areas, "y", [COUNT], DType::F32)?;
    let values: Vec<f32> = (0..COUNT).map(|i| i as f32).collect();
    device.upload(&x, &values)?;
    device.upload(&y, &vec![1.0f32; COUNT])?;

    let stream = device.stream("compute");
    // Eagerly. On a GPU this compiles and loads the kernel. That cannot be done during a capture.
    stream.submit(Axpy { a: 2.0, x, y })?;

    stream.begin_capture()?;
    stream.submit(Axpy { a: 2.0, x, y })?;
    let graph = stream.end_capture("axpy")?;
    let before = device.counters();
    graph.launch(&stream)?;
    graph.launch(&stream)?;
    assert_eq!(device.counters().allocations, before.allocations, "a launch allocates nothing");

    let expected: Vec<f32> = values.iter().map(|x| (0..3).fold(1.0, |y, _| 2.0f32.mul_add(*x, y))).collect();
    assert_eq!(device.download::<f32>(&y)?, expected);
    println!("y = 2 x + y, three times over {COUNT} elements: right, the last two times by a graph");
    Ok(())
}
