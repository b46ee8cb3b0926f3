//! The values that pass from one layer to the next.

use device::Tensor;
use device::ops::Documents;
use graph_manager::{Result, TensorTree};

use super::sample_row::Restart;

/// Facts about a microbatch's samples that every layer may use.
#[derive(Clone, Copy, Debug)]
pub struct Samples {
    /// The samples' `SampleRecord`, the source of dropout masks; `None` if nothing is dropped.
    pub record: Option<Tensor>,
    /// The samples' documents, and what begins anew with each; `None` if a sample is one document.
    pub documents: Option<(Documents, Restart)>,
    /// `(batch, seq)`, i32: the positions in documents of the tokens here, if learned positions begin anew with each and
    /// ranks divide samples. `None`: those of `documents`.
    pub positions_here: Option<Tensor>,
    /// `(batch, 1)`, i32: of each sample the tokens that are no padding, for layers that ask. `None` if there is no
    /// padding.
    pub real: Option<Tensor>,
}

/// The values that pass from layer to layer in forward. One gradient passes back. It is that of `x`, and also that of
/// `delta`: the next layer only sees their sum.
#[derive(Clone, Copy, Debug)]
pub struct Hidden {
    /// The residual stream `(batch, seq, hidden)`, with sequence parallelism this rank's rows `(1, rows, hidden)`.
    /// Before the first layer it is the microbatch's inputs.
    pub x: Tensor,
    /// The tensor that the next norm adds to the residual stream, in the stream's shape.
    pub delta: Option<Tensor>,
    /// The microbatch's targets; only the chunk with the head has targets.
    pub targets: Option<Tensor>,
    /// The microbatch's pairs of answers for [`PairLoss`](device::ops::PairLoss); only the chunk with the head has
    /// pairs.
    pub pairs: Option<Tensor>,
    /// The results of the pairs under the reference model, if the step computed such results.
    pub references: Option<Tensor>,
    /// `(depths, 2, batch, seq)`, i32: by depth, tokens beyond the next one as inputs and as targets, in training; only the
    /// chunk with the head has them.
    pub further: Option<Tensor>,
    /// The microbatch's samples.
    pub samples: Samples,
}

impl Samples {
    /// The documents that attention stays within; `None` if attention sees the whole sample.
    pub(crate) fn apart(&self) -> Option<Documents> {
        self.documents.filter(|(_, restart)| *restart != Restart::Positions).map(|(documents, _)| documents)
    }

    /// `(batch, seq)`, i32: positions that begin anew with each document; `None` if they count through the sample.
    pub(crate) fn position_ids(&self) -> Option<Tensor> {
        let (documents, restart) = self.documents?;
        (restart != Restart::Attention).then_some(self.positions_here.unwrap_or(documents.position_ids))
    }
}

impl TensorTree for Samples {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Samples> {
        Ok(Samples {
            record: self.record.map(|record| f("record", record)).transpose()?,
            documents: match self.documents {
                Some((documents, restart)) => {
                    let position_ids = f("position_ids", documents.position_ids)?;
                    Some((Documents { position_ids, ..documents }, restart))
                }
                None => None,
            },
            positions_here: self.positions_here.map(|ids| f("positions_here", ids)).transpose()?,
            real: self.real.map(|real| f("real", real)).transpose()?,
        })
    }
}

impl TensorTree for Hidden {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Hidden> {
        Ok(Hidden {
            x: f("input", self.x)?,
            delta: self.delta.map(|delta| f("delta", delta)).transpose()?,
            targets: self.targets.map(|targets| f("targets", targets)).transpose()?,
            pairs: self.pairs.map(|pairs| f("pairs", pairs)).transpose()?,
            references: self.references.map(|references| f("references", references)).transpose()?,
            further: self.further.map(|further| f("further", further)).transpose()?,
            samples: self.samples.map(f)?,
        })
    }
}

impl Hidden {
    /// The targets, in the layer that computes the losses.
    pub(crate) fn loss_targets(&self) -> Tensor {
        match self.targets {
            Some(targets) => targets,
            None => unreachable!("the chunk with the head has the targets"),
        }
    }
}
