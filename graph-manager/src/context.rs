//! What a step's code sees: the stream to submit to, buffers from the plan, and side streams.

use std::rc::Rc;

use device::{DType, Op, Shape, Stream, Tensor, TraceEvent};

use crate::error::{Error, OUTSIDE, Result};
use crate::handover::Handover;
use crate::keys::{CodeKey, RegionKey, StepKey};
use crate::lifetimes::lifetimes;
use crate::policy::Policy;
use crate::recording::{RecordedBuffer, Recording};
use crate::resources::Resources;
use crate::side_stream::{Fork, SideStream};
use crate::state::State;
use crate::tensor_tree::TensorTree;

/// A step under way.
pub struct StepContext<'m, P: Policy> {
    pub(crate) resources: &'m mut Resources<P>,
    pub(crate) mode: P::Mode,
    pub(crate) microbatches: usize,
    pub(crate) phase: Phase<P>,
    /// The innermost region.
    pub(crate) current: Option<Current<P::Region>>,
    /// Inside a region that is being captured.
    pub(crate) capturing: bool,
    key: StepKey<P::Mode>,
}

pub(crate) enum Phase<P: Policy> {
    /// Nothing runs.
    Record { recording: Box<Recording<P::Region>>, handover: Handover<P> },
    /// Work is submitted; with `graphs`, regions are captured or replayed. `position` is the next visit expected.
    Run { graphs: bool, position: usize },
}

#[derive(Clone, Copy)]
pub(crate) struct Current<R> {
    pub(crate) region: R,
    /// Index in the recorded order.
    pub(crate) visit: usize,
    /// How many buffers it has taken.
    pub(crate) taken: usize,
    /// Which part of the region's layer saves values now.
    pub(crate) part: Option<usize>,
}

impl<'m, P: Policy> StepContext<'m, P> {
    /// A step that is recorded.
    pub(crate) fn record(resources: &'m mut Resources<P>, mode: P::Mode, microbatches: usize) -> StepContext<'m, P> {
        let phase = Phase::Record { recording: Recording::new(microbatches).into(), handover: Handover::default() };
        StepContext::new(resources, mode, microbatches, phase)
    }

    /// A step that runs; with `graphs`, its regions are captured or replayed.
    pub(crate) fn run_step(
        resources: &'m mut Resources<P>,
        mode: P::Mode,
        microbatches: usize,
        graphs: bool,
    ) -> StepContext<'m, P> {
        StepContext::new(resources, mode, microbatches, Phase::Run { graphs, position: 0 })
    }

