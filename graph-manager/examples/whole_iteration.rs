//! Training and validation as one graph each, with inputs copied into static buffers: Megatron's
//! `FullCudaGraphWrapper`, or `torch.cuda.graph` around forward, loss, backward and optimizer.
//!
//!     cargo run --release -p graph-manager --example whole_iteration            # a small network on the host
//!     cargo run --release -p graph-manager --example whole_iteration -- cuda    # the whole one on a GPU, with times

mod shared;

use std::num::NonZeroUsize;

use device::Tensor;
use graph_manager::{Capture, Pool, Report, Result};
use shared::{Mlp, Way};

const ONE_SHAPE: NonZeroUsize = NonZeroUsize::MIN;

struct WholeIteration {
    /// From the step's input.
    train: Capture<Tensor, ()>,
    /// From an input to the prediction.
    validate: Capture<Tensor, Tensor>,
    steps: usize,
}

impl WholeIteration {
    fn new(mlp: &Mlp) -> Result<WholeIteration> {
        let pool = Pool::new(mlp.compute.clone()); // the graphs share scratch
        let (network, same) = (mlp.network.clone(), mlp.network.clone());
        Ok(WholeIteration {
            train: Capture::new(&pool, "train", 1, ONE_SHAPE, move |cx, input| network.whole_step(cx, input))?,
            validate: Capture::new(&pool, "validate", 1, ONE_SHAPE, move |cx, input| same.predict(cx, input))?,
            steps: 0,
        })
    }
}

impl Way for WholeIteration {
    fn step(&mut self, mlp: &Mlp) -> Result<()> {
        self.steps += 1;
        if [2, 4, 6].contains(&self.steps) {
            self.validate.run(mlp.input)?; // changes nothing of the training
        }
        self.train.run(mlp.input).map(drop)
    }

    fn reports(&self) -> Vec<Report> {
        vec![self.train.report(), self.validate.report()]
    }
}

pub(crate) fn main() -> Result<()> {
    shared::run("whole iteration", WholeIteration::new)
}
