//! Full recompute: several blocks save one tensor, the residual stream before the first one, and if wanted the outputs
//! of attention.

use device::Tensor;
use graph_manager::Result;

use super::block::Block;
use crate::model::attention::attended::Attended;
use crate::model::layer::{Layer, Saved};
use crate::model::sequence::Hidden;
use crate::step_policy::StepContext;

/// A few blocks as one layer (Chen et al., 2016). Its forward saves the sum of the residual stream that the first norm
/// writes. Its backward recomputes the rest, so the activations of one such layer at a time are in memory.
///
/// Recompute gives the same bits: a norm's statistics are those of the stored sum. Dropout is a function of the
/// microbatch's record, which the input has. The last block's output is not recomputed, because no backward reads it.
pub(crate) struct RecomputedBlocks {
    pub(crate) blocks: Vec<Block>,
    /// The outputs of attention are saved too, and attention is not recomputed.
    pub(crate) keeps_attention: bool,
}

/// The values that a forward leaves.
struct SavedBlocks {
    input: Hidden,
    /// By block: the output of attention, if it was kept.
    kept: Vec<Option<Attended>>,
}

impl Layer for RecomputedBlocks {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, Saved)> {
        let (mut hidden, mut stream, mut kept) = (input, None, Vec::new());
        for block in &self.blocks {
            let (output, saved) = block.forward(cx, hidden)?;
            stream.get_or_insert_with(|| Block::stream(&saved));
            kept.push(if self.keeps_attention { block.attended(&saved) } else { None });
            hidden = output;
        }
        let x = stream.unwrap_or(input.x);
        Ok((hidden, Saved::new(SavedBlocks { input: Hidden { x, delta: None, ..input }, kept })))
    }

    fn for_backward(&self, saved: &Saved) -> Vec<Tensor> {
        let SavedBlocks { input, kept } = saved.get();
        [input.x].into_iter().chain(kept.iter().flatten().flat_map(Attended::tensors)).collect()
    }

    fn backward(&self, cx: &mut StepContext<'_>, saved: &Saved, grad: Tensor) -> Result<Tensor> {
        let SavedBlocks { input, kept } = saved.get();
        let (mut hidden, mut all) = (*input, Vec::new());
        for (at, (block, &kept)) in self.blocks.iter().zip(kept).enumerate() {
            if at + 1 < self.blocks.len() {
                let (output, saved) = block.forward_again(cx, hidden, kept)?;
                all.push(saved);
                hidden = output;
            } else {
                all.push(block.prepare_backward(cx, hidden, kept)?);
            }
        }
        let mut blocks = self.blocks.iter().zip(&all).rev();
        blocks.try_fold(grad, |grad, (block, saved)| block.backward(cx, saved, grad))
    }
}
