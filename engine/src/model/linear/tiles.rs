//! Operands in 8 bits that are made tile by tile.

use device::ops::{Fp8Matrix, QuantizeSource};
use graph_manager::Result;

use super::Linear;
use crate::fp8::{Operand, QuantizeAs};
use crate::step_policy::StepContext;
use crate::tile::Tile;

impl Linear {
    /// Memory for the rows of an input in 8 bits that are made [tile by tile](Linear::quantize_input).
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn input_rows(&self, cx: &mut StepContext<'_>, rows: usize) -> Result<Fp8Matrix> {
        self.fp8().input_as(cx).rows(cx, rows, self.input_width())
    }

    /// The same of an output gradient.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn grad_output_rows(&self, cx: &mut StepContext<'_>, rows: usize) -> Result<Fp8Matrix> {
        self.fp8().grad_output_as().rows(cx, rows, self.width())
    }

    /// Writes a tile of an input in 8 bits to the copy of all `rows`.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn quantize_input(
        &self,
        cx: &mut StepContext<'_>,
        source: QuantizeSource,
        rows: Fp8Matrix,
        tile: Tile,
    ) -> Result<()> {
        let quantize_as = self.fp8().input_as(cx);
        Operand::quantize_tile(cx, source, rows, tile, quantize_as)
    }

    /// Writes a tile of an output gradient in 8 bits to the copy of all `rows`. The bias gradient is computed on the
    /// way.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn quantize_grad_output(
        &self,
        cx: &mut StepContext<'_>,
        source: QuantizeSource,
        rows: Fp8Matrix,
        tile: Tile,
    ) -> Result<()> {
        let quantize_as = QuantizeAs { sums: self.bias_grad(), ..self.fp8().grad_output_as() };
        Operand::quantize_tile(cx, source, rows, tile, quantize_as)
    }
}