    fn new(resources: &'m mut Resources<P>, mode: P::Mode, microbatches: usize, phase: Phase<P>) -> StepContext<'m, P> {
        let key = resources.step_key(mode, microbatches);
        StepContext { resources, mode, microbatches, phase, current: None, capturing: false, key }
    }

    /// The end of a recorded step, with what was submitted.
    pub(crate) fn into_recording(self, trace: &[TraceEvent]) -> Recording<P::Region> {
        let mut lifetimes = lifetimes(trace, self.resources.compute.id());
        match self.phase {
            Phase::Record { recording, .. } => {
                for (buffer, until) in &recording.kept {
                    let used = lifetimes.get_mut(buffer).into_iter();
                    used.for_each(|used| used.last = used.last.max(*until));
                }
                Recording { lifetimes, ..*recording }
            }
            Phase::Run { .. } => unreachable!("a step that runs is not recorded"),
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

    /// The innermost region under way; `None` outside of any.
    pub fn current_region(&self) -> Option<P::Region> {
        self.current.map(|current| current.region)
    }

    /// The variant of the current region; the default outside of any.
    pub fn variant(&self) -> P::Variant {
        let of = |current: Current<_>| self.resources.policy.variant(self.mode, current.region, self.microbatches);
        self.current.map(of).unwrap_or_default()
    }

    /// The stream regions run on.
    pub fn compute(&self) -> &Stream {
        &self.resources.compute
    }

    /// Submits an operation to the compute stream.
    ///
    /// # Errors
    /// What the device refused, with the region; while recording, an update of weights whose status no `clip_scale` of the
    /// step has written.
    pub fn run(&self, op: impl Into<Op>) -> Result<()> {
        let op = op.into();
        if let Phase::Record { recording, .. } = &self.phase
            && let Err(source) = recording.check_clipped(&op)
        {
            return Err(self.in_region(source));
        }
        self.resources.compute.submit(op).map_err(|source| self.in_region(source))
    }

    /// A side stream that all regions share.
    pub fn side_stream(&self) -> &Rc<SideStream> {
        self.resources.pool.side()
    }

    /// Starts operations on a side stream, after all that was submitted so far. They run next to what follows until they
    /// are joined.
    ///
    /// # Errors
    /// What the device refused, with the region.
    pub fn fork(&self, side: &Rc<SideStream>, work: impl IntoIterator<Item = Op>) -> Result<Fork> {
        let work = work.into_iter().collect();
        Fork::start(side, &self.resources.compute, work).map_err(|source| self.in_region(source))
    }

    /// Makes what follows wait for the operations under way, and for all that was started on their stream since.
    ///
    /// # Errors
    /// What the device refused, such as a failed transfer, with the region.
    pub fn join(&self, fork: Fork) -> Result<()> {
        fork.join(&self.resources.compute).map_err(|source| self.in_region(source))
    }

    /// A buffer of the current region. It lives until its last use, which may be in a later region.
    ///
    /// # Errors
    /// [`Error::Usage`] outside of a region; [`Error::Changed`] when the recorded step took another buffer here.
    pub fn tensor(&mut self, name: &'static str, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        let shape = shape.into();
        let bytes = shape.elements() * dtype.size();
        let Some(current) = &mut self.current else {
            return Err(Error::Usage {
                problem: format!("buffer `{name}` was taken outside of any region"),
                fix: "take it inside StepContext::region",
            });
        };
        let index = current.taken;
        current.taken += 1;
        let Current { region, visit, .. } = *current;
        if let Phase::Record { recording, .. } = &mut self.phase {
            let device = &self.resources.device;
            let tensor = device.virtual_tensor(&format!("{region}/{name}"), shape, dtype);
            let taken_at = device.trace_position();
            recording.buffers.push(RecordedBuffer { visit, index, name, bytes, buffer: tensor.buffer, taken_at });
            return Ok(tensor);
        }
        let plan = &self.state().plan;
        match plan.placement(plan.key(&self.resources.policy, region, self.microbatches), index) {
            Some(at) if at.bytes == bytes && at.name == name => {
                Ok(self.resources.areas[&at.area].place(at.buffer, at.offset, shape, dtype))
            }
            planned => Err(Error::Changed {
                region: region.to_string(),
                problem: format!(
                    "buffer {index} is `{name}` of {bytes} bytes, the recorded step took {}",
                    planned.map_or("none".into(), |p| format!("`{}` of {} bytes", p.name, p.bytes))
                ),
                fix: "keep buffers the same from step to step, or make a new manager",
            }),
        }
    }

    /// Keeps the memory of tensors up to here, for code outside of the step that reads what a region returned.
    pub(crate) fn keep(&mut self, tensors: &impl TensorTree) -> Result<()> {
        let Phase::Record { recording, .. } = &mut self.phase else { return Ok(()) };
        let now = self.resources.device.trace_position();
        tensors.map(&mut |_, tensor| {
            recording.kept.push((tensor.buffer, now));
            Ok(tensor)
        })?;
        Ok(())
    }

    pub(crate) fn in_region(&self, source: device::Error) -> Error {
        Error::Device { region: self.region_name(), source }
    }

    pub(crate) fn region_name(&self) -> String {
        self.current.map_or(OUTSIDE.into(), |current| current.region.to_string())
    }

    /// What is known of steps of this kind, once they are recorded.
    pub(crate) fn state(&self) -> &State<P> {
        &self.resources.states[&self.key]
    }

    /// The recording that this step repeats.
    pub(crate) fn recording(&self) -> &Recording<P::Region> {
        &self.state().recordings[&self.microbatches]
    }

    pub(crate) fn state_mut(&mut self) -> &mut State<P> {
        match self.resources.states.get_mut(&self.key) {
            Some(state) => state,
            None => unreachable!("a step runs after it was recorded"),
        }
    }

    /// The key of a region's code in this step. While recording, every microbatch has its own.
    pub(crate) fn code_key(&self, region: P::Region) -> CodeKey<P::Region, P::Variant> {
        let policy = &self.resources.policy;
        match self.phase {
            Phase::Record { .. } => CodeKey {
                region: RegionKey { region, slot: None },
                variant: policy.variant(self.mode, region, self.microbatches),
            },
            Phase::Run { .. } => self.state().code_key(policy, self.mode, region, self.microbatches),
        }
    }

    /// What regions of this step leave for later ones.
    pub(crate) fn handover(&mut self) -> &mut Handover<P> {
        match self.phase {
            Phase::Record { ref mut handover, .. } => handover,
            Phase::Run { .. } => &mut self.state_mut().handover,
        }
    }
}
