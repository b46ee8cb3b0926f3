//! A kernel of another crate in a graph: `y = y + silu(x)`. cudarc compiles it, holds it, and launches it on the stream
//! that it gets. `x` is memory that cudarc owns.
//!
//!     cargo run --bin cudarc_kernel            # on the host
//!     cargo run --bin cudarc_kernel -- cuda    # on a GPU

use std::fmt;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, DevicePtr, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::compile_ptx;
use graph_manager::device::cuda::{CudaOptions, CudaWork, GpuProperties};
use graph_manager::device::ops::{Accesses, CustomOp};
use graph_manager::device::{self, Area, DType, Device, HostOptions, HostTensors, Tensor};
use graph_manager::{Capture, Pool};

type AnyResult<T> = Result<T, Box<dyn std::error::Error>>;

const SOURCE: &str = r#"
extern "C" __global__ void add_silu(const float* x, float* y, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] += x[i] / (1.0f + expf(-x[i]));
}
"#;

const COUNT: usize = 1000;
const STEPS: usize = 4;

/// cudarc's view of the GPU, and its kernel. It is loaded before the first step.
struct Kernel {
    context: Arc<CudaContext>,
    add_silu: CudaFunction,
}

/// The text of an operation tells it apart, and addresses of the driver say nothing.
impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("add_silu of cudarc")
    }
}

/// `y = y + silu(x)`, f32.
#[derive(Debug)]
struct AddSilu {
    /// Any shape.
    x: Tensor,
    /// The same shape, updated.
    y: Tensor,
    /// `None` on the host.
    kernel: Option<Rc<Kernel>>,
}

impl CustomOp for AddSilu {
    fn name(&self) -> &'static str {
        "add_silu"
    }

    fn check(&self) -> device::Result<()> {
        let fits = self.x.dtype == DType::F32 && self.y.dtype == DType::F32 && self.x.shape == self.y.shape;
        if fits { Ok(()) } else { Err(device::Error::operation("add_silu", "`x` and `y` are f32 and of one shape")) }
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.x, self.y], [self.y])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> device::Result<()> {
        let (x, y) = (tensors.read::<f32>(&self.x)?, tensors.write::<f32>(&self.y)?);
        y.iter_mut().zip(x).for_each(|(y, x)| *y += x / (1.0 + (-x).exp()));
        Ok(())
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        let Kernel { context, add_silu } = &**self.kernel.as_ref()?;
        Some(CudaWork::call(move |on| {
            let (x, y, count) = (on.read(&self.x)?, on.write(&self.y)?, self.y.elements() as u32);
            // SAFETY: the stream is of the GPU's primary context, which cudarc uses too, and lives longer than this call.
            let stream = unsafe { context.wrap_borrowed_stream(on.stream().0.cast()) };
            // SAFETY: the kernel takes two pointers to `count` floats and their number.
            unsafe {
                let config = LaunchConfig::for_num_elems(count);
                stream.launch_builder(add_silu).arg(&x).arg(&y).arg(&count).launch(config)?;
            }
            Ok(())
        }))
    }
}

/// cudarc's kernel, and memory of cudarc with these values as an area.
fn of_cudarc(device: &Device, values: &[f32]) -> AnyResult<(Rc<Kernel>, Area)> {
    let context = CudaContext::new(0)?;
    let module = context.load_module(compile_ptx(SOURCE)?)?;
    let kernel = Kernel { add_silu: module.load_function("add_silu")?, context };
    let stream = kernel.context.new_stream()?;
    let slice: CudaSlice<f32> = stream.clone_htod(values)?;
    let address = slice.device_ptr(&stream).0;
    stream.synchronize()?; // this device's work does not wait for cudarc's stream
    // SAFETY: the memory stays until `slice` is dropped, and cudarc does not use it any more.
    let area = unsafe { device.adopt("x", address, size_of_val(values), slice) }?;
    Ok((Rc::new(kernel), area))
}

/// A vector of this process with these values as an area.
fn of_a_vector(device: &Device, values: &[f32]) -> AnyResult<Area> {
    // Memory of the host begins at a multiple of 16 bytes.
    let mut vector: Vec<[f32; 4]> = values.chunks(4).map(|four| [four[0], four[1], four[2], four[3]]).collect();
    let address = vector.as_mut_ptr().expose_provenance() as u64;
    assert!(address.is_multiple_of(16), "an allocator that aligns a large vector to 16 bytes");
    // SAFETY: the memory stays until `vector` is dropped, and nobody else uses it.
    Ok(unsafe { device.adopt("x", address, size_of_val(values), vector) }?)
}

fn main() -> AnyResult<()> {
    let values: Vec<f32> = (0..COUNT).map(|i| i as f32 / 100.0 - 5.0).collect();
    let (device, kernel, area) = match std::env::args().nth(1).as_deref() {
        Some("cuda") => {
            let device = Device::cuda(CudaOptions { ordinal: 0, deterministic: true, tf32: false, check: true })?;
            let (kernel, area) = of_cudarc(&device, &values)?;
            (device, Some(kernel), area)
        }
        _ => {
            let device = Device::host(HostOptions { check: true, ..HostOptions::default() })?;
            let area = of_a_vector(&device, &values)?;
            (device, None, area)
        }
    };
    let x = area.tensor("x", 0, [COUNT], DType::F32);
    let mut areas = Vec::new();
    let y = device.allocate_tensor(&mut areas, "y", [COUNT], DType::F32)?;

    let stream = device.stream("eager");
    device.zero(&y)?;
    for _ in 0..STEPS {
        stream.submit(AddSilu { x, y, kernel: kernel.clone() })?;
    }
    let eager = device.download::<f32>(&y)?;

    device.zero(&y)?;
    let pool = Pool::new(device.stream("compute"));
    let mut step = Capture::new(&pool, "step", 1, NonZeroUsize::MIN, move |cx, ()| {
        cx.run(device::ops::Op::from(AddSilu { x, y, kernel: kernel.clone() }))
    })?;
    for _ in 0..STEPS {
        step.run(())?;
    }
    assert_eq!(device.download::<f32>(&y)?, eager, "graphs change no bit");
    let one = (values[900] / (1.0 + (-values[900]).exp())) * STEPS as f32;
    assert!((eager[900] - one).abs() < 1e-3, "{} and {one}", eager[900]);
    let graphs = step.report().graphs.len();
    println!("cudarc kernel: y[900] = {} after {STEPS} steps, the same bits eagerly and with {graphs} graph", eager[900]);
    Ok(())
}
