//! The common part of the programs `whole_iteration`, `ahead_of_time` and `one_block`: a network of three blocks, each
//! a linear layer with ReLU and dropout, its data, and the loop over steps.

use std::num::NonZeroUsize;

use graph_manager::device::cuda::CudaOptions;
use graph_manager::device::ops::{
    Activation, ActivationBackward, ActivationKind, BiasGrad, ClipScale, Control, Dropout, DropoutSite,
    Epilogue, Gemm, Mse, Rule, SquareSum, Status, Update, UpdateTensors, WriteControl,
};
use graph_manager::device::{Area, DType, Device, HostOptions, Op, Tensor};
use graph_manager::{Layer, Policy, Pool, RandomState, Result, StepContext};

pub const STEPS: usize = 24;
const BATCH: usize = 32;
const WIDTHS: [usize; 4] = [16, 32, 32, 4];
const RELU: ActivationKind = ActivationKind::Relu;

/// `dropout(relu(input @ weight^T + bias))`.
#[derive(Clone, Copy)]
pub struct Block {
    /// `(out, in)`, as its gradient.
    weight: Tensor,
    weight_grad: Tensor,
    /// `(out)`, as its gradient.
    bias: Tensor,
    bias_grad: Tensor,
    dropout: Option<DropoutSite>,
}

impl<P: Policy> Layer<P> for Block {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = Tensor;
    /// The input, and its product with the weight.
    type Saved = (Tensor, Tensor);

    fn forward(&self, cx: &mut StepContext<'_, P>, input: Tensor) -> Result<(Tensor, (Tensor, Tensor))> {
        let shape = [input.shape.rows(), self.weight.shape.rows()];
        let product = cx.tensor("product", shape, DType::F32)?;
        let output = cx.tensor("output", shape, DType::F32)?;
        cx.run(Gemm::linear(input, self.weight, product, Epilogue::Bias(self.bias)))?;
        cx.run(Activation { kind: RELU, input: product, output })?;
        if let Some(site) = self.dropout {
            cx.run(Dropout { input: output, output, site })?;
        }
        Ok((output, (input, product)))
    }

    fn backward(
        &self,
        cx: &mut StepContext<'_, P>,
        (input, product): (Tensor, Tensor),
        mut grad: Tensor,
    ) -> Result<Tensor> {
        let grad_product = cx.tensor("grad_product", product.shape, DType::F32)?;
        let grad_input = cx.tensor("grad_input", input.shape, DType::F32)?;
        if let Some(site) = self.dropout {
            cx.run(Dropout { input: grad, output: grad_product, site })?;
            grad = grad_product;
        }
        cx.run(ActivationBackward { kind: RELU, input: product, grad_output: grad, grad_input: grad_product })?;
        cx.run(Gemm::wgrad(grad_product, input, self.weight_grad, false))?;
        cx.run(BiasGrad { grad_output: grad_product, grad_bias: self.bias_grad, accumulate: false })?;
        cx.run(Gemm::dgrad(grad_product, self.weight, grad_input, Epilogue::None))?;
        Ok(grad_input)
    }
}

/// Parameters, loss and update. A clone has the same memory.
#[derive(Clone)]
pub struct Network {
    pub blocks: [Block; 3],
    control: Tensor,
    update: Vec<Op>,
}

/// All blocks as one layer.
impl<P: Policy> Layer<P> for Network {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = Tensor;
    type Saved = [(Tensor, Tensor); 3];

    fn forward(&self, cx: &mut StepContext<'_, P>, x: Tensor) -> Result<(Tensor, [(Tensor, Tensor); 3])> {
        let [first, second, third] = &self.blocks;
        let (x, of_first) = first.forward(cx, x)?;
        let (x, of_second) = second.forward(cx, x)?;
        let (x, of_third) = third.forward(cx, x)?;
        Ok((x, [of_first, of_second, of_third]))
    }

    fn backward(
        &self,
        cx: &mut StepContext<'_, P>,
        saved: [(Tensor, Tensor); 3],
        grad: Tensor,
    ) -> Result<Tensor> {
        let mut blocks = self.blocks.iter().zip(saved).rev();
        blocks.try_fold(grad, |grad, (block, saved)| block.backward(cx, saved, grad))
    }
}

impl Network {
    /// Forward, loss, backward and update, within a region.
    pub fn step<P: Policy>(&self, cx: &mut StepContext<'_, P>, [input, target, losses]: [Tensor; 3]) -> Result<()> {
        let (prediction, saved) = self.forward(cx, input)?;
        let grad = cx.tensor("grad", prediction.shape, DType::F32)?;
        cx.run(self.loss(prediction, target, losses, grad))?;
        self.backward(cx, saved, grad)?;
        self.update().try_for_each(|op| cx.run(op))
    }

    /// The mean squared error of each sample into `losses`, and the gradient of their mean into `grad`.
    pub fn loss(&self, prediction: Tensor, target: Tensor, losses: Tensor, grad: Tensor) -> Op {
        Mse { prediction, target, losses, grad: Some((grad, self.control)) }.into()
    }

    /// SGD. The norm of the gradients comes first: the update takes its factor, and is skipped if it is not finite.
    pub fn update(&self) -> impl Iterator<Item = Op> {
        self.update.clone().into_iter()
    }

    /// The same weights without dropout.
    pub fn without_dropout(&self) -> Network {
        Network { blocks: self.blocks.map(|block| Block { dropout: None, ..block }), ..self.clone() }
    }
}

