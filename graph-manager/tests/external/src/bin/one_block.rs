//! Only the second block is captured, its forward and its backward; all else runs eagerly, as with
//! `torch.cuda.make_graphed_callables` of one submodule.

use graph_manager::device::DType;
use external::{Training, report};
use graph_manager::{
    CudaGraphManager, Layer, ManagerOptions, Result, StepContext, TrainingPolicy, TrainingRegion,
};

fn only_the_second() -> TrainingPolicy {
    TrainingPolicy::choosing(|region| match region {
        TrainingRegion::Layer { call, .. } if call.layer == 1 => Ok(()),
        _ => Err("only the second block is captured"),
    })
}

fn step(cx: &mut StepContext<'_, TrainingPolicy>, training: &Training) -> Result<()> {
    let Training { network, input, target, losses, .. } = training;
    let (mut x, mut all) = (*input, Vec::new());
    for (at, block) in network.blocks.iter().enumerate() {
        let (output, saved) = cx.region(TrainingRegion::forward(at, 0), x, |cx, x| block.forward(cx, x))?;
        all.push(saved);
        x = output;
    }
    let mut grad = cx.region(TrainingRegion::Once("loss"), x, |cx, prediction| {
        let grad = cx.tensor("grad", prediction.shape, DType::F32)?;
        cx.run(network.loss(prediction, *target, *losses, grad))?;
        Ok(grad)
    })?;
    for (at, (block, saved)) in network.blocks.iter().zip(all).enumerate().rev() {
        grad = cx.region(TrainingRegion::backward(at, 0), grad, |cx, grad| block.backward(cx, saved, grad))?;
    }
    cx.region(TrainingRegion::Once("update"), (), |cx, ()| network.update().try_for_each(|op| cx.run(op)))
}

/// The losses, and the number of graphs.
fn train(enable: bool) -> Result<(Vec<f32>, usize)> {
    let mut training = Training::new()?;
    let options = ManagerOptions { enable, ..ManagerOptions::default() };
    let mut manager = CudaGraphManager::in_pool(&training.pool, options, only_the_second())?;
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
