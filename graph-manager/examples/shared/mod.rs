//! The network that all examples train: linear layers 4096 -> 2048 -> 1024 -> 512 -> 256 with ReLU and dropout, batch
//! 640, mean squared error, SGD. `run` runs an example: eager first, then with graphs; the losses must be the same
//! bits.
//!
//!     cargo run --release -p graph-manager --example NAME            # a small network on the host
//!     cargo run --release -p graph-manager --example NAME -- cuda    # the whole one on a GPU, with times

#![allow(dead_code)] // Each example uses a part of it.

pub mod regions;

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::Instant;

use device::cuda::CudaOptions;
use device::ops::{
    Activation, ActivationBackward, ActivationKind, BiasGrad, ClipScale, Control, Dropout, DropoutSite, Epilogue, Gemm,
    Mse, Rule, SquareSum, Status, Update, UpdateTensors, WriteControl,
};
use device::{Area, DType, Device, HostOptions, Op, Stream, Tensor};
use graph_manager::{
    CaptureAll, CudaGraphManager, Layer, ManagerOptions, Masks, Policy, Pool, RandomState, Report, Result, StepContext,
};

const RELU: ActivationKind = ActivationKind::Relu;
const LEARNING_RATE: f32 = 0.1;
const STEPS: usize = 8;
/// Microbatches in flight, at most: each has random numbers of its own.
const RECORDS: usize = 4;

/// A linear layer, and unless it is the last one ReLU and dropout.
pub struct Block {
    /// The weight, `(out, in)`, f32, as the weight's gradient.
    weight: Tensor,
    weight_grad: Tensor,
    /// The bias, `(out)`, f32, as the bias's gradient.
    bias: Tensor,
    bias_grad: Tensor,
    /// By record of random numbers.
    dropout: Option<[DropoutSite; RECORDS]>,
    /// Nothing needs the gradient of the network's input.
    is_first: bool,
}

impl Block {
    /// The dropout with the random numbers of the microbatch under way.
    fn site<P: Policy>(&self, cx: &StepContext<'_, P>) -> Option<DropoutSite> {
        self.dropout.map(|sites| sites[cx.microbatch().unwrap_or(0) % RECORDS])
    }
}

impl<P: Policy> Layer<P> for Block {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = Option<Tensor>;
    /// The block's input, and the input's product with the weight.
    type Saved = (Tensor, Tensor);

    /// `(batch, in)` to `(batch, out)`.
    fn forward(&self, cx: &mut StepContext<'_, P>, input: Tensor) -> Result<(Tensor, (Tensor, Tensor))> {
        let shape = [input.shape.rows(), self.weight.shape.rows()];
        let product = cx.tensor("product", shape, DType::F32)?;
        cx.run(Gemm::linear(input, self.weight, product, Epilogue::Bias(self.bias)))?;
        let saved = (input, product);
        let Some(site) = self.site(cx) else { return Ok((product, saved)) };
        let output = cx.tensor("output", shape, DType::F32)?;
        cx.run(Activation { kind: RELU, input: product, output })?;
        cx.run(Dropout { input: output, output, site })?;
        Ok((output, saved))
    }

    /// The gradient of the output, `(batch, out)`, to that of the input, `(batch, in)`.
    fn backward(
        &self,
        cx: &mut StepContext<'_, P>,
        (input, product): (Tensor, Tensor),
        grad: Tensor,
    ) -> Result<Option<Tensor>> {
        let mut grad_product = grad;
        if let Some(site) = self.site(cx) {
            grad_product = cx.tensor("grad_product", product.shape, DType::F32)?;
            cx.run(Dropout { input: grad, output: grad_product, site })?;
            let through =
                ActivationBackward { kind: RELU, input: product, grad_output: grad_product, grad_input: grad_product };
            cx.run(through)?;
        }
        cx.run(Gemm::wgrad(grad_product, input, self.weight_grad, true))?;
        cx.run(BiasGrad { grad_output: grad_product, grad_bias: self.bias_grad, accumulate: true })?;
        if self.is_first {
            return Ok(None);
        }
        let grad_input = cx.tensor("grad_input", input.shape, DType::F32)?;
        cx.run(Gemm::dgrad(grad_product, self.weight, grad_input, Epilogue::None))?;
        Ok(Some(grad_input))
    }
}

/// The network's parameters, loss and update. A clone is the same network.
#[derive(Clone)]
pub struct Network {
    pub blocks: Rc<[Block]>,
    /// `(batch, 256)`, f32.
    target: Tensor,
    /// `(batch)`, f32: the losses of the last step's samples.
    losses: Tensor,
    /// u8, a [`Control`].
    pub control: Tensor,
    update: Rc<[Op]>,
}

