//! The transfers of one step.
//!
//! A receive begins about one task before the task that reads its values, see [`ReceiveQueue`]. That task first copies
//! the values out of the receive buffer into its microbatch's slot, so the next receive can begin before the task's own
//! work. (A receive cannot write to the slot: the microbatch before may still use it.) A send begins after the work
//! that computed its values and overlaps with the next task. Only the next send in its direction, and the end of the
//! step, wait for it.

use device::Tensor;
use device::ops::{Add, Collective, CollectiveKind, Copy};
use graph_manager::{Fork, Result};
use parallel::{Direction, PipelineStage, ReceiveQueue, Task};

use super::link::Link;
use crate::model::Hidden;
use crate::regions::Region;
use crate::step_policy::StepContext;

/// The transfers of a step under way.
pub struct Transfers<'p> {
    stage: PipelineStage,
    /// Forwards run aside.
    overlaps: bool,
    forward: Channel<'p>,
    backward: Channel<'p>,
}

/// A link during a step.
struct Channel<'p> {
    link: &'p Link,
    receives: ReceiveQueue,
    /// The last send, while the compute stream does not wait for it yet.
    sending: Option<Fork>,
}

impl<'p> Transfers<'p> {
    pub(super) fn new(
        stage: PipelineStage,
        [forward, backward]: [&'p Link; 2],
        tasks: &[Task],
        overlaps: bool,
    ) -> Transfers<'p> {
        let channel = |link, direction| {
            let receives = stage.receive_queue(direction, tasks);
            Channel { link, receives, sending: None }
        };
        Transfers {
            stage,
            overlaps,
            forward: channel(forward, Direction::Forward),
            backward: channel(backward, Direction::Backward),
        }
    }

    /// Begins the receives for later tasks, which overlap with the work of this one. `begun` tasks have begun. It is
    /// called before the first task, and in each task after it has copied its own values out of the receive buffer.
    ///
    /// Where forwards run aside, the lane aside reads the buffers of activations. A new receive waits for that read, so the
    /// lane begins it. Before the first task nothing is being read, so the compute stream begins the first receives.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn receive_ahead(&mut self, cx: &mut StepContext<'_>, begun: usize) -> Result<()> {
        if !self.overlaps || cx.is_aside() || begun == 0 {
            self.forward.receive_ahead(cx, begun)?;
        }
        if !self.overlaps || !cx.is_aside() {
            self.backward.receive_ahead(cx, begun)?;
        }
        Ok(())
    }

    /// The activations for a forward, in their receive buffer; `None` for the first part of the model.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn receive_activations(&mut self, cx: &mut StepContext<'_>, task: Task) -> Result<Option<Tensor>> {
        if !self.stage.receives(task) {
            return Ok(None);
        }
        self.forward.received(cx).map(Some)
    }

    /// Sends the output of a chunk, whose last layer is `layer`, to the next part of the model: the sum of the residual
    /// stream and what is still to be added to it, rounded as the next norm would round it. Does nothing for the last
    /// part.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn send_activations(
        &mut self,
        cx: &mut StepContext<'_>,
        task: Task,
        layer: usize,
        hidden: &Hidden,
    ) -> Result<()> {
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

    /// The gradient of a chunk's output, whose last layer is `layer`, copied into the microbatch's slot.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn receive_gradient(&mut self, cx: &mut StepContext<'_>, task: Task, layer: usize) -> Result<Tensor> {
        cx.region(Region::OutputGradients { layer, microbatch: task.microbatch() }, (), |cx, ()| {
            let input = self.backward.received(cx)?;
            let output = cx.tensor("grad_output", input.shape, input.dtype)?;
            cx.run(Copy { input, output })?;
            Ok(output)
        })
    }

    /// Sends the gradient of a chunk's input, whose first layer is `layer`, to the part of the model before. Does nothing
    /// for the first part.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn send_gradient(&mut self, cx: &mut StepContext<'_>, task: Task, layer: usize, grad: Tensor) -> Result<()> {
        if !self.stage.sends(task) {
            return Ok(());
        }
        cx.region(Region::InputGradients { layer, microbatch: task.microbatch() }, (), |cx, ()| {
            self.backward.send(cx, |cx, output| cx.run(Copy { input: grad, output }))
        })
    }

    /// Has the compute stream wait for the last sends: no send outlives its step.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn finish(&mut self, cx: &mut StepContext<'_>) -> Result<()> {
        self.forward.wait_for_send(cx)?;
        self.backward.wait_for_send(cx)
    }
}

impl Channel<'_> {
    fn receive_ahead(&mut self, cx: &mut StepContext<'_>, begun: usize) -> Result<()> {
        let Some(end) = &self.link.receive else { return Ok(()) };
        for number in self.receives.begin(begun) {
            let at = self.receives.buffer(number);
            // Timelines show it under a name of its own: its values are for a later task.
            cx.compute().device().set_scope(&format!("{} receive {number}", end.name));
            let kind = CollectiveKind::Receive { from: 0 };
            let receive = Collective::in_place(kind, end.communicator.clone(), end.buffers[at]);
            cx.fork(&end.side, [receive.into()])?.leave_until(&end.received[at])?;
        }
        Ok(())
    }

    /// The oldest receive's buffer. The compute stream waits for its values.
    fn received(&mut self, cx: &mut StepContext<'_>) -> Result<Tensor> {
        let Some(end) = &self.link.receive else { unreachable!("a task that receives has a link to receive from") };
        let number = self.receives.take();
        let at = self.receives.buffer(number);
        cx.wait(&end.received[at])?;
        Ok(end.buffers[at])
    }

    /// Sends what `fill` writes to the send buffer, once the send before has read it.
    fn send(
        &mut self,
        cx: &mut StepContext<'_>,
        fill: impl FnOnce(&mut StepContext<'_>, Tensor) -> Result<()>,
    ) -> Result<()> {
        self.wait_for_send(cx)?;
        let Some(end) = &self.link.send else { unreachable!("a task that sends has a link to send to") };
        fill(cx, end.buffer)?;
        let send = Collective::in_place(CollectiveKind::Send { to: 1 }, end.communicator.clone(), end.buffer);
        self.sending = Some(cx.fork(&end.side, [send.into()])?);
        Ok(())
    }

    fn wait_for_send(&mut self, cx: &mut StepContext<'_>) -> Result<()> {
        self.sending.take().map_or(Ok(()), |send| cx.join(send))
    }
}
