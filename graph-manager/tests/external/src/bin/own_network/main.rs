//! A user of `graph-manager` alone: a small network with layers and an operation of its own. It is trained with graphs off and on, two microbatches in flight, and must learn the same to the bit: on the host, or on a GPU
//! with the argument `cuda`.

mod layer;
mod squared_relu;

use graph_manager::device::cuda::CudaOptions;
use graph_manager::device::ops::{Add, Control, Copy, Fill, Mse, SumInto, WriteControl};
use graph_manager::device::{Area, DType, Device, HostOptions, Shape, Tensor};
use graph_manager::{CudaGraphManager, ManagerOptions, Result, StepContext, TrainingPolicy, TrainingRegion};
use layer::{Layer, Saved};

const BATCH: usize = 8;
const WIDTH: usize = 16;
const MICROBATCHES: usize = 4;

struct Network {
    layers: Vec<Layer>,
    /// `(microbatches, batch, width)`.
    inputs: Tensor,
    /// `(microbatches, batch, width)`.
    targets: Tensor,
    /// `(1)`.
    loss: Tensor,
    control: Tensor,
    _areas: Vec<Area>,
}

/// A microbatch between its forward and its backward.
struct InFlight {
    microbatch: usize,
    /// The values that each layer left for its backward.
    saved: Vec<Saved>,
    /// `(batch, width)`: the gradient of the loss.
    grad: Tensor,
}

impl Network {
    fn new(device: &Device) -> Result<Network> {
        let mut areas = Vec::new();
        let mut tensor = |name: &str, shape: &[usize], value: &dyn Fn(f32) -> f32| -> Result<Tensor> {
            let tensor = device.allocate_tensor(&mut areas, name, Shape::new(shape), DType::F32)?;
            device.upload(&tensor, &(0..tensor.elements()).map(|i| value(i as f32)).collect::<Vec<f32>>())?;
            Ok(tensor)
        };
        let data = [MICROBATCHES, BATCH, WIDTH];
        let inputs = tensor("inputs", &data, &|i| (i * 0.7).sin())?;
        let targets = tensor("targets", &data, &|i| (i * 0.3).cos().abs())?;
        let loss = tensor("loss", &[1], &|_| 0.0)?;
        let mut layers = Vec::new();
        for phase in [0.0, 1.0] {
            let weight = tensor("weight", &[WIDTH, WIDTH], &|i| (i * i + phase).sin() * 0.5)?;
            layers.push(Layer { weight, grad: tensor("grad", &[WIDTH, WIDTH], &|_| 0.0)? });
        }
        let control = device.allocate_tensor(&mut areas, "control", [size_of::<Control>()], DType::U8)?;
        Ok(Network { layers, inputs, targets, loss, control, _areas: areas })
    }

    fn step(&self, cx: &mut StepContext<'_, TrainingPolicy>) -> Result<()> {
        cx.region(TrainingRegion::Once("zero"), (), |cx, ()| {
            let totals = self.layers.iter().map(|layer| layer.grad).chain([self.loss]);
            totals.into_iter().try_for_each(|output| cx.run(Fill { output, value: 0.0 }))
        })?;
        let mut in_flight = None;
        for microbatch in 0..MICROBATCHES {
            let next = self.forward(cx, microbatch)?;
            if let Some(before) = in_flight.replace(next) {
                self.backward(cx, before)?;
            }
        }
        in_flight.map_or(Ok(()), |last| self.backward(cx, last))?;
        cx.region(TrainingRegion::Once("update"), (), |cx, ()| {
            // The gradients hold the negative learning rate already, as a factor of the loss.
            self.layers
                .iter()
                .try_for_each(|Layer { weight, grad }| cx.run(Add { a: *weight, b: *grad, output: *weight }))
        })
    }

    fn forward(&self, cx: &mut StepContext<'_, TrainingPolicy>, microbatch: usize) -> Result<InFlight> {
        let (mut x, target) = cx.region(TrainingRegion::of_microbatch("inputs", microbatch), (), |cx, ()| {
            let input = cx.tensor("input", [BATCH, WIDTH], DType::F32)?;
            let target = cx.tensor("target", [BATCH, WIDTH], DType::F32)?;
            cx.run(Copy { input: self.inputs.at(microbatch), output: input })?;
            cx.run(Copy { input: self.targets.at(microbatch), output: target })?;
            Ok((input, target))
        })?;
        let mut saved = Vec::new();
        for (at, layer) in self.layers.iter().enumerate() {
            let (output, of_layer) =
                cx.region(TrainingRegion::forward(at, microbatch), x, |cx, x| layer.forward(cx, x))?;
            saved.push(of_layer);
            x = output;
        }
        let loss = TrainingRegion::of_microbatch("loss", microbatch);
        let grad = cx.region(loss, (x, target), |cx, (prediction, target)| {
            let grad = cx.tensor("grad", prediction.shape, DType::F32)?;
            let losses = cx.tensor("losses", [BATCH], DType::F32)?;
            cx.run(Mse { prediction, target, losses, grad: Some((grad, self.control)) })?;
            cx.run(SumInto { input: losses, total: self.loss, accumulate: true })?;
            Ok(grad)
        })?;
        Ok(InFlight { microbatch, saved, grad })
    }

    fn backward(&self, cx: &mut StepContext<'_, TrainingPolicy>, forward: InFlight) -> Result<()> {
        let InFlight { microbatch, saved, mut grad } = forward;
        for (at, (layer, saved)) in self.layers.iter().zip(saved).enumerate().rev() {
            let region = TrainingRegion::backward(at, microbatch);
            grad = cx.region(region, grad, |cx, grad| layer.backward(cx, saved, grad))?;
        }
        Ok(())
    }
}

/// All is captured but the copies of inputs and a fill.
fn policy() -> TrainingPolicy {
    TrainingPolicy::choosing(|region| match region {
        TrainingRegion::Microbatch { name: "inputs", .. } => Err("each microbatch has another address"),
        TrainingRegion::Once("zero") => Err("it only fills"),
        _ => Ok(()),
    })
}

/// The loss of each step, and the number of graphs.
fn train(options: ManagerOptions) -> Result<(Vec<f32>, usize)> {
    let device = match std::env::args().nth(1).as_deref() {
        Some("cuda") => Device::cuda(CudaOptions { ordinal: 0, deterministic: true, tf32: false, check: true })?,
        _ => Device::host(HostOptions { check: true, ..HostOptions::default() })?,
    };
    let network = Network::new(&device)?;
    let compute = device.stream("compute");
    let mut manager = CudaGraphManager::new(compute.clone(), options, policy())?;
    let mut losses = Vec::new();
    for _ in 0..8 {
        let value = Control { grad_scale: -0.01, ..Control::default() };
        compute.submit(WriteControl { control: network.control, value })?;
        manager.step("train", MICROBATCHES, &mut |cx| network.step(cx))?;
        losses.extend(compute.read::<f32>(&network.loss)?.wait()?);
    }
    Ok((losses, manager.report().graphs.len()))
}

fn main() -> Result<()> {
    let (eager, none) = train(ManagerOptions { enable: false, ..ManagerOptions::default() })?;
    let (replayed, graphs) = train(ManagerOptions { poison: true, ..ManagerOptions::default() })?;
    assert_eq!(eager, replayed, "graphs change no bit");
    assert!(eager[7] < 0.8 * eager[0], "the network learns: {eager:?}");
    // Two layers, the loss and two slots; the update.
    assert_eq!((none, graphs), (0, 2 * (2 + 2 + 1) + 1));
    println!("own network: loss {} to {} with {graphs} graphs", eager[0], eager[7]);
    Ok(())
}