/// All blocks as one layer.
impl<P: Policy> Layer<P> for Network {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = ();
    /// The values that each block leaves for the block's backward.
    type Saved = Vec<(Tensor, Tensor)>;

    fn forward(&self, cx: &mut StepContext<'_, P>, input: Tensor) -> Result<(Tensor, Vec<(Tensor, Tensor)>)> {
        let (mut x, mut all) = (input, Vec::new());
        for block in self.blocks.iter() {
            let (output, saved) = block.forward(cx, x)?;
            all.push(saved);
            x = output;
        }
        Ok((x, all))
    }

    fn backward(&self, cx: &mut StepContext<'_, P>, saved: Vec<(Tensor, Tensor)>, grad: Tensor) -> Result<()> {
        let mut grad = Some(grad);
        for (block, saved) in self.blocks.iter().zip(saved).rev() {
            let Some(output_grad) = grad else { break };
            grad = block.backward(cx, saved, output_grad)?;
        }
        Ok(())
    }
}

/// One block of the network as a separate layer.
pub struct OneBlock {
    of: Network,
    at: usize,
}

impl<P: Policy> Layer<P> for OneBlock {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = Option<Tensor>;
    type Saved = (Tensor, Tensor);

    fn forward(&self, cx: &mut StepContext<'_, P>, input: Tensor) -> Result<(Tensor, (Tensor, Tensor))> {
        self.of.blocks[self.at].forward(cx, input)
    }

    fn backward(&self, cx: &mut StepContext<'_, P>, saved: (Tensor, Tensor), grad: Tensor) -> Result<Option<Tensor>> {
        self.of.blocks[self.at].backward(cx, saved, grad)
    }
}

impl Network {
    /// Each weight and bias with its gradient.
    pub fn parameters(&self) -> Vec<(Tensor, Tensor)> {
        self.blocks.iter().flat_map(|b| [(b.weight, b.weight_grad), (b.bias, b.bias_grad)]).collect()
    }

    /// The network's blocks as separate layers.
    pub fn each_block(&self) -> Vec<OneBlock> {
        (0..self.blocks.len()).map(|at| OneBlock { of: self.clone(), at }).collect()
    }

    /// An input for each block, of as many rows as the network's `input` has. The values mean nothing.
    pub fn sample_inputs(&self, input: Tensor) -> Vec<Tensor> {
        let rows = input.shape.rows();
        let of_width = |block: &Block| Tensor { shape: [rows, block.weight.shape.last()].into(), ..input };
        self.blocks.iter().map(of_width).collect()
    }

    /// The loss of one of several microbatches. Its prediction is `(batch / microbatches, 256)`.
    pub fn loss_of(&self, microbatch: usize, microbatches: usize, prediction: Tensor, grad: Tensor) -> Op {
        let [target, losses] = [self.target, self.losses].map(|all| rows(all, microbatch, microbatches));
        Mse { prediction, target, losses, grad: Some((grad, self.control)) }.into()
    }

    /// The loss of a prediction, `(batch, 256)`, into `losses`, and the loss's gradient into `grad`.
    pub fn loss(&self, prediction: Tensor, grad: Tensor) -> Op {
        Mse { prediction, target: self.target, losses: self.losses, grad: Some((grad, self.control)) }.into()
    }

    /// The update, and gradients to 0, outside of any region.
    pub fn update(&self, compute: &Stream) -> Result<()> {
        self.update.iter().try_for_each(|op| Ok(compute.submit(op.clone())?))
    }

    /// The update, and gradients to 0, within a region.
    pub fn update_in<P: Policy>(&self, cx: &mut StepContext<'_, P>) -> Result<()> {
        self.update.iter().try_for_each(|op| cx.run(op.clone()))
    }

    /// Forward, loss, backward and update, within a region. `input` is `(batch, 4096)`.
    pub fn whole_step<P: Policy>(&self, cx: &mut StepContext<'_, P>, input: Tensor) -> Result<()> {
        let (prediction, saved) = self.forward(cx, input)?;
        let grad = cx.tensor("grad", prediction.shape, DType::F32)?;
        cx.run(self.loss(prediction, grad))?;
        self.backward(cx, saved, grad)?;
        self.update_in(cx)
    }

    /// The prediction, `(batch, 256)`, without dropout, within a region.
    pub fn predict<P: Policy>(&self, cx: &mut StepContext<'_, P>, input: Tensor) -> Result<Tensor> {
        let mut x = input;
        for block in self.blocks.iter() {
            let output = cx.tensor("output", [x.shape.rows(), block.weight.shape.rows()], DType::F32)?;
            cx.run(Gemm::linear(x, block.weight, output, Epilogue::Bias(block.bias)))?;
            if block.dropout.is_some() {
                cx.run(Activation { kind: RELU, input: output, output })?;
            }
            x = output;
        }
        Ok(x)
    }
}

