//! A layer of a model: an explicit forward and an explicit backward.

use device::Tensor;
use graph_manager::Result;

use super::sequence::Hidden;
use crate::step_policy::StepContext;
use std::any::Any;
use std::rc::Rc;

/// A layer: an explicit forward and an explicit backward, nothing else.
///
/// Both submit operations to `cx` and take their buffers from it. [Passes](crate::passes) decide later when these run,
/// and which run side by side.
pub trait Layer {
    /// Computes the output from the input. Also returns the values that backward needs.
    ///
    /// # Errors
    /// Errors of the device.
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, Saved)>;

    /// Computes the input's gradient from `grad`, the output's, and the parameters' `main_grad`. The gradients have the
    /// shapes of the input's and of the output's [`x`](Hidden::x); the result of a model's first layer is not read.
    /// `saved` is the value that forward returned for the same microbatch.
    ///
    /// # Errors
    /// Errors of the device.
    fn backward(&self, cx: &mut StepContext<'_>, saved: &Saved, grad: Tensor) -> Result<Tensor>;

    /// The large tensors that only backward reads. They may lie on the host until then. `saved` is the value that forward
    /// returned.
    fn for_backward(&self, _saved: &Saved) -> Vec<Tensor> {
        Vec::new()
    }

    /// Begins and ends the regions of the layer's modules that have separate regions, for weight gradients that are
    /// computed later.
    ///
    /// # Errors
    /// Errors of the device.
    fn weight_gradient_regions(&self, _cx: &mut StepContext<'_>) -> Result<()> {
        Ok(())
    }
}

/// The last layer of a model. It computes the losses. Nothing comes after it: backward begins here.
pub trait LossHead {
    /// Computes the losses. In evaluation it adds them to the step's loss sum; in training it does so, or backward
    /// does. Returns them, f32, one for each target, or the results of each pair of answers, and the values that backward needs.
    ///
    /// # Errors
    /// Errors of the device.
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Tensor, Saved)>;

    /// The input's gradient, and the parameters' `main_grad`. The gradient of each loss is the control block's
    /// `grad_scale`. `saved` is the value that forward returned for the same microbatch of a training step.
    ///
    /// # Errors
    /// Errors of the device.
    fn backward(&self, cx: &mut StepContext<'_>, saved: &Saved) -> Result<Tensor>;
}

/// The values that the forward of a layer or a part leaves for its backward. Each kind of layer has a type of its own.
#[derive(Clone)]
pub struct Saved(Rc<dyn Any>);

impl Saved {
    /// Wraps the values that a forward leaves.
    pub fn new<T: 'static>(value: T) -> Saved {
        Saved(Rc::new(value))
    }

    /// The values that the forward left.
    ///
    /// # Panics
    /// If it left another type: a backward gets the values of the same layer's forward.
    pub fn get<T: 'static>(&self) -> &T {
        match self.0.downcast_ref::<T>() {
            Some(value) => value,
            None => unreachable!("a backward gets what its own forward left"),
        }
    }
}
