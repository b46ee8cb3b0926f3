//! The terms of the loss, and numbers beside the loss. A layer that computes one adds it to its sum. The model's
//! [`Architecture`](super::Architecture) lists all terms; memory, sums over ranks and reports follow from the list.

use std::rc::Rc;

use device::Tensor;
use device::ops::PairLoss;

/// A term of the loss that training minimises, or a number that is told beside the loss. It has a value for each
/// target, or each pair of answers, as the loss itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossTerm {
    /// The term's name in reports.
    pub name: &'static str,
    /// The purpose of the term.
    pub role: TermRole,
}

/// What a term is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermRole {
    /// A term that training minimises. Evaluation computes no other than the first.
    Minimised,
    /// A number for reports, in evaluation too.
    Told,
}

/// The terms of pairs of answers, in the order of the results of a [`PairLoss`], by the names of TRL.
pub(crate) const OF_PAIRS: [LossTerm; PairLoss::RESULTS] = [
    LossTerm::OF_TARGETS,
    LossTerm::told("rewards/chosen"),
    LossTerm::told("rewards/rejected"),
    LossTerm::told("rewards/accuracies"),
    LossTerm::told("logps/chosen"),
    LossTerm::told("logps/rejected"),
];

/// The same of answers with a label. Their rewards and log-probabilities are 0 but in the term of their label.
pub(crate) const OF_LABELLED: [LossTerm; PairLoss::RESULTS] = {
    let mut terms = OF_PAIRS;
    terms[3] = LossTerm::DESIRABLE;
    terms
};

impl LossTerm {
    /// The loss of the targets, or of the pairs: the first term of every model, and in evaluation the only one that is
    /// minimised.
    pub const OF_TARGETS: LossTerm = LossTerm::minimised("loss");

    /// The share of answers that are desirable.
    pub(crate) const DESIRABLE: LossTerm = LossTerm::told("labels/desirable");

    /// A term that training minimises.
    pub const fn minimised(name: &'static str) -> LossTerm {
        LossTerm { name, role: TermRole::Minimised }
    }

    const fn told(name: &'static str) -> LossTerm {
        LossTerm { name, role: TermRole::Told }
    }
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

    /// `(terms of pairs)`, f32: the sums of the results of pairs; `None` if the model learns from none.
    pub(crate) fn of_pairs(&self) -> Option<Tensor> {
        let are_of_pairs = self.terms.starts_with(&OF_PAIRS) || self.terms.starts_with(&OF_LABELLED);
        are_of_pairs.then(|| self.all.view(0, [OF_PAIRS.len()]))
    }

    /// `(1)`, f32: the sum of a term; `None` if the model does not have it.
    pub fn of(&self, term: LossTerm) -> Option<Tensor> {
        let index = self.terms.iter().position(|of| *of == term)?;
        Some(self.all.view(index, [1]))
    }
}
