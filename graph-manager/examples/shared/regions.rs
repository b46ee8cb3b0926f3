//! A step divided into regions, some of them captured.

use std::fmt::{Display, Formatter};

use device::DType;
use graph_manager::{CudaGraphManager, Layer, ManagerOptions, Policy, Report, Result, StepContext};

use super::{Mlp, Way};

/// The regions of a step. Blocks are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Region {
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

/// The policy: it decides on the regions that become graphs.
pub enum Captured {
    All,
    Block(usize),
}

impl Policy for Captured {
    type Region = Region;
    type Mode = ();

    fn captured(&self, region: Region) -> std::result::Result<(), &'static str> {
        match (self, region) {
            (Captured::All, _) => Ok(()),
            (Captured::Block(only), Region::Forward(block) | Region::Backward(block)) if *only == block => Ok(()),
            (Captured::Block(_), _) => Err("it is not of the chosen block"),
        }
    }
}

/// A manager of such steps.
pub struct ByRegion(CudaGraphManager<Captured>);

impl ByRegion {
    pub fn new(mlp: &Mlp, captured: Captured) -> Result<ByRegion> {
        Ok(ByRegion(CudaGraphManager::new(mlp.compute.clone(), ManagerOptions::default(), captured)?))
    }
}

impl Way for ByRegion {
    fn step(&mut self, mlp: &Mlp) -> Result<()> {
        self.0.step((), 1, &mut |cx| step(cx, mlp))
    }

    fn reports(&self) -> Vec<Report> {
        vec![self.0.report()]
    }
}

fn step(cx: &mut StepContext<'_, Captured>, mlp: &Mlp) -> Result<()> {
    let network = &mlp.network;
    let (mut x, mut all) = (mlp.input, Vec::new());
    for (at, block) in network.blocks.iter().enumerate() {
        let (output, saved) = cx.region(Region::Forward(at), x, |cx, x| block.forward(cx, x))?;
        all.push(saved);
        x = output;
    }
    let mut grad = cx.region(Region::Loss, x, |cx, prediction| {
        let grad = cx.tensor("grad", prediction.shape, DType::F32)?;
        cx.run(network.loss(prediction, grad))?;
        Ok(Some(grad))
    })?;
    for (at, (block, saved)) in network.blocks.iter().zip(all).enumerate().rev() {
        let Some(of_output) = grad else { break };
        grad = cx.region(Region::Backward(at), of_output, |cx, grad| block.backward(cx, saved, grad))?;
    }
    cx.region(Region::Update, (), |cx, ()| network.update_in(cx))
}
