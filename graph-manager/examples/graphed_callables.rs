//! Forward and backward as a graph each, made ahead of time; loss and optimizer stay outside: `make_graphed_callables` of
//! PyTorch.
//!
//!     cargo run --release -p graph-manager --example graphed_callables            # a small network on the host
//!     cargo run --release -p graph-manager --example graphed_callables -- cuda    # the whole one on a GPU, with times

mod shared;

use graph_manager::{GraphedCallables, Pool, Report, Result, graph_callables};
use shared::{Mlp, Network, Way};

struct ForwardAndBackward(GraphedCallables<Network>);

impl ForwardAndBackward {
    fn new(mlp: &Mlp) -> Result<ForwardAndBackward> {
        let pool = Pool::new(mlp.compute.clone());
        Ok(ForwardAndBackward(graph_callables(&pool, vec![mlp.network.clone()], &[mlp.input], 3, None)?))
    }
}

impl Way for ForwardAndBackward {
    fn step(&mut self, mlp: &Mlp) -> Result<()> {
        let prediction = self.0.forward(0, mlp.input)?;
        mlp.compute.submit(mlp.network.loss(prediction, mlp.prediction_grad))?;
        self.0.backward(0, mlp.prediction_grad)?;
        mlp.network.update(&mlp.compute)
    }

    fn reports(&self) -> Vec<Report> {
        self.0.reports()
    }
}

pub(crate) fn main() -> Result<()> {
    shared::run("forward and backward graphs", ForwardAndBackward::new)
}
