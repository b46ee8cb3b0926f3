//! A step that makes no update when the gradient is not finite, as with a loss scale that was too large. The device
//! decides: the host does not look at the gradient, and the graph stays the same. There are two ways, and both leave
//! the same bits. With `when` the update is the body of a conditional node, and does not run. With `Select` it runs
//! into a tensor of its own. Then the weights become that tensor, or stay.
//!
//!     cargo run --release -p graph-manager --example skipped_update            # a small network on the host
//!     cargo run --release -p graph-manager --example skipped_update -- cuda    # the whole one on a GPU, with times

mod shared;

use std::num::NonZeroUsize;

use device::ops::{Add, ClipScale, Condition, Control, Fill, Select, SquareSum, Status, WriteControl};
use device::{Area, DType, Tensor};
use graph_manager::{ByHand, Capture, Layer, Pool, Result, StepContext};
use shared::Mlp;

const STEPS: usize = 8;

/// The steps whose gradient overflows.
const OVERFLOWS: [usize; 3] = [2, 5, 6];

/// How an update is skipped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Skip {
    When,
    Select,
}

/// The network with a special training step: `weight += gradient`. The gradient has the factor `-learning rate`.
struct Training {
    mlp: Mlp,
    /// From the network's input.
    train: Capture<Tensor, ()>,
    _areas: Vec<Area>,
}

impl Training {
    fn new(mlp: Mlp, skip: Skip) -> Result<Training> {
        let mut areas = Vec::new();
        let status = mlp.device.allocate_tensor(&mut areas, "status", [size_of::<Status>()], DType::U8)?;
        mlp.device.zero(&status)?;
        let network = mlp.network.clone();
        let train = Capture::new(&Pool::new(mlp.compute.clone()), "train", 1, NonZeroUsize::MIN, move |cx, input| {
            let (prediction, saved) = network.forward(cx, input)?;
            let grad = cx.tensor("grad", prediction.shape, DType::F32)?;
            cx.run(network.loss(prediction, grad))?;
            network.backward(cx, saved, grad)?;
            let parameters = network.parameters();
            let square_sum = cx.tensor("square_sum", [1], DType::F32)?;
            cx.run(SquareSum { inputs: parameters.iter().map(|(_, grad)| *grad).collect(), total: square_sum })?;
            cx.run(ClipScale { square_sum, control: network.control, status })?;
            update(cx, skip, Status::finite_flag(status), &parameters)?;
            parameters.iter().try_for_each(|(_, grad)| cx.run(Fill { output: *grad, value: 0.0 }))
        })?;
        Ok(Training { mlp, train, _areas: areas })
    }

    /// A step. Its gradient may overflow.
    fn step(&mut self, overflows: bool) -> Result<()> {
        let factor = if overflows { f32::MAX } else { -0.1 / self.mlp.input.shape.rows() as f32 };
        let value = Control { grad_scale: factor, ..Control::default() };
        self.mlp.compute.submit(WriteControl { control: self.mlp.network.control, value })?;
        let _masks = self.mlp.random.draw(0)?;
        self.train.run(self.mlp.input).map(drop)
    }

    /// All weights, bit by bit.
    fn weights(&self) -> Result<Vec<u32>> {
        let parameters = self.mlp.network.parameters();
        let values = parameters.iter().map(|(weight, _)| Ok(self.mlp.device.download::<f32>(weight)?));
        Ok(values.collect::<Result<Vec<_>>>()?.concat().into_iter().map(f32::to_bits).collect())
    }
}

/// Adds each gradient to its weight, if the flag says so.
fn update(cx: &mut StepContext<'_, ByHand>, skip: Skip, flag: Tensor, parameters: &[(Tensor, Tensor)]) -> Result<()> {
    match skip {
        Skip::When => cx.when(flag, |body| {
            let mut each = parameters.iter();
            each.try_for_each(|&(weight, grad)| body.run(Add { a: weight, b: grad, output: weight }))
        }),
        Skip::Select => parameters.iter().try_for_each(|&(weight, grad)| {
            let updated = cx.tensor("updated", weight.shape, DType::F32)?;
            cx.run(Add { a: weight, b: grad, output: updated })?;
            cx.run(Select { condition: Condition::Flag(flag), a: updated, b: weight, output: weight })
        }),
    }
}

pub(crate) fn main() -> Result<()> {
    let (device, on_gpu) = shared::device()?;
    let mut both = Vec::new();
    for skip in [Skip::When, Skip::Select] {
        let mut training = Training::new(shared::mlp(&device, on_gpu)?, skip)?;
        let mut before = training.weights()?;
        for step in 0..STEPS {
            training.step(OVERFLOWS.contains(&step))?;
            let after = training.weights()?;
            assert_eq!(before == after, OVERFLOWS.contains(&step), "step {step} by {skip:?}");
            before = after;
        }
        println!("{}", training.train.report());
        both.push((skip, training, before));
    }
    assert!(both[0].2 == both[1].2, "the two ways left other weights");
    println!(
        "skipped update: {} of {STEPS} steps, the same weights to the bit by `when` and by `Select`",
        OVERFLOWS.len()
    );
    if on_gpu {
        for (skip, training, _) in &mut both {
            for overflows in [false, true] {
                let micros = shared::wall(&device, || training.step(overflows))?;
                println!("{skip:?}: {micros:.1} us a step{}", if overflows { ", skipped" } else { "" });
            }
        }
    }
    Ok(())
}
