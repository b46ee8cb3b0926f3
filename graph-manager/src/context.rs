//! What a step's code sees: the stream to submit to, buffers from the plan, and side streams.

use std::rc::Rc;

use device::{BufferName, DType, Event, Op, Shape, Stream, Tensor};

use crate::error::{Error, OUTSIDE, Result};
use crate::keys::{CodeKey, RegionKey, SavedKey, StepKey};
use crate::manager::CudaGraphManager;
use crate::policy::Policy;
use crate::program::{Program, Recorder};
use crate::side_stream::{Fork, SideStream};
use crate::state::{Handover, State};
use crate::tensor_tree::{TensorTree, tensors};
use crate::trial::Trial;

/// A step under way.
pub struct StepContext<'m, P: Policy> {
    pub(crate) manager: &'m mut CudaGraphManager<P>,
    pub(crate) mode: P::Mode,
    pub(crate) microbatches: usize,
    key: StepKey<P::Mode>,
    /// While the step is recorded. Nothing runs then. It is boxed because a replay makes a context each step.
    pub(crate) recording: Option<Box<Recording<P>>>,
    /// Whether regions are captured or replayed.
    pub(crate) graphs: bool,
    /// The next visit expected in the recorded order.
    pub(crate) position: usize,
    /// The innermost region.
    pub(crate) current: Option<Current<P::Region>>,
    /// Inside a region that is being captured.
    pub(crate) capturing: bool,
    /// Operations on the branch that nothing has waited for.
    pub(crate) on_branch: Option<Fork>,
    /// They belong to a region that has ended.
    pub(crate) branch_outlived: bool,
    /// Regions run on the second lane.
    pub(crate) is_aside: bool,
    /// While the step is verified.
    pub(crate) trial: Option<Box<Trial>>,
    /// The innermost region that a panic has left.
    pub(crate) unwound: Option<P::Region>,
}

/// A recording under way.
pub(crate) struct Recording<P: Policy> {
    pub(crate) recorder: Recorder<P::Region>,
    /// What visits under way have read of what forwards saved: each with the visit.
    pub(crate) read: Vec<Read<P>>,
    pub(crate) handover: Handover<P>,
}

/// A visit, and the key of what it has read.
type Read<P> = (usize, SavedKey<<P as Policy>::Region, <P as Policy>::Variant>);

#[derive(Clone, Copy)]
pub(crate) struct Current<R> {
    pub(crate) region: R,
    /// Index in the recorded order.
    pub(crate) visit: usize,
    /// The visit of the planned list that stands for it.
    pub(crate) planned: Option<usize>,
    /// How many buffers it has taken.
    pub(crate) taken: usize,
    /// Which part of the region's layer saves values now.
    pub(crate) part: Option<usize>,
}

impl<'m, P: Policy> StepContext<'m, P> {
    /// A step that runs eagerly from its beginning.
    pub(crate) fn new(manager: &'m mut CudaGraphManager<P>, mode: P::Mode, microbatches: usize) -> StepContext<'m, P> {
        let key = manager.step_key(mode, microbatches);
        StepContext {
            manager,
            mode,
            microbatches,
            key,
            recording: None,
            graphs: false,
            position: 0,
            current: None,
            capturing: false,
            on_branch: None,
            branch_outlived: false,
            is_aside: false,
            trial: None,
            unwound: None,
        }
    }

    /// What the step is for.
    pub fn mode(&self) -> P::Mode {
        self.mode
    }

    /// Microbatches of the step.
    pub fn microbatches(&self) -> usize {
        self.microbatches
    }

    /// Whether the step is recorded: nothing runs. Then there are no values to read and nothing to wait for, and code that
    /// does so fails. Code of a region that is not captured may leave it out.
    pub fn is_recording(&self) -> bool {
        self.recording.is_some()
    }

    /// Whether regions are captured or replayed, rather than recorded or run eagerly. The first real step of a mode is always
    /// eager, also after a rehearsal. So captured steps may leave out operations that this step makes needless. They may
    /// change nothing else, because the memory plan is that of the recording.
    pub fn uses_graphs(&self) -> bool {
        self.graphs
    }

    /// What the manager was told about regions.
    pub fn policy(&self) -> &P {
        &self.manager.policy
    }

    /// The innermost region under way; `None` outside of any.
    pub fn current_region(&self) -> Option<P::Region> {
        self.current.map(|current| current.region)
    }

    /// The variant of the current region; the default outside of any.
    pub fn variant(&self) -> P::Variant {
        let of = |current: Current<_>| self.manager.policy.variant(self.mode, current.region, self.microbatches);
        self.current.map(of).unwrap_or_default()
    }

    /// The stream that the current region runs on.
    pub fn compute(&self) -> &Stream {
        if self.is_aside { self.manager.pool.lane().stream() } else { self.manager.pool.compute() }
    }

    /// Submits an operation to the stream of the current region.
    ///
    /// # Errors
    /// Errors of the device; while recording, an update of weights whose status no `clip_scale` of the step has written.
    /// The region that returns the error adds its name.
    pub fn run(&self, op: impl Into<Op>) -> Result<()> {
        let op = op.into();
        if let Some(recording) = &self.recording {
            recording.recorder.check_clipped(&op)?;
        }
        Ok(self.compute().submit(op)?)
    }

    /// A side stream that all regions share.
    pub fn side_stream(&self) -> &Rc<SideStream> {
        self.manager.pool.side()
    }

    /// Starts operations on a side stream, after all that was submitted so far. They run next to what follows until they
    /// are joined.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn fork(&self, side: &Rc<SideStream>, work: impl IntoIterator<Item = Op>) -> Result<Fork> {
        Ok(Fork::start(side, self.compute(), work.into_iter().collect())?)
    }

