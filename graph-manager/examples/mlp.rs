//! A two-layer MLP whose forward, backward and update are graphs.
//!
//!     cargo run --release -p graph-manager --example mlp            # on the host
//!     cargo run --release -p graph-manager --example mlp -- cuda    # on a GPU

use std::fmt::{Display, Formatter};
use std::sync::Arc;

use device::cuda::CudaOptions;
use device::ops::{Activation, ActivationBackward, ActivationKind, Epilogue, Gemm, Mse};
use device::ops::{ClipScale, Control, Sgd, SgdTensors, SquareSum, Status, WriteControl};
use device::{Area, DType, Device, HostOptions, Tensor};
use graph_manager::{CudaGraphManager, ManagerOptions, NoVariant, Policy, Result, StepContext};

const BATCH: usize = 64;
const WIDTHS: [usize; 3] = [16, 64, 16];
const RELU: ActivationKind = ActivationKind::Relu;

/// The regions of a step; layers are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Region {
    Forward(usize),
    Loss,
    Backward(usize),
    Update,
}

impl Display for Region {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Every region is a graph. A backward reads what the forward of its layer saved.
struct Mlp;

impl Policy for Mlp {
    type Region = Region;
    type Mode = ();
    type Variant = NoVariant;

    fn saved_by(&self, region: Region) -> Option<Region> {
        match region {
            Region::Forward(layer) | Region::Backward(layer) => Some(Region::Forward(layer)),
            Region::Loss | Region::Update => None,
        }
    }
}

/// `relu(input @ weight^T)`, with `weight` and `grad` of `(out, in)`.
struct Layer {
    weight: Tensor,
    grad: Tensor,
}

impl Layer {
    /// `(batch, in)` to `(batch, out)`.
    fn forward(&self, cx: &mut StepContext<'_, Mlp>, input: Tensor) -> Result<Tensor> {
        let shape = [BATCH, self.weight.shape.sizes()[0]];
        let product = cx.tensor("product", shape, DType::F32)?;
        let output = cx.tensor("output", shape, DType::F32)?;
        cx.run(Gemm::linear(input, self.weight, product, Epilogue::None))?;
        cx.run(Activation { kind: RELU, input: product, output })?;
        cx.save_for_backward((input, product))?;
        Ok(output)
    }

    /// The output's gradient, `(batch, out)`, to the input's, `(batch, in)`.
    fn backward(&self, cx: &mut StepContext<'_, Mlp>, grad_output: Tensor) -> Result<Tensor> {
        let (input, product): (Tensor, Tensor) = cx.saved()?;
        let grad_product = cx.tensor("grad_product", product.shape, DType::F32)?;
        let grad_input = cx.tensor("grad_input", input.shape, DType::F32)?;
        cx.run(ActivationBackward { kind: RELU, input: product, grad_output, grad_input: grad_product })?;
        cx.run(Gemm::wgrad(grad_product, input, self.grad, false))?;
        cx.run(Gemm::dgrad(grad_product, self.weight, grad_input, Epilogue::None))?;
        Ok(grad_input)
    }
}

/// Trains for so many steps; returns the loss of each and a report on the graphs.
fn train(device: &Device, steps: u32) -> Result<(Vec<f32>, String)> {
    let mut areas: Vec<Area> = Vec::new();
    let mut tensor = |name: &str, rows: usize, columns: usize, value: &dyn Fn(f32) -> f32| -> Result<Tensor> {
        let tensor = device.allocate_tensor(&mut areas, name, [rows, columns], DType::F32)?;
        device.upload(&tensor, &(0..rows * columns).map(|i| value(i as f32)).collect::<Vec<f32>>())?;
        Ok(tensor)
    };
    let input = tensor("input", BATCH, WIDTHS[0], &|i| (i * 0.7).sin())?;
    let target = tensor("target", BATCH, WIDTHS[2], &|i| (i * 0.3).cos().max(0.0))?;
    let mut layers = Vec::new();
    for at in 0..2 {
        let (columns, rows) = (WIDTHS[at], WIDTHS[at + 1]);
        let weight = tensor("weight", rows, columns, &|i| (i * i + at as f32).sin() / (columns as f32).sqrt())?;
        layers.push(Layer { weight, grad: tensor("grad", rows, columns, &|_| 0.0)? });
    }
    let losses = tensor("losses", BATCH, 1, &|_| 0.0)?;
    let square_sum = tensor("square_sum", 1, 1, &|_| 0.0)?;
    let control = device.allocate_tensor(&mut areas, "control", [size_of::<Control>()], DType::U8)?;
    let status = device.allocate_tensor(&mut areas, "status", [size_of::<Status>()], DType::U8)?;
    device.zero(&status)?;
    let part = |layer: &Layer| SgdTensors {
        master: layer.weight,
        compute: None,
        grad: layer.grad,
        momentum: None,
        weight_decay: 0.0,
    };
    let sgd = Sgd { tensors: layers.iter().map(part).collect(), momentum: 0.0, control, status };
    let grads: Arc<[Tensor]> = layers.iter().map(|layer| layer.grad).collect();

    let compute = device.stream("compute");
    let mut manager = CudaGraphManager::new(compute.clone(), ManagerOptions::default(), Mlp)?;
    let mut mean_losses = Vec::new();
    for step in 0..steps {
        // A graph holds no host scalar: what changes from step to step lies in the control block.
        let grad_scale = 1.0 / BATCH as f32;
        let value = Control { step, learning_rate: 0.5, grad_scale, inverse_loss_scale: 1.0, ..Control::default() };
        compute.submit(WriteControl { control, value })?;
        manager.step((), 1, &mut |cx| {
            let mut x = input;
            for (at, layer) in layers.iter().enumerate() {
                x = cx.region(Region::Forward(at), x, |cx, x| layer.forward(cx, x))?;
            }
            let mut grad = cx.region(Region::Loss, x, |cx, prediction| {
                let grad = cx.tensor("grad", prediction.shape, DType::F32)?;
                cx.run(Mse { prediction, target, losses, grad: Some((grad, control)) })?;
                Ok(grad)
            })?;
            for (at, layer) in layers.iter().enumerate().rev() {
                grad = cx.region(Region::Backward(at), grad, |cx, grad| layer.backward(cx, grad))?;
            }
            cx.region(Region::Update, (), |cx, ()| {
                cx.run(SquareSum { inputs: grads.clone(), total: square_sum })?;
                cx.run(ClipScale { square_sum, control, status })?;
                cx.run(sgd.clone())
            })
        })?;
        mean_losses.push(compute.read::<f32>(&losses)?.wait()?.iter().sum::<f32>() / BATCH as f32);
    }
    Ok((mean_losses, manager.report().to_string()))
}

fn main() -> Result<()> {
    let device = match std::env::args().nth(1).as_deref() {
        Some("cuda") => Device::cuda(CudaOptions { ordinal: 0, deterministic: true, tf32: false, check: false })?,
        _ => Device::host(HostOptions::default())?,
    };
    let (losses, report) = train(&device, 101)?;
    for (step, loss) in losses.iter().enumerate().step_by(20) {
        println!("step {step:3}  loss {loss:.4}");
    }
    println!("{report}");
    Ok(())
}
