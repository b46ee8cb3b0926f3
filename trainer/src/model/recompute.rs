//! Full recompute: blocks that keep nothing but the input of the first.

use device::Tensor;
use graph_manager::{Layer, Result, StepContext};

use super::Hidden;
use super::block::Block;

/// A few blocks as one layer. Its forward keeps the layer's input; its backward computes all else again, to the same bits:
/// dropout is a function of the microbatch's record, which is part of the input. So one group's activations are in memory
/// at a time (Chen et al., 2016).
pub(crate) struct Recomputed {
    pub(crate) blocks: Vec<Block>,
}

impl Recomputed {
    fn run(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let mut hidden = input;
        for (at, block) in self.blocks.iter().enumerate() {
            hidden = cx.part(at, |cx| block.forward(cx, hidden))?;
        }
        Ok(hidden)
    }
}

impl Layer<Hidden> for Recomputed {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let output = self.run(cx, input)?;
        cx.keep(input);
        Ok(output)
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor) -> Result<Tensor> {
        let input: Hidden = cx.kept();
        self.run(cx, input)?;
        let mut grad = grad;
        for (at, block) in self.blocks.iter().enumerate().rev() {
            grad = cx.part(at, |cx| block.backward(cx, grad))?;
        }
        Ok(grad)
    }
}
