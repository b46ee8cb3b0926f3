//! Data-parallel training on two ranks: each layer's gradients are summed over the ranks on a side stream, within the
//! graph of the step, while the layers before it go backward. The program starts its second rank itself.
//!
//!     cargo run --bin all_reduce            # two processes on the host
//!     cargo run --bin all_reduce -- cuda    # two GPUs, through NCCL

mod nccl;
mod ranks;
mod socket;

use std::rc::Rc;

use graph_manager::device::cuda::{CudaOptions, gpu_count};
use graph_manager::device::ops::{
    Activation, ActivationBackward, ActivationKind, Add, Collective, CollectiveKind, Control, Epilogue, Gemm, Mse,
    SumInto, WriteControl,
};
use graph_manager::device::{Area, Communicator, DType, Device, HostOptions, Tensor};
use graph_manager::{CudaGraphManager, ManagerOptions, Result, StepContext, TrainingPolicy, TrainingRegion};

type AnyResult<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const STEPS: usize = 12;
/// Samples of a step, of all ranks together.
const BATCH: usize = 32;
const WIDTHS: [usize; 4] = [16, 64, 64, 4];
const RELU: ActivationKind = ActivationKind::Relu;

/// `relu(input @ weight^T)`.
#[derive(Clone, Copy)]
struct Layer {
    /// `(out, in)`, as its gradient.
    weight: Tensor,
    grad: Tensor,
}

/// The network of a rank.
struct Network {
    layers: [Layer; 3],
    /// `(batch of this rank, 16)` and `(batch of this rank, 4)`.
    input: Tensor,
    target: Tensor,
    /// `(1)`: the loss of all samples of the step.
    loss: Tensor,
    control: Tensor,
    /// The first of this rank's samples.
    first_sample: usize,
    /// `None`: there is one rank.
    ranks: Option<Rc<dyn Communicator>>,
    _areas: Vec<Area>,
}

impl Network {
    /// The same weights on all ranks.
    fn new(device: &Device, ranks: Option<Rc<dyn Communicator>>) -> Result<Network> {
        let (rank, size) = ranks.as_ref().map_or((0, 1), |ranks| (ranks.rank(), ranks.size()));
        let batch = BATCH / size;
        let mut areas = Vec::new();
        let mut tensor = |name: &str, rows: usize, columns: usize| -> Result<Tensor> {
            let tensor = device.allocate_tensor(&mut areas, name, [rows, columns], DType::F32)?;
            let scale = 1.5 / (columns as f32).sqrt();
            device.upload(&tensor, &(0..rows * columns).map(|i| scale * noise(i)).collect::<Vec<f32>>())?;
            Ok(tensor)
        };
        let mut layer = |at: usize| -> Result<Layer> {
            let (out, of) = (WIDTHS[at + 1], WIDTHS[at]);
            Ok(Layer { weight: tensor("weight", out, of)?, grad: tensor("grad", out, of)? })
        };
        let layers = [layer(0)?, layer(1)?, layer(2)?];
        let [input, target] = [tensor("input", batch, WIDTHS[0])?, tensor("target", batch, WIDTHS[3])?];
        let loss = tensor("loss", 1, 1)?;
        let control = device.allocate_tensor(&mut areas, "control", [size_of::<Control>()], DType::U8)?;
        Ok(Network { layers, input, target, loss, control, first_sample: rank * batch, ranks, _areas: areas })
    }

    /// Sums a tensor over the ranks on the side stream. What reads it waits for that, and so does the end of the graph.
    fn sum(&self, cx: &StepContext<'_, TrainingPolicy>, tensor: Tensor) -> Result<()> {
        let Some(ranks) = &self.ranks else { return Ok(()) };
        let sum = Collective::in_place(CollectiveKind::AllReduceSum, ranks.clone(), tensor);
        cx.fork(cx.side_stream(), [sum.into()])?.leave();
        Ok(())
    }

