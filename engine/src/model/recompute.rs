//! Full recompute: several blocks save one tensor, the residual stream before the first one.

use device::Tensor;
use graph_manager::Result;

use super::block::Block;
use super::hidden::Hidden;
use super::layer::Layer;
use super::saved::Saved;
use crate::step_policy::StepContext;

/// A few blocks as one layer (Chen et al., 2016). Its forward saves one tensor: the sum of the residual stream that the
/// first norm writes. Its backward recomputes the rest, so the activations of one such layer at a time are in memory.
///
/// Recompute gives the same bits: a norm's statistics are those of the stored sum. Dropout is a function of the
/// microbatch's record, which the input has. The last block's output is not recomputed, because no backward reads it.
pub(crate) struct RecomputedBlocks {
    pub(crate) blocks: Vec<Block>,
}

impl Layer for RecomputedBlocks {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, Saved)> {
        let (mut hidden, mut stream) = (input, None);
        for block in &self.blocks {
            let (output, saved) = block.forward(cx, hidden)?;
            stream.get_or_insert_with(|| Block::stream(&saved));
            hidden = output;
        }
        let x = stream.unwrap_or(input.x);
        Ok((hidden, Saved::new(Hidden { x, delta: None, ..input })))
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
