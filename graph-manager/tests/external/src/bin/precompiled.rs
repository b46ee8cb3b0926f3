//! A kernel that was compiled elsewhere: the text of `axpy.ptx` is loaded as a module, without a compiler of CUDA.
//!
//!     cargo run --bin precompiled            # on the host
//!     cargo run --bin precompiled -- cuda    # on a GPU

use std::num::NonZeroUsize;

use graph_manager::device::cuda::{CudaCode, CudaKernel, CudaLaunch, CudaOptions, CudaWork, GpuProperties};
use graph_manager::device::ops::{Accesses, CustomOp};
use graph_manager::device::{DType, Device, Error, HostOptions, HostTensors, Result, Tensor};
use graph_manager::{Capture, Pool};

const CODE: CudaCode = CudaCode::Ptx(include_str!("../../../../../device/examples/axpy.ptx"));
const COUNT: usize = 1000;
const STEPS: usize = 4;

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
        let (x, y) = (tensors.read::<f32>(&self.x)?, tensors.write::<f32>(&self.y)?);
        y.iter_mut().zip(x).for_each(|(y, x)| *y = self.a.mul_add(*x, *y));
        Ok(())
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        let count = self.y.elements();
        let launch = CudaLaunch {
            kernel: CudaKernel { file: "axpy.ptx", code: CODE, function: "axpy" },
            blocks: (count.div_ceil(256) as u32, 1, 1),
            threads: (256, 1, 1),
            shared_bytes: 0,
            arguments: vec![self.a.into(), self.x.into(), self.y.into(), (count as u64).into()],
        };
        Some(launch.into())
    }
}

fn main() -> graph_manager::Result<()> {
    let device = match std::env::args().nth(1).as_deref() {
        Some("cuda") => Device::cuda(CudaOptions { ordinal: 0, deterministic: true, tf32: false, check: true })?,
        _ => Device::host(HostOptions { check: true, ..HostOptions::default() })?,
    };
    let mut areas = Vec::new();
    let [x, y] = [
        device.allocate_tensor(&mut areas, "x", [COUNT], DType::F32)?,
        device.allocate_tensor(&mut areas, "y", [COUNT], DType::F32)?,
    ];
    device.upload(&x, &[0.1_f32; COUNT])?;
    device.zero(&y)?;
    let stream = device.stream("eager");
    for _ in 0..STEPS {
        stream.submit(Axpy { a: 3.0, x, y })?;
    }
    let eager = device.download::<f32>(&y)?;

    device.zero(&y)?;
    let pool = Pool::new(device.stream("compute"));
    let mut step = Capture::new(&pool, "step", 1, NonZeroUsize::MIN, move |cx, ()| cx.run(Axpy { a: 3.0, x, y }))?;
    for _ in 0..STEPS {
        step.run(())?;
    }
    assert_eq!(device.download::<f32>(&y)?, eager, "graphs change no bit");
    let expected = (0..STEPS).fold(0.0, |y, _| 3.0_f32.mul_add(0.1, y));
    assert_eq!(eager, [expected; COUNT]);
    let graphs = step.report().graphs.len();
    println!("precompiled: y = {expected} after {STEPS} steps, the same bits eagerly and with {graphs} graph");
    Ok(())
}
