//! Full recompute: several blocks save only the input of the first one.

use device::Tensor;
use graph_manager::Result;

use super::block::Block;
use super::hidden::Hidden;
use super::layer::Layer;
use super::saved::Saved;
use crate::step_policy::StepContext;

/// A few blocks as one layer (Chen et al., 2016). Its forward saves only the layer's input; its backward recomputes the
/// rest, so the activations of one such layer at a time are in memory.
///
/// Recompute gives the same bits: dropout is a function of the microbatch's record, and the input has the record. The
/// last block's output is not recomputed, because no backward reads it.
pub(crate) struct RecomputedBlocks {
    pub(crate) blocks: Vec<Block>,
}

impl Layer for RecomputedBlocks {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, Saved)> {
        let mut hidden = input;
        for block in &self.blocks {
            (hidden, _) = block.forward(cx, hidden)?;
        }
        Ok((hidden, Saved::new(input)))
    }

    fn backward(&self, cx: &mut StepContext<'_>, saved: &Saved, grad: Tensor) -> Result<Tensor> {
        let (mut hidden, mut all): (Hidden, _) = (*saved.get(), Vec::new());
        for (at, block) in self.blocks.iter().enumerate() {
            if at + 1 < self.blocks.len() {
                let (output, saved) = block.forward(cx, hidden)?;
                all.push(saved);
                hidden = output;
            } else {
                all.push(block.prepare_backward(cx, hidden)?);
            }
        }
        let mut blocks = self.blocks.iter().zip(&all).rev();
        blocks.try_fold(grad, |grad, (block, saved)| block.backward(cx, saved, grad))
    }
}
