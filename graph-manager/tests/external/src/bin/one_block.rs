//! Only the second block is captured, its forward and its backward; all else runs eagerly, as with
//! `torch.cuda.make_graphed_callables` of one submodule.

use std::fmt::{Display, Formatter};

use device::DType;
use external::{Training, report};
use graph_manager::{CudaGraphManager, Layer, ManagerOptions, Policy, Result, StepContext};

/// The pieces of a step. Blocks are counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Region {
    Forward(usize),
    Loss,
    Backward(usize),
    Update,
}

impl Display for Region {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Region::Forward(block) => write!(f, "forward of block {block}"),
            Region::Loss => write!(f, "loss"),
            Region::Backward(block) => write!(f, "backward of block {block}"),
            Region::Update => write!(f, "update"),
        }
    }
}

struct OnlyTheSecond;

impl Policy for OnlyTheSecond {
    type Region = Region;
    type Mode = &'static str;

    fn captured(&self, region: Region) -> std::result::Result<(), &'static str> {
        match region {
            Region::Forward(1) | Region::Backward(1) => Ok(()),
            _ => Err("only the second block is captured"),
        }
    }
}

fn step(cx: &mut StepContext<'_, OnlyTheSecond>, training: &Training) -> Result<()> {
    let Training { network, input, target, losses, .. } = training;
    let (mut x, mut all) = (*input, Vec::new());
    for (at, block) in network.blocks.iter().enumerate() {
        let (output, saved) = cx.region(Region::Forward(at), x, |cx, x| block.forward(cx, x))?;
        all.push(saved);
        x = output;
    }
    let mut grad = cx.region(Region::Loss, x, |cx, prediction| {
        let grad = cx.tensor("grad", prediction.shape, DType::F32)?;
        cx.run(network.loss(prediction, *target, *losses, grad))?;
        Ok(grad)
    })?;
    for (at, (block, saved)) in network.blocks.iter().zip(all).enumerate().rev() {
        grad = cx.region(Region::Backward(at), grad, |cx, grad| block.backward(cx, saved, grad))?;
    }
    cx.region(Region::Update, (), |cx, ()| network.update().try_for_each(|op| cx.run(op)))
}

/// The losses, and the number of graphs.
fn train(enable: bool) -> Result<(Vec<f32>, usize)> {
    let mut training = Training::new()?;
    let options = ManagerOptions { enable, ..ManagerOptions::default() };
    let mut manager = CudaGraphManager::in_pool(&training.pool, options, OnlyTheSecond)?;
    let losses = training.run(|training, _| manager.step("train", 1, &mut |cx| step(cx, training)))?;
    Ok((losses, manager.report().graphs.len()))
}

fn main() -> Result<()> {
    let (eager, none) = train(false)?;
    let (replayed, graphs) = train(true)?;
    assert_eq!((none, graphs), (0, 2), "a forward and a backward");
    report("one block", &eager, &replayed, graphs);
    Ok(())
}
