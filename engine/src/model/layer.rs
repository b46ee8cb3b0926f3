//! A layer, and what passes from one to the next.

use device::Tensor;
use device::ops::Documents;
use graph_manager::{Result, TensorTree};

use crate::step_policy::StepContext;

/// Facts about a microbatch's samples that every layer may use.
#[derive(Clone, Copy, Debug)]
pub struct Samples {
    /// Their `SampleRecord`, from which dropout is computed; `None` where nothing is dropped.
    pub record: Option<Tensor>,
    /// Their documents; `None` where a sample is one document.
    pub documents: Option<Documents>,
}

/// What passes from layer to layer in forward. The gradient that passes back is that of `x`, which is also that of `delta`:
/// the next layer only sees their sum.
#[derive(Clone, Copy, Debug)]
pub struct Hidden {
    /// The residual stream `(batch, seq, hidden)`, with sequence parallelism this rank's rows `(1, rows, hidden)`. Before the
    /// first layer it is the microbatch's inputs.
    pub x: Tensor,
    /// What the next norm adds to the residual stream; of its shape.
    pub delta: Option<Tensor>,
    /// The microbatch's targets; only the chunk with the head has them.
    pub targets: Option<Tensor>,
    /// The microbatch's samples.
    pub samples: Samples,
}

impl TensorTree for Samples {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Samples> {
        Ok(Samples {
            record: self.record.map(|record| f("record", record)).transpose()?,
            documents: match self.documents {
                Some(documents) => {
                    Some(Documents { position_ids: f("position_ids", documents.position_ids)?, ..documents })
                }
                None => None,
            },
        })
    }
}

impl TensorTree for Hidden {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Hidden> {
        Ok(Hidden {
            x: f("input", self.x)?,
            delta: self.delta.map(|delta| f("delta", delta)).transpose()?,
            targets: self.targets.map(|targets| f("targets", targets)).transpose()?,
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

/// A layer: an explicit forward and an explicit backward, nothing else.
///
/// Both submit operations to `cx` and take their buffers from it. What backward needs, forward passes to it with
/// [`StepContext::save_for_backward`]. Backward passes gradients of weights to [`StepContext::defer`].
pub trait Layer {
    /// Computes the output from the input.
    ///
    /// # Errors
    /// Errors of the device.
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden>;

    /// Computes the input's gradient from the output's, and the parameters' `main_grad`.
    ///
    /// # Errors
    /// Errors of the device.
    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor) -> Result<Tensor>;

    /// Computes the weight gradients that backward deferred.
    ///
    /// # Errors
    /// Errors of the device.
    fn weight_gradients(&self, cx: &mut StepContext<'_>) -> Result<()> {
        cx.run_deferred()
    }
}

/// The last layer of a model, which computes the losses. Nothing comes after it: backward begins here.
pub trait LossHead {
    /// Computes the losses. In evaluation it adds them to the step's loss sum; in training it does so, or backward
    /// does. Returns them, f32, one for each target.
    ///
    /// # Errors
    /// Errors of the device.
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Tensor>;

    /// The input's gradient, and the parameters' `main_grad`. The gradient of each loss is the control block's `grad_scale`.
    ///
    /// # Errors
    /// Errors of the device.
    fn backward(&self, cx: &mut StepContext<'_>) -> Result<Tensor>;
}
