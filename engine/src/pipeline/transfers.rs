//! The transfers of one step, in the order of the step's code: a task receives its input, copies it out of the receive
//! buffer, and sends its output.

use device::Tensor;
use device::ops::{Add, Copy};
use graph_manager::Result;
use parallel::{PipelineStage, Task};

use super::link::Link;
use crate::batch_sizes::BatchSizes;
use crate::model::Hidden;
use crate::regions::Region;
use crate::step_policy::StepContext;

/// The transfers of a step under way.
pub struct Transfers<'p> {
    stage: PipelineStage,
    forward: Channel<'p>,
    backward: Channel<'p>,
}

/// A link during a step.
struct Channel<'p> {
    link: &'p Link,
    /// Receives so far.
    received: usize,
}

impl<'p> Transfers<'p> {
    pub(super) fn new(stage: PipelineStage, links: [&'p Link; 2]) -> Transfers<'p> {
        let [forward, backward] = links.map(|link| Channel { link, received: 0 });
        Transfers { stage, forward, backward }
    }

    /// The activations for a forward, in the receive buffer; `None` for the first part of the model.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn receive_activations(&mut self, cx: &StepContext<'_>, task: Task) -> Result<Option<Tensor>> {
        if !self.stage.receives(task) {
            return Ok(None);
        }
        self.forward.receive(cx).map(Some)
    }

    /// Sends the output of a chunk to the next part of the model. `layer` is the chunk's last layer. The output is the
    /// sum of the residual stream and of a `delta` not yet added to it, rounded as the next norm would round it. Does
    /// nothing for the last part.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn send_activations(&self, cx: &mut StepContext<'_>, task: Task, layer: usize, hidden: &Hidden) -> Result<()> {
        if !self.stage.sends(task) {
            return Ok(());
        }
        cx.region(Region::Outputs { layer, microbatch: task.microbatch() }, (), |cx, ()| {
            self.forward.send(cx, |cx, output| match hidden.delta {
                Some(delta) => cx.run(Add { a: delta, b: hidden.x, output }),
                None => cx.run(Copy { input: hidden.x, output }),
            })
        })
    }

    /// The gradient of a chunk's output, copied into the microbatch's slot. `layer` is the chunk's last layer.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn receive_gradient(&mut self, cx: &mut StepContext<'_>, task: Task, layer: usize) -> Result<Tensor> {
        cx.region(Region::OutputGradients { layer, microbatch: task.microbatch() }, (), |cx, ()| {
            let input = self.backward.receive(cx)?;
            let output = cx.tensor("grad_output", input.shape, input.dtype)?;
            cx.run(Copy { input, output })?;
            Ok(output)
        })
    }

    /// Sends the gradient of a chunk's input to the part of the model before. `layer` is the chunk's first layer. Does
    /// nothing for the first part.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn send_gradient(&self, cx: &mut StepContext<'_>, task: Task, layer: usize, grad: Tensor) -> Result<()> {
        if !self.stage.sends(task) {
            return Ok(());
        }
        cx.region(Region::InputGradients { layer, microbatch: task.microbatch() }, (), |cx, ()| {
            self.backward.send(cx, |cx, output| cx.run(Copy { input: grad, output }))
        })
    }
}

impl Channel<'_> {
    /// Receives into the next buffer.
    fn receive(&mut self, cx: &StepContext<'_>) -> Result<Tensor> {
        let Some(end) = &self.link.receive else { unreachable!("a task that receives has a link to receive from") };
        let receive = end.receive(self.received % end.buffers.len(), BatchSizes::of(cx));
        self.received += 1;
        let values = receive.output;
        cx.run(receive)?;
        Ok(values)
    }

    /// Sends the values that `fill` writes to the send buffer.
    fn send(&self, cx: &StepContext<'_>, fill: impl FnOnce(&StepContext<'_>, Tensor) -> Result<()>) -> Result<()> {
        let Some(end) = &self.link.send else { unreachable!("a task that sends has a link to send to") };
        let send = end.send(BatchSizes::of(cx));
        fill(cx, send.input)?;
        cx.run(send)
    }
}
