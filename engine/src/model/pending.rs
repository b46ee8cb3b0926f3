//! Work under way around a layer: the gather of a linear layer's input, its weight gradients, and sums of columns.

use device::Tensor;
use device::ops::{AddPartialColumns, Fp8Matrix, PartialColumns, QuantizeSource, Scale};
use graph_manager::Result;

use super::adapter::AdapterGradient;
use super::linear::Linear;
use super::tensor_parallel::{PendingTransfer, TensorParallelRegion};
use crate::fp8::{Copies, Operand};
use crate::step_policy::StepContext;

/// The input of a layer, as its weight gradient reads it. It may still be under way.
#[must_use]
pub(crate) enum PendingInput {
    /// As forward saved it.
    Saved(Operand),
    /// Not stored: it is computed from this.
    Computed(QuantizeSource),
    /// Its rows are being gathered.
    Gathering(PendingTransfer),
    /// Its rows are being gathered in 8 bits, with this scale.
    Gathering8Bits(PendingTransfer, Scale),
}

impl PendingInput {
    /// As a forward saved it that kept what [`Linear::normed_input`] gave it. Starts to gather rows if it kept only this
    /// rank's.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn saved(
        cx: &mut StepContext<'_>,
        name: &'static str,
        saved: Operand,
        linear: &Linear,
        region: &TensorParallelRegion,
    ) -> Result<PendingInput> {
        match linear.gathers_8_bits(region) {
            true => PendingInput::gather(cx, name, saved.fp8_rows(), region),
            false => Ok(PendingInput::Saved(saved)),
        }
    }

    /// Computed from `source`. Starts to gather rows if each rank computes its own.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn computed(
        cx: &mut StepContext<'_>,
        name: &'static str,
        source: QuantizeSource,
        linear: &Linear,
        region: &TensorParallelRegion,
    ) -> Result<PendingInput> {
        if !linear.gathers_8_bits(region) {
            return Ok(PendingInput::Computed(source));
        }
        let own = linear.own_input(cx, source, region)?;
        PendingInput::gather(cx, name, own, region)
    }

    fn gather(
        cx: &mut StepContext<'_>,
        name: &'static str,
        own: Fp8Matrix,
        region: &TensorParallelRegion,
    ) -> Result<PendingInput> {
        Ok(PendingInput::Gathering8Bits(region.gather_rows_async(cx, name, own.values)?, own.scale))
    }

    /// Makes the compute stream wait for it; it is the input of `linear`.
    ///
    /// # Errors
    /// A failed transfer; errors of the device.
    pub(crate) fn join(self, cx: &mut StepContext<'_>, linear: &Linear) -> Result<Operand> {
        match self {
            PendingInput::Saved(input) => Ok(input),
            PendingInput::Computed(source) => linear.computed_input(cx, source, Copies::Columns),
            PendingInput::Gathering(transfer) => {
                let input = transfer.join(cx)?;
                linear.input(cx, input, Copies::Columns)
            }
            PendingInput::Gathering8Bits(transfer, scale) => {
                let values = transfer.join(cx)?;
                Operand::transposed(cx, Fp8Matrix { values, scale }, Copies::Columns)
            }
        }
    }
}

/// Weight gradients of a linear layer that are not computed yet. They will be, while a transfer runs.
#[must_use]
pub(crate) struct PendingWeightGradients(Option<(Linear, Operand, Operand, Option<AdapterGradient>)>);

impl PendingWeightGradients {
    /// Those of this layer, from its input, its output gradient and what its adapter's input gradient left.
    pub(super) fn of(
        linear: Linear,
        input: Operand,
        grad_output: Operand,
        adapter: Option<AdapterGradient>,
    ) -> PendingWeightGradients {
        PendingWeightGradients(Some((linear, input, grad_output, adapter)))
    }

    /// Nothing is left to compute.
    pub(crate) fn none() -> PendingWeightGradients {
        PendingWeightGradients(None)
    }

    /// All rows of `rows`, as [`TensorParallelRegion::gather_rows`]; computes these gradients meanwhile.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn compute_during_gather(
        self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        rows: Tensor,
        region: &TensorParallelRegion,
    ) -> Result<Tensor> {
        if self.0.is_none() {
            return region.gather_rows(cx, name, rows);
        }
        let gather = region.gather_rows_async(cx, name, rows)?;
        self.compute(cx)?;
        gather.join(cx)
    }

    /// Computes them, unless a `transfer` comes next, during which they can be computed.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn compute_unless(self, transfer: bool, cx: &mut StepContext<'_>) -> Result<PendingWeightGradients> {
        if transfer {
            return Ok(self);
        }
        self.compute(cx)?;
        Ok(PendingWeightGradients::none())
    }

    /// Computes them, if any are left.
    pub(crate) fn compute(self, cx: &mut StepContext<'_>) -> Result<()> {
        let Some((linear, input, grad_output, adapter)) = self.0 else { return Ok(()) };
        linear.wgrad(cx, input, grad_output, adapter)
    }
}

/// Parameter gradients whose parts are there, of all norms of a block. One operation adds them up.
#[must_use]
#[derive(Default)]
pub(crate) struct PendingSums(Vec<PartialColumns>);

impl PendingSums {
    pub(super) fn push(&mut self, sum: PartialColumns) {
        self.0.push(sum);
    }

    /// Adds them up, if any are left. It is the end of the region that left the parts.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn add_up(self, cx: &StepContext<'_>) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        cx.run(AddPartialColumns { sums: self.0.into(), accumulate: !cx.is_first_microbatch() })
    }
}
