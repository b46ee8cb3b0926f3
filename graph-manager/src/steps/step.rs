//! The states of a step: recorded, warming up, captured, replayed.

use std::any::Any;

use device::Tensor;

use super::run::Run;
use crate::code::StepContext;
use crate::error::{Error, Result};
use crate::finally::Finally;
use crate::keys::StepKey;
use crate::manager::CudaGraphManager;
use crate::memory::Binding;
use crate::options::CheckReplays;
use crate::policy::Policy;
use crate::program::{Program, Recorder, refuse_change};
use crate::tensor_tree::TensorTree;

/// The code of a step. It is called to make the step's list, and again only to check it.
pub(crate) type Code<'b, P, O> = &'b mut dyn FnMut(&mut StepContext<'_, P>) -> Result<O>;

impl<P: Policy> CudaGraphManager<P> {
    /// Makes the list of a step without running the step, and plans the step's memory. Record every mode, each with
    /// every number of microbatches that will come, before the first [`CudaGraphManager::step`], because that one
    /// allocates. If a later recording needs more memory, all graphs are captured again.
    ///
    /// # Errors
    /// Errors of `code`; [`Error::Usage`] when the step cannot be planned, or does not fit an earlier recording of the
    /// mode.
    pub fn record<O: TensorTree>(&mut self, mode: P::Mode, microbatches: usize, code: Code<'_, P, O>) -> Result<()> {
        let (program, output) = self.recorded(microbatches, mode, code)?;
        self.plan(mode, program, Box::new(output) as Box<dyn Any>)
    }

    /// The list that the code of a step makes, and the code's result.
    pub(crate) fn recorded<O: TensorTree>(
        &mut self,
        microbatches: usize,
        mode: P::Mode,
        code: Code<'_, P, O>,
    ) -> Result<(Program<P::Region>, O)> {
        let pool = self.pool.clone();
        pool.during(|| {
            if pool.is_nested() {
                let problem = "a step was recorded inside a region of another step";
                return Err(Error::usage(problem, "run it before, often enough for it to have its graph"));
            }
            let recorder = Recorder::new(microbatches, pool.compute().id());
            let mut cx = StepContext::new(self, mode, microbatches, recorder);
            let (device, scope) = (pool.device(), pool.device().scope());
            let _restored = Finally(|| device.set_scope(&scope));
            let _range = device.nvtx_range(|| format!("record {mode:?}"));
            device.begin_trace();
            let _ended = Finally(|| drop(device.end_trace()));
            let output = code(&mut cx)?;
            cx.check_unwound()?;
            cx.keep(&output)?;
            cx.passes.check_end()?;
            let program = cx.recorder.into_inner().finish(device)?;
            Ok((program, output))
        })
    }

    /// Records a step unless that was done, and makes sure that there is memory for the step.
    pub(crate) fn prepare<O: TensorTree>(
        &mut self,
        mode: P::Mode,
        microbatches: usize,
        code: Code<'_, P, O>,
    ) -> Result<StepKey<P::Mode>> {
        let key = self.step_key(mode, microbatches);
        if !self.is_planned(mode, microbatches) {
            self.record(mode, microbatches, code)?;
        }
        self.make_room(key)?;
        self.share()?;
        self.steps += 1;
        self.state_mut(key).last_used = self.steps;
        Ok(key)
    }

    /// Runs a step before the first real one: once eagerly, and once more to capture its regions if no captured region
    /// contains one that is left out.
    ///
    /// A driver may have to finish all work on a GPU before it loads a kernel or instantiates a graph. If that work
    /// includes transfers that wait for other ranks, and those wait in turn, a first step might never end. So sends to
    /// other ranks and receives are left out. Regions with `leaves_out` true are left out too, since their work must
    /// not be done twice. They, and captured regions that send or receive, are captured in the first real steps.
    ///
    /// # Errors
    /// As [`CudaGraphManager::step`].
    pub fn rehearse<O: TensorTree>(
        &mut self,
        mode: P::Mode,
        microbatches: usize,
        code: Code<'_, P, O>,
        leaves_out: impl Fn(P::Region) -> bool,
    ) -> Result<()> {
        let key = self.prepare(mode, microbatches, code)?;
        let program = self.states[&key].programs[&microbatches].clone();
        let mut left_out: Vec<bool> = Vec::with_capacity(program.visits.len());
        for visit in &program.visits {
            let around = visit.outer().is_some_and(|outer| left_out[outer]);
            left_out.push(around || leaves_out(visit.region));
        }
        self.run(key, microbatches, &Run { left_out: Some(&left_out), ..Run::all(false) }, None)?;
        let leaves_out = |visit: usize| left_out[visit..program.visits[visit].next()].contains(&true);
        let is_complete = |(visit, eager): (usize, Option<_>)| eager.is_some() || left_out[visit] || !leaves_out(visit);
        if self.options.enable && self.submitted(&program).all(is_complete) {
            (self.before_capture)()?;
            self.run(key, microbatches, &Run { left_out: Some(&left_out), ..Run::all(true) }, None)?;
        }
        Ok(())
    }

    /// Runs one step, and returns the result of the step's code. Tensors in it have their addresses in the step. They
    /// stay as they are until the next step. The first step of a kind calls the code to make the list of the step, and
    /// the second one to compare it; later ones run the list and call no code. Values that change from step to step lie
    /// in device memory; work of the host that changes is done in a [host call](StepContext::host_call).
    ///
    /// # Errors
    /// Errors of `code` and of the device. [`Error::Frozen`] or an out-of-order error if the code would now make another
    /// list: it is called again [once](crate::CheckReplays::Once), before the list first runs again. After an error of the
    /// device the step is half done: its numbers mean nothing.
    pub fn step<O: TensorTree>(&mut self, mode: P::Mode, microbatches: usize, code: Code<'_, P, O>) -> Result<O> {
        self.step_from(mode, microbatches, code, &|_, _, recorded| recorded)
    }

    /// As [`CudaGraphManager::step`], with other tensors in place of the recorded inputs that regions copy: see
    /// [`Run::input`].
    pub(crate) fn step_from<O: TensorTree>(
        &mut self,
        mode: P::Mode,
        microbatches: usize,
        code: Code<'_, P, O>,
        input: &dyn Fn(usize, usize, device::Tensor) -> device::Tensor,
    ) -> Result<O> {
        let key = self.prepare(mode, microbatches, &mut *code)?;
        let graphs = self.options.enable && self.states[&key].steps >= self.options.warmup_steps;
        if graphs && !std::mem::replace(&mut self.state_mut(key).begun, true) {
            (self.before_capture)()?;
        }
        // Inside another region the graph becomes a part of that one's list, and nothing can be recorded.
        if !self.pool.is_nested() {
            self.check_repeats(key, microbatches, graphs, code)?;
        }
        // A failed step does not count as warm-up: work that the capture needs may not have run.
        let graphs = graphs && !self.would_wait_whole(key, microbatches);
        self.run(key, microbatches, &Run { input, ..Run::all(graphs) }, None)?;
        let state = self.state_mut(key);
        state.steps += 1;
        state.compared.entry(microbatches).or_insert(false);
        self.output(key, microbatches)
    }

    /// Before a step: fails if it is time to compare its list and the code would now make another one, and tells of random
    /// numbers that repeat.
    fn check_repeats<O: TensorTree>(
        &mut self,
        key: StepKey<P::Mode>,
        microbatches: usize,
        graphs: bool,
        code: Code<'_, P, O>,
    ) -> Result<()> {
        let runs_again = self.states[&key].compared.get(&microbatches) == Some(&false);
        let compares = match self.options.check_replays {
            CheckReplays::Never => return Ok(()),
            CheckReplays::Once => runs_again,
            CheckReplays::Always => runs_again || graphs,
        };
        if compares {
            self.compare(key, microbatches, code)?;
        }
        if compares && graphs {
            let program = &self.states[&key].programs[&microbatches];
            self.compared += self.submitted(program).filter(|(_, eager)| eager.is_none()).count() as u64;
        }
        #[cfg(feature = "trainer-ops")]
        self.tell_of_repeated_draws(key, microbatches);
        Ok(())
    }

    /// Fails if the code of a step would now make another list.
    pub(crate) fn compare<O: TensorTree>(
        &mut self,
        key: StepKey<P::Mode>,
        microbatches: usize,
        code: Code<'_, P, O>,
    ) -> Result<()> {
        let device = self.pool.device().clone();
        let made = device.buffers_made();
        // A device has numbers for so many buffers, and a step may be compared any number of times.
        let _forgotten = Finally(|| device.forget_buffers_since(made));
        let (now, _) = self.recorded(microbatches, key.0, code)?;
        let program = &self.states[&key].programs[&microbatches];
        refuse_change(program, &now)?;
        self.state_mut(key).compared.insert(microbatches, true);
        Ok(())
    }

    /// The result of a step's code, with the result's tensors at the tensors' addresses in memory.
    fn output<O: TensorTree>(&mut self, key: StepKey<P::Mode>, microbatches: usize) -> Result<O> {
        let binding = self.binding(key, microbatches);
        let state = &self.states[&key];
        let Some(recorded) = state.outputs[&microbatches].downcast_ref::<O>() else {
            let problem = format!("a step was recorded with another output type than {}", std::any::type_name::<O>());
            return Err(Error::usage(problem, "return the same type from the code of a step each time"));
        };
        let program = &state.programs[&microbatches];
        recorded.map(&mut |_, tensor| Ok(self.lent(program, &binding, tensor)))
    }

    /// The tensor of a result at the tensor's address in memory. Under the checker a read of it fails after the next
    /// run: then its memory has other values. Within another region it becomes a part of that one's list.
    pub(crate) fn lent(&self, program: &Program<P::Region>, binding: &Binding, tensor: Tensor) -> Tensor {
        let bound = binding.bound(program, tensor);
        let is_planned = program.taken(tensor.buffer).is_some();
        if is_planned && !self.pool.is_nested() { self.pool.device().lend(bound) } else { bound }
    }

    /// Whether steps of that kind no longer warm up or capture.
    pub fn is_settled(&self, mode: P::Mode, microbatches: usize) -> bool {
        let warm_up = if self.options.enable { self.options.warmup_steps } else { 0 };
        self.states.get(&self.step_key(mode, microbatches)).is_some_and(|state| state.steps > warm_up)
    }
}
