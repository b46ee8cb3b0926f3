//! Dropout of one place in a model.

use device::Tensor;
use device::ops::{Dropout, DropoutPart, DropoutSite, SequenceShare};
use graph_manager::Result;
use parallel::Place;

use crate::batch_sizes::BatchSizes;
use crate::step_policy::StepContext;

/// The dropout of one place in a model: off in evaluation, and at rate 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DropoutLayer {
    pub(crate) rate: f32,
    pub(crate) seed: u64,
    pub(crate) layer: u16,
    /// The number of the dropout in the dropout's layer.
    pub(crate) site: u16,
    /// The heads or channels here.
    pub(crate) part: DropoutPart,
    /// The place of this rank's rows, if dropout is in rows of the residual stream. `None`: all rows of the microbatch.
    pub(crate) rows: Option<Place>,
    /// The tokens of a sample here.
    pub(crate) sequence: SequenceShare,
}

impl DropoutLayer {
    /// Whether training steps drop nothing.
    pub(crate) fn is_off(&self) -> bool {
        self.rate == 0.0
    }

    /// The site for a microbatch with this `SampleRecord`; `None` if nothing is dropped.
    pub(crate) fn site(&self, cx: &StepContext<'_>, record: Option<Tensor>) -> Option<DropoutSite> {
        if self.is_off() || !cx.mode().trains() {
            return None;
        }
        let Some(record) = record else { unreachable!("a model that drops says so: Model::drops") };
        let DropoutLayer { rate, seed, layer, site, part, rows, sequence } = *self;
        let part = rows.map_or(part, |rows| BatchSizes::of(cx).dropout_part(rows));
        let part = DropoutPart { share: sequence, ..part };
        Some(DropoutSite { rate, seed, layer, site, record, part })
    }
}

/// Applies a dropout in place, if there is one.
pub(crate) fn drop_in_place(cx: &StepContext<'_>, tensor: Tensor, site: Option<DropoutSite>) -> Result<()> {
    site.map_or(Ok(()), |site| cx.run(Dropout { input: tensor, output: tensor, site }))
}

/// The gradient before a dropout from the gradient after the dropout, in a new buffer; `grad` if there is no dropout.
pub(crate) fn dropout_backward(
    cx: &mut StepContext<'_>,
    name: &'static str,
    grad: Tensor,
    site: Option<DropoutSite>,
) -> Result<Tensor> {
    let Some(site) = site else { return Ok(grad) };
    let output = cx.tensor(name, grad.shape, grad.dtype)?;
    cx.run(Dropout { input: grad, output, site })?;
    Ok(output)
}
