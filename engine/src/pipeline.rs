//! Transfers between the stages of a pipeline.
//!
//! What crosses a boundary forward is the residual stream, backward its gradient, in the type layers compute in. Each of a
//! stage's four ways (forward in and out, backward in and out) has a communicator, a side stream and buffers of its own,
//! at fixed addresses for the whole run. A receive is begun about a task ahead, and what arrived is copied into the
//! microbatch's slot, so that the next receive can begin before the work: a slot itself is still in use by the microbatch
//! before at that time. A send is begun after the work that made its values and goes on beside the next task; only the
//! next one in its direction, and the end of the step, wait for it.

use std::rc::Rc;

use device::ops::{Add, Collective, CollectiveKind, Copy};
use device::{Area, Communicator, DType, Device, Event, Shape, Stream, Tensor};
use graph_manager::{Error, Result};
use parallel::{Direction, PipelineGroups, PipelineStage, ReceiveQueue, Task};

use crate::model::Hidden;
use crate::params::Params;
use crate::regions::Region;
use crate::step_policy::StepContext;

/// A stage's connections to the others; one stage has none.
pub struct Pipeline {
    stage: PipelineStage,
    forward: Way,
    backward: Way,
    all: Option<Rc<dyn Communicator>>,
    /// What this rank updates of the gradients of a parameter that first and last stage both have, and the two.
    shared: Option<(Rc<dyn Communicator>, Tensor)>,
    _areas: Vec<Area>,
}

/// One direction: what comes in and what goes out.
#[derive(Default)]
struct Way {
    inbox: Option<Inbox>,
    outbox: Option<Outbox>,
}

struct Inbox {
    /// The direction in words.
    name: &'static str,
    communicator: Rc<dyn Communicator>,
    stream: Stream,
    receive_buffers: Vec<Tensor>,
    /// The compute stream has read a buffer.
    free: Event,
    /// By buffer.
    arrived: Vec<Event>,
}

struct Outbox {
    communicator: Rc<dyn Communicator>,
    stream: Stream,
    send_buffer: Tensor,
    ready: Event,
    sent: Event,
}

