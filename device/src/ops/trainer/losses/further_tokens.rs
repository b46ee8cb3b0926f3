//! The tokens that a model predicts beyond the next one.

mod host;

use crate::cuda::{KernelFile, KernelOperation, Queue, args, kernel_file, over_packs};
use crate::ops::{Operation, SequenceShare, ensure, ensure_dtype, ensure_elements, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// The inputs and the targets of samples `ahead` places further on. Column `i` of the outputs, at position `p` of a sample,
/// has the sample's input and target at `p + ahead`. Beyond the end of the sample the token is 0 and the target -1. The
/// target is also -1 if `p + ahead` is in another document than `p`.
#[derive(Clone, Debug, PartialEq)]
pub struct FurtherTokens {
    /// `(rows, width)`, i32: a sample in each row.
    pub samples: Tensor,
    /// First column of the inputs.
    pub first_input: usize,
    /// First column of the targets.
    pub first_target: usize,
    /// The number of places.
    pub ahead: usize,
    /// `(rows, length)`, i32: the position of each token of the whole sample in its document; `None` if a sample is one
    /// document.
    pub position_ids: Option<Tensor>,
    /// The positions of a sample that the outputs have.
    pub share: SequenceShare,
    /// `(rows, columns)`, i32, written.
    pub tokens: Tensor,
    /// `(rows, columns)`, i32, written.
    pub targets: Tensor,
}

impl FurtherTokens {
    /// Tokens of a whole sample.
    pub(crate) fn length(&self) -> usize {
        self.share.ranks * self.tokens.shape.last()
    }
}

impl Operation for FurtherTokens {
    const NAME: &'static str = "further_tokens";

    fn check(&self) -> Result<()> {
        let (rows, width, length) = (self.samples.shape.rows(), self.samples.shape.last(), self.length());
        for (name, tensor) in [("samples", &self.samples), ("tokens", &self.tokens), ("targets", &self.targets)] {
            ensure_dtype(Self::NAME, name, tensor, DType::I32)?;
        }
        ensure_elements(Self::NAME, "targets", &self.targets, self.tokens.elements())?;
        if let Some(ids) = &self.position_ids {
            ensure_values(Self::NAME, "position_ids", ids, DType::I32, rows * length)?;
        }
        let last = self.first_input.max(self.first_target) + length;
        ensure(Self::NAME, self.tokens.shape.rows() == rows && last <= width, || {
            format!(
                "`tokens` is {:?}, of columns up to {last} of `samples` {:?}",
                self.tokens.shape, self.samples.shape
            )
        })
    }

    tensors! { read samples, position_ids; write tokens, targets }
}

impl KernelOperation for FurtherTokens {
    const FILES: &'static [KernelFile] = &[kernel_file!("losses/embedding.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (count, columns) = (self.tokens.elements(), self.tokens.shape.last());
        let [part, first, second] = self.share.shifts(columns);
        let arguments = args! {
            self.samples, self.position_ids, self.tokens, self.targets; U64: count; U32: columns,
            self.samples.shape.last(), self.first_input, self.first_target, self.ahead, self.length(), part, first, second
        };
        queue.launch("further_tokens", over_packs(count, queue), arguments)
    }
}
