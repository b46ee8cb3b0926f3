//! A toy model and its regions. Its sums show any misplaced byte.

use std::collections::HashMap;
use std::fmt::{Display, Formatter};
use std::rc::Rc;

use device::cuda::CudaOptions;
use device::ops::{Add, Copy, Fill};
use device::{Area, DType, Device, HostOptions, Stream, Tensor};
use graph_manager::{
    CudaGraphManager, Instance, ManagerOptions, Piece, PieceEntry, Policy, Result, SideStream, StepPass,
};

pub const LAYERS: usize = 3;
pub const WIDTH: usize = 64;

pub type Manager = CudaGraphManager<ToyPolicy>;
pub type StepContext<'m> = graph_manager::StepContext<'m, ToyPolicy>;

/// The toy's regions; layers and microbatches are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Region {
    Step,
    Begin,
    Inputs { microbatch: usize },
    Forward { layer: usize, microbatch: usize },
    Backward { layer: usize, microbatch: usize },
    WeightGrads { layer: usize, microbatch: usize },
    Optimizer,
}

impl Display for Region {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Region::Step => write!(f, "step"),
            Region::Begin => write!(f, "begin"),
            Region::Inputs { microbatch } => write!(f, "inputs of microbatch {microbatch}"),
            Region::Forward { layer, microbatch } => write!(f, "forward of layer {layer}, microbatch {microbatch}"),
            Region::Backward { layer, microbatch } => write!(f, "backward of layer {layer}, microbatch {microbatch}"),
            Region::WeightGrads { layer, microbatch } => {
                write!(f, "weight gradients of layer {layer}, microbatch {microbatch}")
            }
            Region::Optimizer => write!(f, "optimizer"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    Train,
    Evaluate,
}

/// How the toy's regions are captured.
#[derive(Clone, Copy, Debug, Default)]
pub struct ToyPolicy {
    /// The step is one graph; else each layer's forward and backward.
    pub whole: bool,
    pub optimizer_is_eager: bool,
    /// Backwards leave their sums to regions of their own.
    pub splits_backward: bool,
}

impl Policy for ToyPolicy {
    type Region = Region;
    type Mode = Mode;

    fn captured(&self, region: Region) -> std::result::Result<(), &'static str> {
        match region {
            Region::Step if !self.whole => Err("it contains regions"),
            Region::Begin => Err("it is one fill"),
            Region::Inputs { .. } => Err("it reads another address for each microbatch"),
            Region::Optimizer if self.optimizer_is_eager => Err("it is asked to be eager"),
            _ => Ok(()),
        }
    }

    fn instance(&self, region: Region) -> Option<Instance<Region>> {
        let (microbatch, first) = match region {
            Region::Inputs { microbatch } => (microbatch, Region::Inputs { microbatch: 0 }),
            Region::Forward { layer, microbatch } => (microbatch, Region::Forward { layer, microbatch: 0 }),
            Region::Backward { layer, microbatch } => (microbatch, Region::Backward { layer, microbatch: 0 }),
            Region::WeightGrads { layer, microbatch } => (microbatch, Region::WeightGrads { layer, microbatch: 0 }),
            Region::Step | Region::Begin | Region::Optimizer => return None,
        };
        Some(Instance { microbatch, first, chunk: 0 })
    }

    fn kind(&self, region: Region) -> String {
        region.to_string().split(" of ").next().unwrap_or_default().into()
    }
}

/// Keeps operations of backwards that write outside of the step's buffers, for the regions of weight gradients.
#[derive(Default)]
pub struct LaterSums(HashMap<(usize, usize), Vec<PieceEntry>>);

impl StepPass<Region> for LaterSums {
    fn name(&self) -> &'static str {
        "later sums"
    }

    fn apply(&mut self, piece: &mut Piece<Region>) {
        match piece.region() {
            Region::Backward { layer, microbatch } => {
                let sums = piece.entries.extract_if(.., |entry| entry.writes_outside());
                self.0.entry((layer, microbatch)).or_default().extend(sums);
            }
            Region::WeightGrads { layer, microbatch } => {
                piece.entries.extend(self.0.remove(&(layer, microbatch)).unwrap_or_default());
            }
            _ => {}
        }
    }
}

/// `forward` triples its input, `backward` adds the saved input to the gradient, and the gradient to its layer's sum.
pub struct Toy {
    pub device: Device,
    pub compute: Stream,
    pub side: Rc<SideStream>,
    pub policy: ToyPolicy,
    /// `(microbatches, WIDTH)`.
    pub inputs: Tensor,
    /// `(LAYERS, WIDTH)`.
    pub sums: Tensor,
    _areas: Vec<Area>,
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

/// Fails unless an error has these words and a fix.
#[track_caller]
pub fn assert_refused<T>(result: Result<T>, words: &str) {
    let Err(error) = result else { panic!("it was not refused: {words}") };
    let error = error.to_string();
    assert!(error.contains(words) && error.contains("Fix: "), "{error}");
}

pub fn toy() -> Toy {
    toy_with(ToyPolicy::default())
}

pub fn toy_with(policy: ToyPolicy) -> Toy {
    let device = checked_device();
    let mut areas = Vec::new();
    let inputs = device.allocate_tensor(&mut areas, "inputs", [16, WIDTH], DType::F32).unwrap();
    let sums = device.allocate_tensor(&mut areas, "sums", [LAYERS, WIDTH], DType::F32).unwrap();
    let values: Vec<f32> = (0..16 * WIDTH).map(|i| (i as f32).sin()).collect();
    device.upload(&inputs, &values).unwrap();
    let (compute, side) = (device.stream("compute"), SideStream::new(&device, "aside"));
    Toy { device, compute, side, policy, inputs, sums, _areas: areas }
}

impl Toy {
    /// `(WIDTH)`, the first layer's sum.
    pub fn sum(&self) -> Tensor {
        self.sums.at(0)
    }

