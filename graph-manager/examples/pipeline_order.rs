//! Two chunks of two blocks and four microbatches in the order of an interleaved pipeline, with delayed weight
//! gradients: Transformer Engine's `make_graphed_callables` with `_order`. Memory is planned for the order: buffers in
//! use at different times share it. So replays must follow the order. If one does not, an error names the call that is
//! due.
//!
//!     cargo run --release -p graph-manager --example pipeline_order            # a small network on the host
//!     cargo run --release -p graph-manager --example pipeline_order -- cuda    # the whole one on a GPU, with times

mod shared;

use graph_manager::{
    CallOrder, CudaGraphManager, GraphedCallables, Layer, ManagerOptions, Mempool, Pool, Report, Result, StepContext,
    TrainingPolicy, TrainingRegion, graph_callables,
};
use shared::{Mlp, OneBlock, Way, rows};

const MICROBATCHES: usize = 4;

/// Forwards of chunks 1 and 2 for all microbatches; then for each one both backwards, and both weight gradients.
fn order() -> Vec<f32> {
    let forwards = [1.0, 2.0].repeat(MICROBATCHES);
    let backwards = [-2.0, -1.0, -2.5, -1.5].repeat(MICROBATCHES);
    [forwards, backwards].concat()
}

struct InOrder(GraphedCallables<OneBlock>);

impl InOrder {
    fn new(mlp: &Mlp) -> Result<InOrder> {
        let blocks = mlp.network.each_block();
        let order = CallOrder::signed(&order(), &[2, 2])?;
        // Each block's input has the width of the block before.
        let samples = mlp.network.sample_inputs(rows(mlp.input, 0, MICROBATCHES));
        Ok(InOrder(graph_callables(&Pool::new(mlp.compute.clone()), blocks, &samples, 1, Some(order))?))
    }
}

impl Way for InOrder {
    fn step(&mut self, mlp: &Mlp) -> Result<()> {
        let mut predictions = Vec::new();
        for microbatch in 0..MICROBATCHES {
            let mut x = rows(mlp.input, microbatch, MICROBATCHES);
            for block in 0..4 {
                x = self.0.forward(block, x)?;
            }
            predictions.push(x);
        }
        for (microbatch, prediction) in predictions.into_iter().enumerate() {
            let grad = rows(mlp.prediction_grad, microbatch, MICROBATCHES);
            mlp.compute.submit(mlp.network.loss_of(microbatch, MICROBATCHES, prediction, grad))?;
            let mut grad = Some(grad);
            for block in (0..4).rev() {
                let Some(of_output) = grad else { break };
                grad = self.0.backward(block, of_output)?;
            }
            (0..4).rev().try_for_each(|block| self.0.weight_gradients(block))?;
        }
        mlp.network.update(&mlp.compute)
    }

    fn reports(&self) -> Vec<Report> {
        self.0.reports()
    }
}

/// The same calls without graphs.
struct Eager(CudaGraphManager<TrainingPolicy>);

impl Eager {
    fn new(mlp: &Mlp) -> Result<Eager> {
        let off = ManagerOptions { enable: false, mempool: Mempool::Single, ..ManagerOptions::default() };
        Ok(Eager(CudaGraphManager::new(mlp.compute.clone(), off, TrainingPolicy::default())?))
    }
}

impl Way for Eager {
    fn step(&mut self, mlp: &Mlp) -> Result<()> {
        let blocks = mlp.network.each_block();
        self.0.step("train", MICROBATCHES, &mut |cx: &mut StepContext<'_, TrainingPolicy>| {
            let mut predictions = Vec::new();
            for microbatch in 0..MICROBATCHES {
                let (mut x, mut all) = (rows(mlp.input, microbatch, MICROBATCHES), Vec::new());
                for (at, block) in blocks.iter().enumerate() {
                    let region = TrainingRegion::forward(at, microbatch);
                    let (output, saved) = cx.region(region, x, |cx, x| block.forward(cx, x))?;
                    all.push(saved);
                    x = output;
                }
                predictions.push((x, all));
            }
            for (microbatch, (prediction, all)) in predictions.into_iter().enumerate() {
                let grad = rows(mlp.prediction_grad, microbatch, MICROBATCHES);
                cx.run(mlp.network.loss_of(microbatch, MICROBATCHES, prediction, grad))?;
                let mut grad = Some(grad);
                for (at, (block, saved)) in blocks.iter().zip(all).enumerate().rev() {
                    let Some(of_output) = grad else { break };
                    let region = TrainingRegion::backward(at, microbatch);
                    grad = cx.region(region, of_output, |cx, grad| block.backward(cx, saved, grad))?;
                }
            }
            mlp.network.update_in(cx)
        })
    }

    fn reports(&self) -> Vec<Report> {
        vec![self.0.report()]
    }
}

pub(crate) fn main() -> Result<()> {
    shared::run_beside("pipeline order", Eager::new, InOrder::new)
}