impl Pipeline {
    /// Allocates the buffers of all transfers, each of the shape and type of `residual`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(
        device: &Device,
        stage: PipelineStage,
        groups: Option<PipelineGroups>,
        residual: Option<(Shape, DType)>,
        params: &Params,
    ) -> Result<Pipeline> {
        let mut pipeline = Pipeline {
            stage,
            forward: Way::default(),
            backward: Way::default(),
            all: None,
            shared: None,
            _areas: vec![],
        };
        let (Some(groups), Some((shape, dtype))) = (groups, residual) else { return Ok(pipeline) };
        let mut buffer = |name: &str| -> Result<Tensor> {
            let tensor = device.allocate_tensor(&mut pipeline._areas, name, shape, dtype)?;
            device.zero(&tensor)?;
            Ok(tensor)
        };
        let mut way = |name: &'static str, direction, from: Option<Rc<dyn Communicator>>, to| -> Result<Way> {
            let mut way = Way::default();
            if let Some(communicator) = from {
                let count = stage.receive_buffers(direction);
                let receive_buffers =
                    (0..count).map(|_| buffer(&format!("{name} receive buffer"))).collect::<Result<_>>()?;
                let arrived = (0..count).map(|_| device.event()).collect();
                let stream = device.transfer_stream(&format!("{name} in"));
                way.inbox = Some(Inbox { name, communicator, stream, receive_buffers, free: device.event(), arrived });
            }
            if let Some(communicator) = to {
                let send_buffer = buffer(&format!("{name} send buffer"))?;
                let stream = device.transfer_stream(&format!("{name} out"));
                way.outbox =
                    Some(Outbox { communicator, stream, send_buffer, ready: device.event(), sent: device.event() });
            }
            Ok(way)
        };
        let PipelineGroups { all, ends, forward_in, forward_out, backward_in, backward_out } = groups;
        let forward = way("forward", Direction::Forward, forward_in, forward_out)?;
        let backward = way("backward", Direction::Backward, backward_in, backward_out)?;
        (pipeline.forward, pipeline.backward, pipeline.all) = (forward, backward, Some(all));
        let tied = params.buckets().find(|bucket| bucket.tied.is_some());
        pipeline.shared = ends.zip(tied.map(|bucket| params.optimizer_shard().of(bucket.grads)));
        Ok(pipeline)
    }

    /// The stage's tasks of a step.
    ///
    /// # Errors
    /// A number of microbatches that the schedule does not take.
    pub fn order(&self, microbatches: usize) -> Result<Vec<Task>> {
        self.stage.tasks(microbatches).ok_or_else(|| Error::Usage {
            problem: format!("a step of {microbatches} microbatches came to {:?}", self.stage),
            fix: "have at least as many as a group, in whole groups or with a rest of as many as there are stages",
        })
    }

    /// All stages, where there are others.
    pub fn all(&self) -> Option<&Rc<dyn Communicator>> {
        self.all.as_ref()
    }

    /// The transfers of a step; of one that is only rehearsed nothing is sent, and what lies in the buffers has arrived.
    pub fn begin(&self, order: &[Task], rehearses: bool) -> Transfers<'_> {
        let queue = |direction| self.stage.receive_queue(direction, order);
        let lane = |way, direction| Lane { way, receives: queue(direction), sending: false, rehearses };
        Transfers {
            stage: self.stage,
            forward: lane(&self.forward, Direction::Forward),
            backward: lane(&self.backward, Direction::Backward),
        }
    }

    /// After all backwards and the reduction over data-parallel ranks: first and last stage sum the gradients of what they
    /// share. The sum of two has the same bits in either order, so both make the same update.
    ///
    /// # Errors
    /// A failed collective.
    pub fn sum_shared(&self, cx: &StepContext<'_>) -> Result<()> {
        let Some((ends, grads)) = &self.shared else { return Ok(()) };
        cx.run(Collective::in_place(CollectiveKind::AllReduceSum, ends.clone(), *grads))
    }

    /// Sums a small tensor over the stages, such as the loss, which only the last one has.
    ///
    /// # Errors
    /// A failed collective.
    pub fn sum(&self, cx: &StepContext<'_>, tensor: Tensor) -> Result<()> {
        let Some(all) = &self.all else { return Ok(()) };
        cx.run(Collective::in_place(CollectiveKind::AllReduceSum, all.clone(), tensor))
    }
}

/// The transfers of a step under way.
pub struct Transfers<'p> {
    stage: PipelineStage,
    forward: Lane<'p>,
    backward: Lane<'p>,
}

struct Lane<'p> {
    way: &'p Way,
    receives: ReceiveQueue,
    /// A send is under way that nothing has waited for.
    sending: bool,
    rehearses: bool,
}

