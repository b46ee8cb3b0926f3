//! Numbers of tokens of whole samples, on ranks that have a share of each.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind, ColumnRange, CopyColumns, OrderRows, RowOrder, SequenceShare};
use device::{Communicator, Tensor};
use graph_manager::Result;
use parallel::{Axis, Purpose, Ranks};

use crate::batch_sizes::{BatchSizes, sequence_share};
use crate::step_policy::StepContext;

/// The ranks that divide samples. What depends on all tokens of a sample is computed on each of them, from a few numbers a
/// token: so it has the bits of one rank.
#[derive(Clone)]
pub(crate) struct WholeSamples {
    pub(crate) share: SequenceShare,
    communicator: Rc<dyn Communicator>,
}

impl WholeSamples {
    /// `None` if a rank has whole samples.
    pub(crate) fn new(ranks: &Ranks) -> Option<WholeSamples> {
        let communicator = ranks.for_purpose(ranks.axes(Axis::Context), Purpose::Keys)?.clone();
        Some(WholeSamples { share: sequence_share(ranks), communicator })
    }

    /// The rows of all tokens, `(samples, all tokens, width)`, from the rows of this rank's tokens, f32 or i32.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn gather(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        here: Tensor,
        samples: usize,
    ) -> Result<Tensor> {
        let tokens = BatchSizes::of(cx).tokens_per_sample;
        let here = here.reshape([samples, tokens, here.elements() / (samples * tokens)]);
        let by_rank = self.gather_by_rank(cx, "numbers_of_ranks", here)?;
        self.by_position(cx, name, by_rank)
    }

    /// The rows of all ranks, `(ranks, samples, tokens, width)`, from the rows of this rank's tokens, `(samples,
    /// tokens, width)`.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn gather_by_rank(&self, cx: &mut StepContext<'_>, name: &'static str, here: Tensor) -> Result<Tensor> {
        let &[samples, tokens, width] = here.shape.sizes() else {
            unreachable!("rows of samples have three dimensions")
        };
        let by_rank = cx.tensor(name, [self.share.ranks, samples, tokens, width], here.dtype)?;
        self.transfer(cx, CollectiveKind::AllGather, [here, by_rank])?;
        Ok(by_rank)
    }

    /// The rows of all ranks in the order of tokens, `(samples, all tokens, width)`.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn by_position(&self, cx: &mut StepContext<'_>, name: &'static str, by_rank: Tensor) -> Result<Tensor> {
        let &[ranks, samples, tokens, width] = by_rank.shape.sizes() else { unreachable!("as it was gathered") };
        let by_position = cx.tensor(name, [samples, ranks * tokens, width], by_rank.dtype)?;
        cx.run(OrderRows { by_rank, by_position, to: RowOrder::ByPosition })?;
        Ok(by_position)
    }

    /// A transfer between the ranks.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn transfer(
        &self,
        cx: &mut StepContext<'_>,
        kind: CollectiveKind,
        [input, output]: [Tensor; 2],
    ) -> Result<()> {
        cx.run(Collective { kind, communicator: self.communicator.clone(), input, output })
    }

    /// Copies the rows of this rank's tokens from the rows of all tokens. Rows are as wide.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn take(&self, cx: &StepContext<'_>, all: Tensor, here: Tensor, samples: usize) -> Result<()> {
        let rows = |tensor: Tensor| tensor.reshape([samples, tensor.elements() / samples]);
        let part = ColumnRange { first: 0, share: self.share, output: rows(here) };
        cx.run(CopyColumns { input: rows(all), parts: [Some(part), None] })
    }
}
