//! The terms of the loss. A layer that computes one adds it to its sum. The model's
//! [`Architecture`](super::Architecture) lists all terms; memory, sums over ranks and reports follow from the list.

use std::rc::Rc;

use device::Tensor;

/// A term of the loss that training minimises. It has a value for each target, as the loss itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossTerm {
    /// Its name in reports.
    pub name: &'static str,
}

impl LossTerm {
    /// The loss of the targets: the first term of every model, and the only one in evaluation.
    pub const OF_TARGETS: LossTerm = LossTerm { name: "loss" };
}

/// The sum of each term over the step's microbatches on this rank. The region `reduce` sums them over data-parallel
/// ranks and stages.
#[derive(Clone, Debug)]
pub struct TermSums {
    /// The terms; the first is [`LossTerm::OF_TARGETS`].
    pub terms: Rc<[LossTerm]>,
    /// `(terms)`, f32.
    pub all: Tensor,
}

impl TermSums {
    /// `(1)`, f32: the sum of the loss of the targets.
    pub fn loss(&self) -> Tensor {
        self.all.view(0, [1])
    }

    /// `(1)`, f32: the sum of a term; `None` if the model does not have it.
    pub fn of(&self, term: LossTerm) -> Option<Tensor> {
        let index = self.terms.iter().position(|of| *of == term)?;
        Some(self.all.view(index, [1]))
    }
}