    /// The output, and the input of each layer.
    fn forward(&self, cx: &mut StepContext<'_>, microbatch: usize) -> Result<(Tensor, Vec<Tensor>)> {
        let mut inputs = Vec::new();
        let mut x = cx.region(Region::Inputs { microbatch }, (), |cx, ()| {
            let x = cx.tensor("x", [WIDTH], DType::F32)?;
            cx.run(Copy { input: self.inputs.at(microbatch), output: x })?;
            Ok(x)
        })?;
        for layer in 0..LAYERS {
            let (output, input) = cx.region(Region::Forward { layer, microbatch }, x, |cx, x| {
                let scratch = cx.tensor("scratch", [WIDTH], DType::F32)?;
                let y = cx.tensor("y", [WIDTH], DType::F32)?;
                cx.run(Add { a: x, b: x, output: scratch })?;
                cx.run(Add { a: scratch, b: x, output: y })?;
                Ok((y, x))
            })?;
            inputs.push(input);
            x = output;
        }
        Ok((x, inputs))
    }

    fn backward(&self, cx: &mut StepContext<'_>, microbatch: usize, y: Tensor, inputs: &[Tensor]) -> Result<()> {
        let mut grad = y;
        for layer in (0..LAYERS).rev() {
            grad = cx.region(Region::Backward { layer, microbatch }, grad, |cx, grad| {
                let out = cx.tensor("grad", [WIDTH], DType::F32)?;
                cx.run(Add { a: grad, b: inputs[layer], output: out })?;
                let sum = self.sums.at(layer);
                // The only microbatch of a step overwrites the sum.
                if cx.mode() == Mode::Train && cx.microbatches() == 1 {
                    cx.run(Copy { input: out, output: sum })?;
                } else {
                    cx.run(Add { a: sum, b: out, output: sum })?;
                }
                Ok(out)
            })?;
        }
        Ok(())
    }

    fn weight_grads(&self, cx: &mut StepContext<'_>, microbatch: usize) -> Result<()> {
        let layers = if self.policy.splits_backward { LAYERS } else { 0 };
        (0..layers).rev().try_for_each(|layer| cx.region(Region::WeightGrads { layer, microbatch }, (), |_, ()| Ok(())))
    }

    /// One step with `ahead` forwards before the first backward, as a pipeline stage has them. Sums of their own regions run
    /// one microbatch late.
    pub fn step(&self, cx: &mut StepContext<'_>, ahead: usize) -> Result<()> {
        if self.policy.splits_backward {
            cx.set_passes(vec![Box::new(LaterSums::default())]);
        }
        cx.region(Region::Step, (), |cx, ()| {
            cx.region(Region::Begin, (), |cx, ()| cx.run(Fill { output: self.sums, value: 0.0 }))?;
            let mut outputs = Vec::new();
            let microbatches = cx.microbatches();
            for m in 0..=microbatches + ahead {
                if m < microbatches {
                    outputs.push(self.forward(cx, m)?);
                }
                if m >= ahead && m - ahead < microbatches {
                    let (output, inputs) = &outputs[m - ahead];
                    self.backward(cx, m - ahead, *output, inputs)?;
                }
                if m > ahead {
                    self.weight_grads(cx, m - ahead - 1)?;
                }
            }
            cx.region(Region::Optimizer, (), |_, ()| Ok(()))
        })
    }

    pub fn manager(&self, options: ManagerOptions) -> Manager {
        CudaGraphManager::new(self.compute.clone(), options, self.policy).unwrap()
    }

    /// A training step of the manager.
    pub fn train(&self, manager: &mut Manager, microbatches: usize, ahead: usize) -> Result<()> {
        manager.step(Mode::Train, microbatches, &mut |cx| self.step(cx, ahead))
    }

    /// Does the steps of one microbatch with replays in several orders. Fails unless each leaves that number everywhere in a
    /// tensor.
    #[track_caller]
    pub fn assert_gives(
        &self,
        manager: &mut Manager,
        mut step: impl FnMut(&mut StepContext<'_>) -> Result<()>,
        tensor: Tensor,
        value: f32,
    ) {
        for seed in 0..8 {
            self.device.shuffle_replays(Some(seed));
            manager.step(Mode::Train, 1, &mut step).unwrap();
            assert_eq!(self.device.download::<f32>(&tensor).unwrap(), vec![value; WIDTH]);
        }
    }

    /// The sums after each of six steps.
    pub fn run(&self, options: ManagerOptions, microbatches: usize, ahead: usize) -> Vec<Vec<f32>> {
        let mut manager = self.manager(options);
        let step = |_| {
            self.train(&mut manager, microbatches, ahead).unwrap();
            self.device.download(&self.sums).unwrap()
        };
        (0..6).map(step).collect()
    }
}