/// The network with the training data.
pub struct Mlp {
    pub device: Device,
    pub compute: Stream,
    pub network: Network,
    /// `(batch, 4096)`, f32.
    pub input: Tensor,
    /// `(batch, 256)`, f32: for the gradient of the prediction, if the loss is outside of the graphs.
    pub prediction_grad: Tensor,
    pub random: RandomState,
    _areas: Vec<Area>,
}

impl Mlp {
    /// The same network each time.
    pub fn new(device: &Device, batch: usize, widths: &[usize]) -> Result<Mlp> {
        let compute = device.stream("compute");
        let random = RandomState::new(&Pool::new(compute.clone()), 1, const { NonZeroUsize::new(RECORDS).unwrap() })?;
        let mut masks = Vec::new();
        for record in 0..RECORDS {
            masks.push(random.site(record)?);
        }
        let mut areas: Vec<Area> = Vec::new();
        let mut filled = |name: &str, rows: usize, columns: usize, scale: f32| -> Result<Tensor> {
            let tensor = device.allocate_tensor(&mut areas, name, [rows, columns], DType::F32)?;
            let value = |i: usize| scale * ((i as u32).wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5);
            device.upload(&tensor, &(0..rows * columns).map(value).collect::<Vec<f32>>())?;
            Ok(tensor)
        };
        let mut blocks = Vec::new();
        for (at, pair) in widths.windows(2).enumerate() {
            let scale = 2.0 / (pair[0] as f32).sqrt();
            let rate = [0.2, 0.1, 0.1].get(at).copied();
            let sites = |rate| std::array::from_fn(|of| DropoutSite { rate, layer: at as u16, ..masks[of] });
            blocks.push(Block {
                weight: filled("weight", pair[1], pair[0], scale)?,
                weight_grad: filled("weight_grad", pair[1], pair[0], 0.0)?,
                bias: filled("bias", 1, pair[1], 0.1)?,
                bias_grad: filled("bias_grad", 1, pair[1], 0.0)?,
                dropout: rate.map(sites),
                is_first: at == 0,
            });
        }
        let (first, last) = (widths[0], widths[widths.len() - 1]);
        let input = filled("input", batch, first, 2.0)?;
        let target = filled("target", batch, last, 2.0)?;
        let losses = filled("losses", batch, 1, 0.0)?;
        let prediction_grad = filled("prediction_grad", batch, last, 0.0)?;
        let square_sum = filled("square_sum", 1, 1, 0.0)?;
        let control = device.allocate_tensor(&mut areas, "control", [size_of::<Control>()], DType::U8)?;
        let status = device.allocate_tensor(&mut areas, "status", [size_of::<Status>()], DType::U8)?;
        device.zero(&status)?;
        let value = Control { learning_rate: LEARNING_RATE, grad_scale: 1.0 / batch as f32, ..Control::default() };
        compute.submit(WriteControl { control, value })?;
        let parts = || blocks.iter().flat_map(|b| [(b.weight, b.weight_grad), (b.bias, b.bias_grad)]);
        let tensors = |(master, grad)| UpdateTensors {
            master,
            compute: None,
            grad,
            state: [].into(),
            weight_decay: 0.0,
            lr_multiplier: 1.0,
        };
        let mut update: Vec<Op> = vec![
            SquareSum { inputs: parts().map(|(_, grad)| grad).collect(), total: square_sum }.into(),
            ClipScale { square_sum, control, status }.into(),
            Update { rule: Rule::Sgd { momentum: 0.0 }, tensors: parts().map(tensors).collect(), control, status }
                .into(),
        ];
        // The next step adds to gradients of 0.
        update.extend(parts().map(|(_, grad)| Op::from(device::ops::Fill { output: grad, value: 0.0 })));
        let network = Network { blocks: blocks.into(), target, losses, control, update: update.into() };
        Ok(Mlp { device: device.clone(), compute, network, input, prediction_grad, random, _areas: areas })
    }

    /// New random numbers for all microbatches of a step.
    pub fn draw(&mut self) -> Result<Vec<Masks>> {
        (0..RECORDS).map(|record| self.random.draw(record)).collect()
    }
}

/// The rows of `all`, `(batch, columns)`, that a microbatch has.
pub fn rows(all: Tensor, microbatch: usize, microbatches: usize) -> Tensor {
    let (batch, columns) = (all.shape.rows(), all.shape.last());
    all.reshape([microbatches, batch / microbatches, columns]).at(microbatch)
}

/// A way to train the network. Each example shows one.
pub trait Way {
    /// One training step. It does not wait for the device.
    fn step(&mut self, mlp: &Mlp) -> Result<()>;
    /// The report on the captured graphs.
    fn reports(&self) -> Vec<Report>;
}

