//! Code of the caller's that the host runs around the calls of graphed layers.

use super::layer::Layer;
use crate::call_order::Call;
use crate::error::Result;
use crate::training::TrainingPolicy;

/// Called by the host around the calls of graphed layers: forward hooks and gradient hooks. Give them to
/// [`GraphedCallables::set_hooks`](crate::GraphedCallables::set_hooks). Each method does nothing unless you write it.
///
/// The host runs them in each step, outside of the graphs. They may submit work to the pool's stream, and read, write
/// and wait. An error ends the call.
pub trait CallHooks<L: Layer<TrainingPolicy>> {
    /// A forward is about to run on this input.
    ///
    /// # Errors
    /// Errors of the hook.
    fn before_forward(&mut self, _call: Call, _input: &L::Input) -> Result<()> {
        Ok(())
    }

    /// A forward was launched, with this output.
    ///
    /// # Errors
    /// Errors of the hook.
    fn after_forward(&mut self, _call: Call, _output: &L::Output) -> Result<()> {
        Ok(())
    }

    /// A backward is about to run on this gradient of the output.
    ///
    /// # Errors
    /// Errors of the hook.
    fn before_backward(&mut self, _call: Call, _grad: &L::Output) -> Result<()> {
        Ok(())
    }

    /// A backward was launched, with this gradient of the input. The gradients of the layer's weights are in the same
    /// graph, unless the order has calls for them.
    ///
    /// # Errors
    /// Errors of the hook.
    fn after_backward(&mut self, _call: Call, _grad: &L::InputGrad) -> Result<()> {
        Ok(())
    }

    /// Deferred weight gradients were launched.
    ///
    /// # Errors
    /// Errors of the hook.
    fn after_weight_gradients(&mut self, _call: Call) -> Result<()> {
        Ok(())
    }
}