/// A network that is trained, with the buffers that hold a step's batch.
pub struct Training {
    pub pool: Pool,
    pub network: Network,
    /// `(batch, 16)` and `(batch, 4)`: filled before each step.
    pub input: Tensor,
    pub target: Tensor,
    /// `(batch)`: the losses of the last step.
    pub losses: Tensor,
    /// `(batch, 4)`: the gradient of the prediction, if the loss is outside of graphs.
    pub grad: Tensor,
    random: RandomState,
    _areas: Vec<Area>,
}

impl Training {
    /// The same network each time: on the host, or on a GPU with the argument `cuda`.
    pub fn new() -> Result<Training> {
        let device = match std::env::args().nth(1).as_deref() {
            Some("cuda") => Device::cuda(CudaOptions { ordinal: 0, deterministic: true, tf32: false, check: true })?,
            _ => Device::host(HostOptions { check: true, ..HostOptions::default() })?,
        };
        let pool = Pool::new(device.stream("compute"));
        let random = RandomState::new(&pool, 1, NonZeroUsize::MIN)?;
        let masks = random.site(0)?;
        let mut areas = Vec::new();
        let mut tensor = |name: &str, rows: usize, columns: usize, scale: f32| -> Result<Tensor> {
            let tensor = device.allocate_tensor(&mut areas, name, [rows, columns], DType::F32)?;
            device.upload(&tensor, &noise(0, rows * columns, scale))?;
            Ok(tensor)
        };
        let mut block = |at: usize| -> Result<Block> {
            let (of, to) = (WIDTHS[at], WIDTHS[at + 1]);
            let site = DropoutSite { rate: 0.05, layer: at as u16, ..masks };
            Ok(Block {
                weight: tensor("weight", to, of, 3.0 / (of as f32).sqrt())?,
                weight_grad: tensor("weight_grad", to, of, 0.0)?,
                bias: tensor("bias", 1, to, 0.1)?,
                bias_grad: tensor("bias_grad", 1, to, 0.0)?,
                dropout: (at < 2).then_some(site),
            })
        };
        let blocks = [block(0)?, block(1)?, block(2)?];
        let [input, target] = [tensor("input", BATCH, WIDTHS[0], 0.0)?, tensor("target", BATCH, WIDTHS[3], 0.0)?];
        let [losses, grad] = [tensor("losses", BATCH, 1, 0.0)?, tensor("grad", BATCH, WIDTHS[3], 0.0)?];
        let square_sum = tensor("square_sum", 1, 1, 0.0)?;
        let control = device.allocate_tensor(&mut areas, "control", [size_of::<Control>()], DType::U8)?;
        let status = device.allocate_tensor(&mut areas, "status", [size_of::<Status>()], DType::U8)?;
        device.zero(&status)?;
        let value = Control { learning_rate: 0.5, grad_scale: 1.0 / BATCH as f32, ..Control::default() };
        pool.compute().submit(WriteControl { control, value })?;
        let parameters: Vec<(Tensor, Tensor)> =
            blocks.iter().flat_map(|b| [(b.weight, b.weight_grad), (b.bias, b.bias_grad)]).collect();
        let tensors = |&(master, grad)| UpdateTensors { master, compute: None, grad, state: [].into(), weight_decay: 0.0, lr_multiplier: 1.0 };
        let rule = Rule::Sgd { momentum: 0.0 };
        let update = vec![
            SquareSum { inputs: parameters.iter().map(|(_, grad)| *grad).collect(), total: square_sum }.into(),
            ClipScale { square_sum, control, status }.into(),
            Update { rule, tensors: parameters.iter().map(tensors).collect(), control, status }.into(),
        ];
        let network = Network { blocks, control, update };
        Ok(Training { pool, network, input, target, losses, grad, random, _areas: areas })
    }

    /// Trains, and returns the mean loss of each step. `step` gets the number of the step.
    pub fn run(&mut self, mut step: impl FnMut(&Training, usize) -> Result<()>) -> Result<Vec<f32>> {
        let mut means = Vec::new();
        for number in 0..STEPS {
            let inputs = noise(number, BATCH * WIDTHS[0], 2.0);
            let targets: Vec<f32> = inputs.chunks(WIDTHS[0] / WIDTHS[3]).map(|x| (x[0] + x[1]).abs()).collect();
            self.pool.compute().write(&self.input, &inputs)?;
            self.pool.compute().write(&self.target, &targets)?;
            let _masks = self.random.draw(0)?;
            step(self, number)?;
            means.push(self.mean(self.losses)?);
        }
        Ok(means)
    }

    /// The mean of values on the device. It waits for them.
    pub fn mean(&self, values: Tensor) -> Result<f32> {
        let values = self.pool.compute().read::<f32>(&values)?.wait()?;
        Ok(values.iter().sum::<f32>() / values.len() as f32)
    }
}

/// Numbers between `-scale / 2` and `scale / 2`.
fn noise(seed: usize, count: usize, scale: f32) -> Vec<f32> {
    let hash = |i: usize| ((seed * count + i) as u32).wrapping_mul(2_654_435_761);
    (0..count).map(|i| scale * (hash(i) as f32 / u32::MAX as f32 - 0.5)).collect()
}

/// Holds that training with graphs gives the bits of eager training, and that the network learns.
pub fn report(name: &str, eager: &[f32], replayed: &[f32], graphs: usize) {
    assert_eq!(eager, replayed, "graphs change no bit");
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    let (first, last) = (mean(&eager[..4]), mean(&eager[STEPS - 4..]));
    assert!(last < 0.7 * first, "the network learns: {eager:?}");
    println!("{name}: loss {first} to {last} with {graphs} graphs");
}
