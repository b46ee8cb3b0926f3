//! The phases of a step: recorded, warming up, captured, replayed.

use crate::context::{Recording, StepContext};
use crate::error::{Error, Result};
use crate::finally::Finally;
use crate::keys::StepKey;
use crate::manager::CudaGraphManager;
use crate::policy::Policy;
use crate::program::Recorder;
use crate::state::Handover;

/// The code of a step.
pub(crate) type Body<'b, P> = &'b mut dyn FnMut(&mut StepContext<'_, P>) -> Result<()>;

impl<P: Policy> CudaGraphManager<P> {
    /// Goes through a step without running it, and plans its memory. Record every mode, each with every number of
    /// microbatches that will come, before the first [`CudaGraphManager::step`], which allocates: where a later one needs
    /// more memory, all graphs are captured again.
    ///
    /// # Errors
    /// What `body` returns; [`Error::Usage`] when the step cannot be planned, or does not fit an earlier recording of the
    /// mode.
    pub fn record(&mut self, mode: P::Mode, microbatches: usize, body: Body<'_, P>) -> Result<()> {
        let pool = self.pool.clone();
        let program = pool.during(|| {
            if pool.is_nested() {
                let problem = "a step was recorded inside a region of another step";
                return Err(Error::usage(problem, "run it before, often enough for it to have its graph"));
            }
            let mut cx = StepContext::new(self, mode, microbatches);
            let recorder = Recorder::new(microbatches, pool.compute().id());
            let (read, handover) = (Vec::new(), Handover::default());
            cx.recording = Some(Box::new(Recording { recorder, read, handover }));
            let (device, scope) = (pool.device(), pool.device().scope());
            let _restored = Finally(|| device.set_scope(&scope));
            device.begin_trace();
            let _ended = Finally(|| drop(device.end_trace()));
            body(&mut cx)?;
            cx.check_unwound()?;
            cx.check_deferred()?;
            let recording = cx.recording.take().unwrap_or_else(|| unreachable!("nothing takes it"));
            let Recording { recorder, handover, .. } = *recording;
            drop(handover);
            recorder.finish(device)
        })?;
        self.plan(mode, program)
    }

    /// Records a step unless it was, and makes sure that there is memory for it.
    pub(crate) fn prepare(
        &mut self,
        mode: P::Mode,
        microbatches: usize,
        body: Body<'_, P>,
    ) -> Result<StepKey<P::Mode>> {
        let key = self.step_key(mode, microbatches);
        if !self.states.get(&key).is_some_and(|state| state.programs.contains_key(&microbatches)) {
            self.record(mode, microbatches, body)?;
        }
        self.make_room(key)?;
        self.steps += 1;
        self.state_mut(key).last_used = self.steps;
        Ok(key)
    }

    /// Goes through the beginning of a step before the first real one: once eagerly, and once more to capture its regions
    /// if no captured region contains others.
    ///
    /// A driver may have to finish all work on a GPU before it loads a kernel or instantiates a graph. If that work
    /// includes transfers that wait for other ranks, which wait in turn, a first step might never end. So `body` leaves out
    /// such transfers. It ends before what must not be done twice, which is captured in its real step.
    ///
    /// # Errors
    /// As [`CudaGraphManager::step`].
    pub fn rehearse(&mut self, mode: P::Mode, microbatches: usize, body: Body<'_, P>) -> Result<()> {
        let key = self.prepare(mode, microbatches, body)?;
        self.pass(mode, microbatches, false, &mut *body)?;
        let program = &self.states[&key].programs[&microbatches];
        let is_leaf = |(visit, eager): (usize, Option<_>)| eager.is_some() || !program.is_composite(visit);
        if self.options.enable && self.submitted(program).all(is_leaf) {
            (self.before_capture)()?;
            self.pass(mode, microbatches, true, body)?;
        }
        Ok(())
    }

    /// Runs one step.
    ///
    /// # Errors
    /// What `body` returns; [`Error::Changed`] or an out-of-order error when the step differs from its recording. After
    /// an error the step is half done: its numbers mean nothing.
    pub fn step(&mut self, mode: P::Mode, microbatches: usize, body: Body<'_, P>) -> Result<()> {
        let key = self.prepare(mode, microbatches, body)?;
        let graphs = self.options.enable && self.states[&key].steps >= self.options.warmup_steps;
        if graphs && !std::mem::replace(&mut self.state_mut(key).begun, true) {
            (self.before_capture)()?;
        }
        let result = self.pass(mode, microbatches, graphs, |cx| body(cx).and_then(|()| cx.check_complete()));
        // A step that failed has not warmed up what the capture needs.
        self.state_mut(key).steps += usize::from(result.is_ok());
        result
    }

    /// Goes through the code of a step, or a part of it, and leaves the device as it was, however it ends. With `graphs`,
    /// its regions are captured or replayed.
    pub(crate) fn pass<T>(
        &mut self,
        mode: P::Mode,
        microbatches: usize,
        graphs: bool,
        body: impl FnOnce(&mut StepContext<'_, P>) -> Result<T>,
    ) -> Result<T> {
        let pool = self.pool.clone();
        let scope = pool.device().scope();
        let _restored = Finally(|| pool.device().set_scope(&scope));
        let mut cx = StepContext::new(self, mode, microbatches);
        cx.graphs = graphs;
        pool.during(|| {
            let output = body(&mut cx)?;
            cx.check_unwound()?;
            cx.join_branch()?;
            Ok(output)
        })
    }

    /// Whether steps of that kind no longer warm up or capture.
    pub fn is_settled(&self, mode: P::Mode, microbatches: usize) -> bool {
        let warm_up = if self.options.enable { self.options.warmup_steps } else { 0 };
        self.states.get(&self.step_key(mode, microbatches)).is_some_and(|state| state.steps > warm_up)
    }
}