/// Without graphs: the same list, submitted anew each step.
struct Eager(CudaGraphManager<CaptureAll<&'static str>>);

impl Way for Eager {
    fn step(&mut self, mlp: &Mlp) -> Result<()> {
        self.0.step("train", 1, &mut |cx| cx.region("step", (), |cx, ()| mlp.network.whole_step(cx, mlp.input)))
    }

    fn reports(&self) -> Vec<Report> {
        vec![self.0.report()]
    }
}

/// Runs an example: trains eagerly and in the way that `make` makes, and compares. On a GPU it also takes the times.
pub fn run<W: Way>(name: &str, make: impl Fn(&Mlp) -> Result<W>) -> Result<()> {
    let eager = |mlp: &Mlp| {
        let off = ManagerOptions { enable: false, ..ManagerOptions::default() };
        Ok(Eager(CudaGraphManager::new(mlp.compute.clone(), off, CaptureAll::default())?))
    };
    run_beside(name, eager, make)
}

/// The device that the command line names, and whether it is a GPU.
pub fn device() -> Result<(Device, bool)> {
    let on_gpu = std::env::args().nth(1).as_deref() == Some("cuda");
    let options = CudaOptions { ordinal: 0, deterministic: false, tf32: true, check: false };
    Ok((if on_gpu { Device::cuda(options)? } else { Device::host(HostOptions::default())? }, on_gpu))
}

/// The whole network for a GPU, a small one for the host.
pub fn mlp(device: &Device, on_gpu: bool) -> Result<Mlp> {
    match on_gpu {
        true => Mlp::new(device, 640, &[4096, 2048, 1024, 512, 256]),
        false => Mlp::new(device, 16, &[64, 32, 32, 16, 8]),
    }
}

/// As [`run`], beside another eager way.
pub fn run_beside<E: Way, W: Way>(
    name: &str,
    eager: impl Fn(&Mlp) -> Result<E>,
    make: impl Fn(&Mlp) -> Result<W>,
) -> Result<()> {
    let (device, on_gpu) = device()?;
    let new = || mlp(&device, on_gpu);
    let mut other = new()?;
    let mut plain = eager(&other)?;
    let expected = steps(&mut other, &mut plain)?;
    let before = device.allocated_bytes();
    let mut mlp = new()?;
    let mut way = make(&mlp)?;
    let losses = steps(&mut mlp, &mut way)?;
    let memory = device.allocated_bytes() - before;
    for report in way.reports() {
        println!("{report}");
    }
    println!("losses {losses:?}");
    assert_eq!(losses, expected, "the losses of the eager run");
    println!("{name}: {} graphs, the losses of the eager run to the bit", graphs(&way));
    println!("{name}: {:.1} MiB, of weights, gradients, data and what is planned", memory as f64 / f64::from(1 << 20));
    if on_gpu {
        let (issue, wall) = times(&mlp, &mut way)?;
        let (eager_issue, eager_wall) = times(&other, &mut plain)?;
        println!("eager: host {eager_issue:.1} us, wall {eager_wall:.1} us a step");
        println!("{name}: host {issue:.1} us, wall {wall:.1} us a step");
    }
    Ok(())
}

fn graphs(way: &impl Way) -> usize {
    way.reports().iter().map(|report| report.graphs.len()).sum()
}

/// The mean loss of each step.
fn steps(mlp: &mut Mlp, way: &mut impl Way) -> Result<Vec<f32>> {
    let mut means = Vec::new();
    for _ in 0..STEPS {
        let _masks = mlp.draw()?;
        way.step(mlp)?;
        let losses = mlp.device.download::<f32>(&mlp.network.losses)?;
        means.push(losses.iter().sum::<f32>() / losses.len() as f32);
    }
    Ok(means)
}

/// Microseconds a step: of the host alone on an idle GPU, and in all. No draws are timed, so steps repeat their masks.
fn times(mlp: &Mlp, way: &mut impl Way) -> Result<(f64, f64)> {
    let micros = |since: Instant| since.elapsed().as_secs_f64() * 1e6;
    let mut issue: Vec<f64> = Vec::new();
    for _ in 0..50 {
        mlp.device.synchronize()?;
        let began = Instant::now();
        way.step(mlp)?;
        issue.push(micros(began));
    }
    issue.sort_by(f64::total_cmp);
    Ok((issue[issue.len() / 2], wall(&mlp.device, || way.step(mlp))?))
}

/// Microseconds of a step on the device, in many.
pub fn wall(device: &Device, mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    device.synchronize()?;
    let began = Instant::now();
    (0..500).try_for_each(|_| step())?;
    device.synchronize()?;
    Ok(began.elapsed().as_secs_f64() * 1e6 / 500.0)
}
