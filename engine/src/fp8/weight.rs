//! The copies of a weight, and how the input and output gradient of the weight's layer are quantised.

use device::Stream;
use device::ops::{Copy, Fp8Matrix, MakeScale, Quantize, QuantizeSource, Scale, TransposeFp8};
use graph_manager::Result;

use super::memory::{CopySource, Fp8Param};
use super::operand::QuantizeAs;
use super::recipe::Made;
use crate::regions::Region;
use crate::step_policy::StepContext;

/// Whether a backward runs. Then the values of a forward are only recomputed.
fn is_in_backward(cx: &StepContext<'_>) -> bool {
    cx.current_region().is_some_and(Region::is_backward)
}

/// Whether weights are used for the first time in a step.
fn is_first_use(cx: &StepContext<'_>) -> bool {
    cx.is_first_microbatch() && !is_in_backward(cx)
}

impl Fp8Param {
    /// How the layer's input is quantised.
    pub(crate) fn input_as(&self, cx: &StepContext<'_>) -> QuantizeAs<'_> {
        let (dtype, counts) = (self.fp8.input(), self.counts.input);
        let again = is_in_backward(cx);
        QuantizeAs { fp8: self, dtype, cell: self.input, counts, sums: None, again, shared_by: None }
    }

    /// How the gradient of the layer's output is quantised.
    pub(crate) fn grad_output_as(&self) -> QuantizeAs<'_> {
        QuantizeAs {
            fp8: self,
            dtype: self.fp8.grad_output(),
            cell: self.grad_output,
            counts: self.counts.grad_output,
            sums: None,
            again: false,
            shared_by: None,
        }
    }

    /// Makes the copies of the weight that the layer's output needs. Copies for the whole step are made in the first
    /// microbatch's forward. A backward that recomputes its forward finds these made.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn make_copies(&self, cx: &StepContext<'_>) -> Result<()> {
        match (self.made, self.source) {
            (Made::Once, CopySource::Values(source)) => self.count(cx, source),
            (Made::OnceAStep, _) if is_first_use(cx) => self.make(cx, cx.mode().trains().then_some(self.columns)),
            (Made::Once | Made::OnceAStep, _) => Ok(()),
            (Made::ForEachUse, _) => self.make(cx, None),
        }
    }

    /// Makes the copies of the weight that the input gradient needs, unless the copies were made before.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn make_copies_for_gradient(&self, cx: &StepContext<'_>) -> Result<()> {
        match self.made {
            Made::Once | Made::OnceAStep => Ok(()),
            Made::ForEachUse => self.make(cx, Some(self.columns)),
        }
    }

    /// Makes the copies of a frozen weight, once the weight has values.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn make_once(&self, stream: &Stream) -> device::Result<()> {
        let (Made::Once, CopySource::Values(source)) = (self.made, self.source) else { return Ok(()) };
        self.scale(source).map_or(Ok(()), |scale| stream.submit(scale))?;
        stream.submit(self.quantize(source, Some(self.columns)))
    }

    fn make(&self, cx: &StepContext<'_>, columns: Option<Fp8Matrix>) -> Result<()> {
        let source = match self.source {
            CopySource::Values(source) => source,
            CopySource::Gathered(input) => {
                if input != self.rows.values {
                    cx.run(Copy { input, output: self.rows.values })?;
                }
                return columns.map_or(Ok(()), |columns| cx.run(TransposeFp8 { input, output: columns.values }));
            }
        };
        // A step changes weights at its end alone, so their scale stays.
        if let Some(scale) = self.scale(source).filter(|_| is_first_use(cx)) {
            cx.run(scale)?;
        }
        cx.run(self.quantize(source, columns))?;
        self.count(cx, source)
    }

    /// The operation that makes the scale of a weight that has one scale.
    fn scale(&self, source: QuantizeSource) -> Option<MakeScale> {
        let Scale::Tensor(scale) = self.rows.scale else { return None };
        Some(MakeScale { source, dtype: self.fp8.input(), scale, keep_known: false })
    }

    fn quantize(&self, source: QuantizeSource, columns: Option<Fp8Matrix>) -> Quantize {
        Quantize { source, rows: Some(self.rows), columns, amax: None, sums: None, accumulate: false }
    }

    fn count(&self, cx: &StepContext<'_>, source: QuantizeSource) -> Result<()> {
        if is_first_use(cx) { self.counts.weight.count(cx, source, self.rows) } else { Ok(()) }
    }
}
