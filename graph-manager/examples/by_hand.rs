//! Two captures of one pool, as `torch.cuda.graph` makes them: forward, loss and backward in one graph, the update in
//! another. Between them the host may do anything, here nothing.
//!
//!     cargo run --release -p graph-manager --example by_hand            # a small network on the host
//!     cargo run --release -p graph-manager --example by_hand -- cuda    # the whole one on a GPU, with times

mod shared;

use std::num::NonZeroUsize;

use device::{DType, Tensor};
use graph_manager::{Capture, Layer, Pool, Report, Result};
use shared::{Mlp, Way};

const ONE_SHAPE: NonZeroUsize = NonZeroUsize::MIN;

struct ByHand {
    /// From the step's input to the prediction.
    gradients: Capture<Tensor, Tensor>,
    update: Capture<(), ()>,
}

impl ByHand {
    fn new(mlp: &Mlp) -> Result<ByHand> {
        let pool = Pool::new(mlp.compute.clone());
        let (network, same) = (mlp.network.clone(), mlp.network.clone());
        let gradients = Capture::new(&pool, "gradients", 1, ONE_SHAPE, move |cx, input: Tensor| {
            let (prediction, saved) = network.forward(cx, input)?;
            let grad = cx.tensor("grad", prediction.shape, DType::F32)?;
            cx.run(network.loss(prediction, grad))?;
            network.backward(cx, saved, grad)?;
            Ok(prediction)
        })?;
        let update = Capture::new(&pool, "update", 1, ONE_SHAPE, move |cx, ()| same.update_in(cx))?;
        Ok(ByHand { gradients, update })
    }
}

impl Way for ByHand {
    fn step(&mut self, mlp: &Mlp) -> Result<()> {
        let _prediction = self.gradients.run(mlp.input)?;
        self.update.run(()).map(drop)
    }

    fn reports(&self) -> Vec<Report> {
        vec![self.gradients.report(), self.update.report()]
    }
}

pub(crate) fn main() -> Result<()> {
    shared::run("by hand", ByHand::new)
}
