//! The loads of experts in a step: how many tokens each has, and how many choices are dropped. And the biases of routers,
//! which follow them.

use std::rc::Rc;

use device::Tensor;
use device::ops::UpdateSelectionBias;

/// The loads of the experts of all blocks that have any, over the microbatches of a training step on this rank. Later
/// all ranks have the sum over all, as they have that of the losses.
#[derive(Clone, Debug)]
pub struct ExpertLoads {
    /// The blocks' numbers in the whole model.
    pub blocks: Rc<[usize]>,
    /// Experts of a block.
    pub experts: usize,
    /// `(blocks, experts)`, f32: whole numbers. If loads are limited, one more column has the dropped choices.
    pub all: Tensor,
}

impl ExpertLoads {
    /// `(1, experts)`, or with one more column: those of a block.
    pub(crate) fn of(&self, block: usize) -> Tensor {
        let Some(index) = self.blocks.iter().position(|of| *of == block) else {
            unreachable!("a block with experts is listed")
        };
        let columns = self.all.shape.last();
        self.all.view(index * columns, [1, columns])
    }

    /// `(1, experts)`: those of a block, without its dropped choices.
    pub(crate) fn of_experts(&self, block: usize) -> Tensor {
        self.of(block).view(0, [1, self.experts])
    }
}

/// The bias of a router's choice, which every step moves towards an equal load.
#[derive(Clone, Copy, Debug)]
pub struct SelectionBias {
    /// `(1, experts)`: the load of a step.
    pub load: Tensor,
    /// `(1, experts)`, f32.
    pub bias: Tensor,
    /// The step of each update.
    pub rate: f32,
}

impl SelectionBias {
    /// The update of the selection bias after a step, if the `status` says that weights are updated.
    pub(crate) fn update(&self, status: Tensor) -> UpdateSelectionBias {
        let SelectionBias { load, bias, rate } = *self;
        UpdateSelectionBias { load, rate, bias, status }
    }
}