impl Transfers<'_> {
    /// Whether what a task makes goes to another stage.
    pub fn sends(&self, task: Task) -> bool {
        self.stage.sends(task)
    }

    /// Begins the receives that can go on beside the work before the task at `next`.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn receive_ahead(&mut self, cx: &StepContext<'_>, next: usize) -> Result<()> {
        self.forward.receive_ahead(cx, next)?;
        self.backward.receive_ahead(cx, next)
    }

    /// What the stage before sent for a forward, to be copied before the next receive is begun; none where a forward
    /// begins with the step's inputs.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn activations(&mut self, cx: &StepContext<'_>, task: Task) -> Result<Option<Tensor>> {
        if !self.stage.receives(task) {
            return Ok(None);
        }
        self.forward.arrived(cx)
    }

    /// Hands what a forward's last layer made to the next stage: the residual stream with all that is to be added to it,
    /// rounded as the next norm would.
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

    /// The gradient of what a forward's last layer made: what the next stage sent, or the losses of the last part.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn gradients(
        &mut self,
        cx: &mut StepContext<'_>,
        task: Task,
        layer: usize,
        losses: Option<Tensor>,
    ) -> Result<Tensor> {
        if let (false, Some(losses)) = (self.stage.receives(task), losses) {
            return Ok(losses);
        }
        cx.region(Region::OutputGradients { layer, microbatch: task.microbatch() }, (), |cx, ()| {
            let Some(input) = self.backward.arrived(cx)? else {
                unreachable!("a backward begins with losses or what came in");
            };
            let output = cx.tensor("grad_output", input.shape, input.dtype)?;
            cx.run(Copy { input, output })?;
            Ok(output)
        })
    }

    /// Hands the gradient of what a forward's first layer took to the stage before.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn send_gradients(&mut self, cx: &mut StepContext<'_>, task: Task, layer: usize, grad: Tensor) -> Result<()> {
        if !self.stage.sends(task) {
            return Ok(());
        }
        cx.region(Region::InputGradients { layer, microbatch: task.microbatch() }, (), |cx, ()| {
            self.backward.send(cx, |cx, output| cx.run(Copy { input: grad, output }))
        })
    }

    /// Has the compute stream wait for the last sends, so that none outlives the step.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn finish(&mut self, cx: &StepContext<'_>) -> Result<()> {
        self.forward.wait_for_send(cx)?;
        self.backward.wait_for_send(cx)
    }
}

impl Lane<'_> {
    fn receive_ahead(&mut self, cx: &StepContext<'_>, next: usize) -> Result<()> {
        let Some(inbox) = &self.way.inbox else { return Ok(()) };
        for number in self.receives.begin(next) {
            let buffer = self.receives.buffer(number);
            // It belongs to a later task than the one at hand.
            inbox.stream.device().set_scope(&format!("{} arrival {number}", inbox.name));
            cx.compute().record(&inbox.free)?;
            inbox.stream.wait(&inbox.free)?;
            if !self.rehearses {
                let kind = CollectiveKind::Receive { from: 0 };
                inbox.stream.submit(Collective::in_place(
                    kind,
                    inbox.communicator.clone(),
                    inbox.receive_buffers[buffer],
                ))?;
            }
            inbox.stream.record(&inbox.arrived[buffer])?;
        }
        Ok(())
    }

    fn arrived(&mut self, cx: &StepContext<'_>) -> Result<Option<Tensor>> {
        let Some(inbox) = &self.way.inbox else { return Ok(None) };
        let number = self.receives.take();
        let buffer = self.receives.buffer(number);
        cx.compute().wait(&inbox.arrived[buffer])?;
        Ok(Some(inbox.receive_buffers[buffer]))
    }

    /// Sends what `fill` puts into the send buffer, once the previous send has read it.
    fn send(
        &mut self,
        cx: &mut StepContext<'_>,
        fill: impl FnOnce(&mut StepContext<'_>, Tensor) -> Result<()>,
    ) -> Result<()> {
        self.wait_for_send(cx)?;
        let Some(outbox) = &self.way.outbox else { return Ok(()) };
        fill(cx, outbox.send_buffer)?;
        cx.compute().record(&outbox.ready)?;
        outbox.stream.wait(&outbox.ready)?;
        if !self.rehearses {
            let kind = CollectiveKind::Send { to: 1 };
            outbox.stream.submit(Collective::in_place(kind, outbox.communicator.clone(), outbox.send_buffer))?;
        }
        outbox.stream.record(&outbox.sent)?;
        self.sending = true;
        Ok(())
    }

    fn wait_for_send(&mut self, cx: &StepContext<'_>) -> Result<()> {
        if let (true, Some(outbox)) = (self.sending, &self.way.outbox) {
            cx.compute().wait(&outbox.sent)?;
            self.sending = false;
        }
        Ok(())
    }
}