    /// One graph: forward, loss, and backward with the sums.
    fn gradients(&self, cx: &mut StepContext<'_, TrainingPolicy>) -> Result<()> {
        let (mut x, mut saved) = (self.input, Vec::new());
        for Layer { weight, .. } in self.layers {
            let shape = [x.shape.rows(), weight.shape.rows()];
            let product = cx.tensor("product", shape, DType::F32)?;
            let output = cx.tensor("output", shape, DType::F32)?;
            cx.run(Gemm::linear(x, weight, product, Epilogue::None))?;
            cx.run(Activation { kind: RELU, input: product, output })?;
            saved.push((x, product));
            x = output;
        }
        let losses = cx.tensor("losses", [x.shape.rows()], DType::F32)?;
        let mut grad = cx.tensor("grad_output", x.shape, DType::F32)?;
        cx.run(Mse { prediction: x, target: self.target, losses, grad: Some((grad, self.control)) })?;
        cx.run(SumInto { input: losses, total: self.loss, accumulate: false })?;
        self.sum(cx, self.loss)?;
        for (layer, (input, product)) in self.layers.iter().zip(saved).rev() {
            let grad_product = cx.tensor("grad_product", product.shape, DType::F32)?;
            let grad_input = cx.tensor("grad_input", input.shape, DType::F32)?;
            cx.run(ActivationBackward { kind: RELU, input: product, grad_output: grad, grad_input: grad_product })?;
            cx.run(Gemm::wgrad(grad_product, input, layer.grad, false))?;
            self.sum(cx, layer.grad)?; // beside the product below, and the layers before this one
            cx.run(Gemm::dgrad(grad_product, layer.weight, grad_input, Epilogue::None))?;
            grad = grad_input;
        }
        Ok(())
    }

    fn step(&self, cx: &mut StepContext<'_, TrainingPolicy>) -> Result<()> {
        cx.region(TrainingRegion::Once("gradients"), (), |cx, ()| self.gradients(cx))?;
        cx.region(TrainingRegion::Once("update"), (), |cx, ()| {
            // The gradients have the negative learning rate already, as a factor of the loss.
            let add = |Layer { weight, grad }: &Layer| cx.run(Add { a: *weight, b: *grad, output: *weight });
            self.layers.iter().try_for_each(add)
        })
    }
}

/// The mean loss of each step over the samples of all ranks, and the number of graphs.
fn train(device: &Device, ranks: Option<&Rc<dyn Communicator>>, enable: bool) -> Result<(Vec<f32>, usize)> {
    let network = Network::new(device, ranks.cloned())?;
    let compute = device.stream("compute");
    let value = Control { grad_scale: -0.1 / BATCH as f32, ..Control::default() };
    compute.submit(WriteControl { control: network.control, value })?;
    let options = ManagerOptions { enable, ..ManagerOptions::default() };
    let mut manager = CudaGraphManager::new(compute.clone(), options, TrainingPolicy::default())?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let first = (step * BATCH + network.first_sample) * WIDTHS[0];
        let inputs: Vec<f32> = (0..network.input.elements()).map(|i| noise(first + i)).collect();
        let targets: Vec<f32> = inputs.chunks(WIDTHS[0] / WIDTHS[3]).map(|x| (x[0] + x[1]).abs()).collect();
        compute.write(&network.input, &inputs)?;
        compute.write(&network.target, &targets)?;
        manager.step("train", 1, &mut |cx| network.step(cx))?;
        losses.push(compute.read::<f32>(&network.loss)?.wait()?[0] / BATCH as f32);
    }
    Ok((losses, manager.report().graphs.len()))
}

/// A number between -1 and 1.
fn noise(i: usize) -> f32 {
    2.0 * ((i as u32).wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32) - 1.0
}

fn main() -> AnyResult<()> {
    let on_gpus = std::env::args().any(|argument| argument == "cuda");
    if on_gpus && gpu_count() < 2 {
        return Err(format!("two ranks have a GPU each, and {} are visible", gpu_count()).into());
    }
    let (rank, other) = ranks::join()?;
    let device = match on_gpus {
        true => Device::cuda(CudaOptions { ordinal: rank, deterministic: true, tf32: false, check: true })?,
        false => Device::host(HostOptions { check: true, ..HostOptions::default() })?,
    };
    let ranks = match on_gpus {
        true => nccl::communicator(rank, &other)?,
        false => socket::communicator(rank, &other)?,
    };
    let (eager, none) = train(&device, Some(&ranks), false)?;
    let (replayed, graphs) = train(&device, Some(&ranks), true)?;
    assert_eq!(eager, replayed, "graphs change no bit");
    assert_eq!((none, graphs), (0, 2), "the gradients and the update");
    drop(ranks); // before its GPU
    if rank > 0 {
        return Ok(());
    }
    other.wait()?;
    let (alone, _) = train(&device, None, true)?;
    let (first, last) = (eager[0], eager[STEPS - 1]);
    assert!(last < 0.7 * first, "the network learns: {eager:?}");
    let close = eager.iter().zip(&alone).all(|(two, one)| (two - one).abs() < 1e-5 * one);
    assert!(close, "two ranks learn as one with all samples: {eager:?} and {alone:?}");
    println!(
        "all reduce: loss {first} to {last} on two ranks and on one, the same bits eagerly and with {graphs} graphs"
    );
    Ok(())
}
