//! One kernel of cudarc in a graph, on a stream of cudarc: `y = y + x`.
//!
//!     cargo run --bin add_kernel -- cuda    # it needs a GPU

use std::num::NonZeroUsize;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use graph_manager::device::cuda::{CudaOptions, StreamHandle};
use graph_manager::device::{DType, Device, ops::Launcher};
use graph_manager::{Capture, Pool};

const SOURCE: &str =
    r#"extern "C" __global__ void add(const float* x, float* y) { y[threadIdx.x] += x[threadIdx.x]; }"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).as_deref() != Some("cuda") {
        println!("add kernel: it needs a GPU: cargo run --bin add_kernel -- cuda");
        return Ok(());
    }
    let device = Device::cuda(CudaOptions::default())?;
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let kernel = context.load_module(cudarc::nvrtc::compile_ptx(SOURCE)?)?.load_function("add")?;
    // SAFETY: the owner is cudarc's stream itself.
    let compute = unsafe { device.adopt_stream("cudarc", StreamHandle(stream.cu_stream().cast()), stream.clone()) }?;
    let mut areas = Vec::new();
    let x = device.allocate_tensor(&mut areas, "x", [64], DType::F32)?;
    let y = device.allocate_tensor(&mut areas, "y", [64], DType::F32)?;
    device.upload(&x, &[0.5_f32; 64])?;
    device.zero(&y)?;

    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (64, 1, 1), shared_mem_bytes: 0 };
    let add = Launcher::new("add", move |on| {
        let (x, y) = (on.nth_read(0)?, on.nth_write(0)?);
        // SAFETY: the stream lives longer than this call, and the kernel takes two pointers to 64 floats.
        unsafe {
            let stream = context.wrap_borrowed_stream(on.stream().0.cast());
            stream.launch_builder(&kernel).arg(&x).arg(&y).launch(config)?;
        }
        Ok(())
    });
    let code = move |cx: &mut graph_manager::StepContext<'_, _>, ()| cx.run(add.on([x, y], [y]));
    let mut step = Capture::new(&Pool::new(compute), "step", 1, NonZeroUsize::MIN, code)?;
    for _ in 0..4 {
        step.run(())?; // eager, captured, replayed, replayed
    }
    assert_eq!(device.download::<f32>(&y)?, [2.0; 64]);
    println!("add kernel: y = 2 after 4 steps, with {} graph", step.report().graphs.len());
    Ok(())
}
