//! The input of a layer, in the form that the layer's weight gradient reads.

use device::Tensor;
use device::ops::{Fp8Matrix, QuantizeSource, Scale};
use graph_manager::Result;

use super::Linear;
use crate::fp8::{Copies, Operand};
use crate::model::tensor_parallel::TensorParallel;
use crate::step_policy::StepContext;

/// The input of a column-parallel layer, of all rows, before a change to the form that a weight gradient reads.
#[derive(Clone, Copy)]
pub(crate) enum WeightInput {
    /// The operand that forward saved.
    Saved(Operand),
    /// Not stored: it is computed from this.
    Computed(QuantizeSource),
    /// Gathered from the ranks.
    Gathered(Tensor),
    /// Gathered from the ranks in 8 bits, with this scale.
    Gathered8Bits(Tensor, Scale),
}

impl WeightInput {
    /// The input that forward saved: the value that [`Linear::normed_input`] returned for keeping. Gathers rows if it
    /// kept only this rank's.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn saved(
        cx: &mut StepContext<'_>,
        name: &'static str,
        saved: Operand,
        linear: &Linear,
        ranks: &TensorParallel,
    ) -> Result<WeightInput> {
        match linear.gathers_8_bits(ranks) {
            true => WeightInput::gathered_8_bits(cx, name, saved.fp8_rows(), ranks),
            false => Ok(WeightInput::Saved(saved)),
        }
    }

    /// Computed from `source`. Gathers rows if each rank computes its own.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn computed(
        cx: &mut StepContext<'_>,
        name: &'static str,
        source: QuantizeSource,
        linear: &Linear,
        ranks: &TensorParallel,
    ) -> Result<WeightInput> {
        if !linear.gathers_8_bits(ranks) {
            return Ok(WeightInput::Computed(source));
        }
        let own = linear.own_input(cx, source, ranks)?;
        WeightInput::gathered_8_bits(cx, name, own, ranks)
    }

    fn gathered_8_bits(
        cx: &mut StepContext<'_>,
        name: &'static str,
        own: Fp8Matrix,
        ranks: &TensorParallel,
    ) -> Result<WeightInput> {
        Ok(WeightInput::Gathered8Bits(ranks.gather_rows(cx, name, own.values)?, own.scale))
    }

    /// The rows in the form that the product of `linear` reads.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn rows(self, cx: &mut StepContext<'_>, linear: &Linear) -> Result<Operand> {
        match self {
            WeightInput::Saved(input) => Ok(input),
            WeightInput::Computed(source) => linear.computed_input(cx, source, Copies::Rows),
            WeightInput::Gathered(input) => linear.input(cx, input, Copies::Rows),
            WeightInput::Gathered8Bits(values, scale) => Ok(Operand::of_rows(Fp8Matrix { values, scale })),
        }
    }

    /// The rows in the form that the weight gradient of `linear` reads.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn operand(self, cx: &mut StepContext<'_>, linear: &Linear) -> Result<Operand> {
        match self {
            WeightInput::Saved(input) => Ok(input),
            WeightInput::Computed(source) => linear.computed_input(cx, source, Copies::Columns),
            WeightInput::Gathered(input) => linear.input(cx, input, Copies::Columns),
            WeightInput::Gathered8Bits(values, scale) => {
                Operand::transposed(cx, Fp8Matrix { values, scale }, Copies::Columns)
            }
        }
    }
}
