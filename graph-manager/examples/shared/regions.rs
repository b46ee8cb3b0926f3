//! A step divided into regions, some of them captured.

use device::DType;
use graph_manager::{
    CudaGraphManager, Layer, ManagerOptions, Report, Result, StepContext, TrainingPolicy, TrainingRegion,
};

use super::{Mlp, Way};

/// A manager of such steps.
pub struct ByRegion(CudaGraphManager<TrainingPolicy>);

impl ByRegion {
    pub fn new(mlp: &Mlp, policy: TrainingPolicy) -> Result<ByRegion> {
        Ok(ByRegion(CudaGraphManager::new(mlp.compute.clone(), ManagerOptions::default(), policy)?))
    }
}

impl Way for ByRegion {
    fn step(&mut self, mlp: &Mlp) -> Result<()> {
        self.0.step("train", 1, &mut |cx| step(cx, mlp))
    }

    fn reports(&self) -> Vec<Report> {
        vec![self.0.report()]
    }
}

fn step(cx: &mut StepContext<'_, TrainingPolicy>, mlp: &Mlp) -> Result<()> {
    let network = &mlp.network;
    let (mut x, mut all) = (mlp.input, Vec::new());
    for (at, block) in network.blocks.iter().enumerate() {
        let (output, saved) = cx.region(TrainingRegion::forward(at, 0), x, |cx, x| block.forward(cx, x))?;
        all.push(saved);
        x = output;
    }
    let mut grad = cx.region(TrainingRegion::Once("loss"), x, |cx, prediction| {
        let grad = cx.tensor("grad", prediction.shape, DType::F32)?;
        cx.run(network.loss(prediction, grad))?;
        Ok(Some(grad))
    })?;
    for (at, (block, saved)) in network.blocks.iter().zip(all).enumerate().rev() {
        let Some(of_output) = grad else { break };
        grad = cx.region(TrainingRegion::backward(at, 0), of_output, |cx, grad| block.backward(cx, saved, grad))?;
    }
    cx.region(TrainingRegion::Once("update"), (), |cx, ()| network.update_in(cx))
}