    /// Makes what follows wait for the operations under way, and for all that was started on their stream since.
    ///
    /// # Errors
    /// Errors of the device, such as a failed transfer.
    pub fn join(&self, fork: Fork) -> Result<()> {
        Ok(fork.join(self.compute())?)
    }

    /// Makes what follows wait for an event that was recorded in the same graph, or, outside of graphs, at any time. An event
    /// that was never recorded is not waited for.
    ///
    /// # Errors
    /// Errors of the device, such as a failed transfer.
    pub fn wait(&self, event: &Event) -> Result<()> {
        Ok(self.compute().wait(event)?)
    }

    /// A buffer of the current region. It lives until its last use, which may be in a later region.
    ///
    /// # Errors
    /// [`Error::Usage`] outside of a region; [`Error::Changed`] when the recorded step took another buffer here.
    pub fn tensor(&mut self, name: &'static str, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        let shape = shape.into();
        let bytes = shape.elements() * dtype.size();
        let Some(current) = &mut self.current else {
            let problem = format!("buffer `{name}` was taken outside of any region");
            return Err(Error::usage(problem, "take it inside StepContext::region"));
        };
        let index = current.taken;
        current.taken += 1;
        let Current { region, visit, planned, .. } = *current;
        if let Some(Recording { recorder, .. }) = self.recording.as_deref_mut() {
            let device = self.manager.pool.device();
            let tensor = device.virtual_tensor(BufferName::Within(recorder.name(visit), name), shape, dtype);
            recorder.take(device, name, &tensor);
            return Ok(tensor);
        }
        match self.state().placement(planned, index) {
            Some((at, planned_name)) if at.bytes == bytes && planned_name == name => {
                let program = self.program();
                let own = |visit| program.own(visit, index).map(|(own, _)| (own, program.buffers[own].buffer));
                let address = match self.trial.as_ref().and_then(|trial| trial.apart()) {
                    Some(apart) => own(visit).and_then(|(own, buffer)| Some((apart.address(own)?, buffer))),
                    None => self.state().address(planned, index).map(|address| (address, at.buffer)),
                };
                let (address, buffer) = address.unwrap_or_else(|| unreachable!("a step that runs has memory"));
                Ok(Tensor { address, shape, dtype, buffer })
            }
            planned => {
                let planned = planned.map_or("none".into(), |(at, name)| format!("`{name}` of {} bytes", at.bytes));
                let problem = format!("buffer {index} is `{name}` of {bytes} bytes, the recorded step took {planned}");
                Err(Error::changed(region, problem, "keep buffers the same from step to step, or make a new manager"))
            }
        }
    }

    /// Keeps the memory of tensors up to here, for code outside of the step that reads what a region returned.
    pub(crate) fn keep(&mut self, tree: &impl TensorTree) -> Result<()> {
        if let Some(Recording { recorder, .. }) = self.recording.as_deref_mut() {
            recorder.keep(self.manager.pool.device(), &tensors(tree)?);
        }
        Ok(())
    }

    /// Fails if a panic has left a region of this step, and the step goes on: what the region had to do is half done.
    pub(crate) fn check_unwound(&self) -> Result<()> {
        let Some(region) = self.unwound else { return Ok(()) };
        let problem = format!("{region}: it ended with a panic, and the step went on");
        Err(Error::usage(problem, "catch the panic around the whole step"))
    }

    pub(crate) fn region_name(&self) -> String {
        self.current.map_or(OUTSIDE.into(), |current| current.region.to_string())
    }

    /// What is known of steps of this kind, once they are recorded.
    pub(crate) fn state(&self) -> &State<P> {
        &self.manager.states[&self.key]
    }

    /// The list that this step repeats.
    pub(crate) fn program(&self) -> &Program<P::Region> {
        &self.state().programs[&self.microbatches]
    }

    pub(crate) fn state_mut(&mut self) -> &mut State<P> {
        self.manager.state_mut(self.key)
    }

    /// The key of a region's code in this step. While recording, every microbatch has its own.
    pub(crate) fn code_key(&self, region: P::Region) -> CodeKey<P::Region, P::Variant> {
        let policy = &self.manager.policy;
        if self.recording.is_none() {
            return self.state().code_key(policy, self.mode, region, self.microbatches);
        }
        let variant = policy.variant(self.mode, region, self.microbatches);
        CodeKey { region: RegionKey { region, slot: None }, variant }
    }

    /// What regions of this step leave for later ones.
    pub(crate) fn handover(&mut self) -> &mut Handover<P> {
        match self.recording {
            Some(ref mut recording) => &mut recording.handover,
            None => &mut self.manager.state_mut(self.key).handover,
        }
    }
}
