//! A layer's weight with the adapters added, for a product outside of the layer.

use device::Tensor;
use device::ops::Copy;
use graph_manager::Result;

use super::Linear;
use crate::step_policy::StepContext;

impl Linear {
    /// The weight `(out, in)`, with the products of adapters added if there are some. Adapters drop nothing.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn adapted_weight(&self, cx: &mut StepContext<'_>) -> Result<Tensor> {
        let weight = self.weight.weight;
        let Some(adapter) = &self.adapter else { return Ok(weight) };
        let adapted = cx.tensor("adapted_weight", weight.shape, weight.dtype)?;
        cx.run(Copy { input: weight, output: adapted })?;
        adapter.add_to_weight(cx, adapted)?;
        Ok(adapted)
    }
}
