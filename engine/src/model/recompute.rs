//! Full recompute: blocks that save nothing but the input of the first.

use device::Tensor;
use graph_manager::Result;

use super::block::Block;
use super::hidden::Hidden;
use super::layer::Layer;
use crate::step_policy::StepContext;

/// A few blocks as one layer (Chen et al., 2016). Its forward saves only the layer's input; its backward recomputes the
/// rest, so the activations of one such layer at a time are in memory.
///
/// Recompute gives the same bits: dropout is a function of the microbatch's record, which is part of the input. The last
/// block's output is not recomputed, because no backward reads it.
pub(crate) struct RecomputedBlocks {
    pub(crate) blocks: Vec<Block>,
}

impl Layer for RecomputedBlocks {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let mut hidden = input;
        for block in &self.blocks {
            hidden = block.forward(cx, hidden)?;
        }
        cx.save_for_backward(input)?;
        Ok(hidden)
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor) -> Result<Tensor> {
        let mut hidden: Hidden = cx.saved()?;
        for (at, block) in self.blocks.iter().enumerate() {
            if at + 1 < self.blocks.len() {
                hidden = block.forward(cx, hidden)?;
            } else {
                block.prepare_backward(cx, hidden)?;
            }
        }
        let mut grad = grad;
        for block in self.blocks.iter().rev() {
            grad = block.backward(cx, grad)?;
        }
        Ok(grad)
    }
}
