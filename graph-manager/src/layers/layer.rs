//! A layer: work with a forward and a backward.

use std::any::Any;

use crate::code::StepContext;
use crate::error::{Error, Result};
use crate::policy::Policy;
use crate::tensor_tree::TensorTree;

/// Work with an explicit forward and backward: a layer, several, or a part of one. Implement it for every policy, with
/// `impl<P: Policy> Layer<P> for ..`: then it runs eagerly, in a manager's regions and in
/// [`graph_callables`](crate::graph_callables).
pub trait Layer<P: Policy> {
    /// The input of forward.
    type Input: TensorTree;
    /// The output of forward. Its gradient, the input of backward, has the same structure.
    type Output: TensorTree;
    /// The output of backward.
    type InputGrad: TensorTree;
    /// Values that forward leaves for backward, such as tensors.
    type Saved;

    /// Computes the output from the input, and returns the values that backward needs too.
    ///
    /// # Errors
    /// Errors of the device.
    fn forward(&self, cx: &mut StepContext<'_, P>, input: Self::Input) -> Result<(Self::Output, Self::Saved)>;

    /// Computes the input's gradient from the output's and from the values that forward left. Gradients of weights are
    /// added to memory of the layer's own. In [`graph_callables`](crate::graph_callables), if no later operation of the
    /// backward uses the same memory, these additions run next to the rest of the backward. If the order has calls for
    /// weight gradients, they run there.
    ///
    /// # Errors
    /// Errors of the device.
    fn backward(&self, cx: &mut StepContext<'_, P>, saved: Self::Saved, grad: Self::Output) -> Result<Self::InputGrad>;

    /// The layer without a static type, for a list of layers of several types.
    fn boxed(self) -> BoxedLayer<P, Self::Input, Self::Output, Self::InputGrad>
    where
        Self: Sized + 'static,
        Self::Saved: 'static,
    {
        Box::new(AnySaved(self))
    }
}

/// A layer of any type with the inputs and outputs `I`, `O` and `G`: see [`Layer::boxed`].
pub type BoxedLayer<P, I, O, G> = Box<dyn Layer<P, Input = I, Output = O, InputGrad = G, Saved = Box<dyn Any>>>;

impl<P: Policy, L: Layer<P> + ?Sized> Layer<P> for Box<L> {
    type Input = L::Input;
    type Output = L::Output;
    type InputGrad = L::InputGrad;
    type Saved = L::Saved;

    fn forward(&self, cx: &mut StepContext<'_, P>, input: L::Input) -> Result<(L::Output, L::Saved)> {
        (**self).forward(cx, input)
    }

    fn backward(&self, cx: &mut StepContext<'_, P>, saved: L::Saved, grad: L::Output) -> Result<L::InputGrad> {
        (**self).backward(cx, saved, grad)
    }
}

/// A layer whose saved values have no type.
struct AnySaved<L>(L);

impl<P: Policy, L: Layer<P>> Layer<P> for AnySaved<L>
where
    L::Saved: 'static,
{
    type Input = L::Input;
    type Output = L::Output;
    type InputGrad = L::InputGrad;
    type Saved = Box<dyn Any>;

    fn forward(&self, cx: &mut StepContext<'_, P>, input: L::Input) -> Result<(L::Output, Box<dyn Any>)> {
        let (output, saved) = self.0.forward(cx, input)?;
        Ok((output, Box::new(saved)))
    }

    fn backward(&self, cx: &mut StepContext<'_, P>, saved: Box<dyn Any>, grad: L::Output) -> Result<L::InputGrad> {
        let Ok(saved) = saved.downcast::<L::Saved>() else {
            let problem = "a backward got the saved values of a layer of another type";
            return Err(Error::usage(problem, "pass each backward what the forward of the same layer returned"));
        };
        self.0.backward(cx, *saved, grad)
    }
}
