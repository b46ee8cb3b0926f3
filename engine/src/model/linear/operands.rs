//! What the products of a linear layer read: tensors as they are, or their copies in 8 bits.

use std::rc::Rc;

use device::ops::{Fp8Matrix, QuantizeSource};
use device::{Communicator, Tensor};
use graph_manager::Result;

use super::Linear;
use crate::fp8::{Copies, Fp8, Fp8Param, Operand, QuantizeAs};
use crate::model::norm::Normed;
use crate::model::tensor_parallel::TensorParallel;
use crate::step_policy::StepContext;

impl Linear {
    /// Whether each rank quantises that rank's rows of the residual stream, and bytes are gathered. Adapters read the
    /// rows as they are.
    pub(crate) fn gathers_8_bits(&self, ranks: &TensorParallel) -> bool {
        !self.has_adapter() && gathers_8_bits(self.weight.fp8.map(|fp8| fp8.fp8), ranks)
    }

    /// Whether this column-parallel layer computes the layer's input, the normed values, during quantisation. Rows that
    /// are gathered in 16 bits must be stored, and so must those that adapters read.
    pub(crate) fn computes_input(&self, ranks: &TensorParallel) -> bool {
        self.is_8_bit() && !self.has_adapter() && (!ranks.splits_rows() || self.gathers_8_bits(ranks))
    }

    /// The normed values in the form that the products of this column-parallel layer read. With `keep`, also returns
    /// the values that forward keeps: the 8-bit copy that the weight gradient reads, or this rank's rows in 8 bits if
    /// rows are gathered. It keeps no stored values, because the norm keeps them.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn normed_input(
        &self,
        cx: &mut StepContext<'_>,
        normed: Normed,
        keep: bool,
        ranks: &TensorParallel,
    ) -> Result<(Operand, Option<Operand>)> {
        match normed {
            Normed::Computed(source) if self.gathers_8_bits(ranks) => {
                let own = self.own_input(cx, source, ranks)?;
                let values = ranks.gather_rows(cx, "all_normed_8bit", own.values)?;
                Ok((Operand::of_rows(Fp8Matrix { values, ..own }), keep.then_some(Operand::of_rows(own))))
            }
            Normed::Computed(source) => {
                let input = self.computed_input(cx, source, Copies::of_input(cx, keep))?;
                Ok((input, keep.then(|| input.for_weight_gradient())))
            }
            Normed::Stored(normed) => {
                let all_normed = ranks.gather_rows(cx, "all_normed", normed)?;
                Ok((self.input(cx, all_normed, Copies::Rows)?, None))
            }
        }
    }

    /// An input `(..., in)` in the form that the products read. The weight under adapters is frozen: no gradient of it
    /// reads a copy.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn input(&self, cx: &mut StepContext<'_>, input: Tensor, copies: Copies) -> Result<Operand> {
        match copies {
            _ if !self.is_8_bit() => Ok(Operand::Plain(input)),
            Copies::Columns if self.has_adapter() => Ok(Operand::Plain(input)),
            _ if self.has_adapter() => self.input_beside(cx, input),
            copies => self.computed_input(cx, QuantizeSource::Stored(input), copies),
        }
    }

    /// As [`Linear::input`] of a frozen layer, with the values not quantised too.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn input_beside(&self, cx: &mut StepContext<'_>, input: Tensor) -> Result<Operand> {
        match self.is_8_bit() {
            true => Ok(self.computed_input(cx, QuantizeSource::Stored(input), Copies::Rows)?.beside(input)),
            false => Ok(Operand::Plain(input)),
        }
    }

    /// The input of an 8-bit layer, computed from other tensors and not stored otherwise.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn computed_input(
        &self,
        cx: &mut StepContext<'_>,
        source: QuantizeSource,
        copies: Copies,
    ) -> Result<Operand> {
        let quantize_as = self.fp8().input_as(cx);
        Operand::quantized(cx, source, copies, quantize_as)
    }

    /// The 8-bit rows `(rows, in)` that this rank has of the input of a layer that [gathers 8 bits](Linear::gathers_8_bits).
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn own_input(
        &self,
        cx: &mut StepContext<'_>,
        source: QuantizeSource,
        ranks: &TensorParallel,
    ) -> Result<Fp8Matrix> {
        let shared_by = ranks.group();
        let quantize_as = QuantizeAs { shared_by, ..self.fp8().input_as(cx) };
        Ok(Operand::quantized(cx, source, Copies::Rows, quantize_as)?.fp8_rows())
    }

    /// An output gradient `(..., out)` in the form that the products read. In 8 bits the bias gradient is computed on
    /// the way.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn grad_output(&self, cx: &mut StepContext<'_>, grad_output: Tensor) -> Result<Operand> {
        let source = QuantizeSource::Stored(grad_output);
        match self.is_8_bit() {
            false => Ok(Operand::Plain(grad_output)),
            true if self.has_adapter() => {
                Ok(self.quantized_grad_output(cx, source, Copies::Rows, None)?.beside(grad_output))
            }
            true => self.computed_grad_output(cx, source),
        }
    }

    /// The output gradient of an 8-bit layer, computed from other tensors and not stored otherwise. The bias gradient
    /// is computed on the way.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn computed_grad_output(&self, cx: &mut StepContext<'_>, source: QuantizeSource) -> Result<Operand> {
        self.quantized_grad_output(cx, source, Copies::Both, None)
    }

    /// The output gradient of a row-parallel layer, from this rank's rows of the gradient: all rows, as the products
    /// read them.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn gathered_grad_output(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        own: Tensor,
        ranks: &TensorParallel,
    ) -> Result<Operand> {
        if !self.gathers_8_bits(ranks) {
            let all = ranks.gather_rows(cx, name, own)?;
            return self.grad_output(cx, all);
        }
        let source = QuantizeSource::Stored(own);
        let shared_by = ranks.group();
        let own = self.quantized_grad_output(cx, source, Copies::Rows, shared_by)?.fp8_rows();
        let values = ranks.gather_rows(cx, name, own.values)?;
        Operand::transposed(cx, Fp8Matrix { values, ..own }, Copies::Both)
    }

    fn quantized_grad_output(
        &self,
        cx: &mut StepContext<'_>,
        source: QuantizeSource,
        copies: Copies,
        shared_by: Option<&Rc<dyn Communicator>>,
    ) -> Result<Operand> {
        let quantize_as = QuantizeAs { sums: self.bias_grad(), shared_by, ..self.fp8().grad_output_as() };
        Operand::quantized(cx, source, copies, quantize_as)
    }

    pub(super) fn fp8(&self) -> &Fp8Param {
        match &self.weight.fp8 {
            Some(fp8) => fp8,
            None => unreachable!("only an 8-bit layer has computed operands"),
        }
    }
}

/// See [`Linear::gathers_8_bits`].
pub(super) fn gathers_8_bits(fp8: Option<Fp8>, parallel: &TensorParallel) -> bool {
    parallel.splits_rows() && fp8.is_some_and(|fp8| fp8.recipe.has_one_scale())
}
