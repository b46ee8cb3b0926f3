//! Where a region is recorded, run, captured or replayed.

use device::ops::{Copy, Poison};
use device::{CheckError, DType, Graph, Tensor};

use crate::context::{Current, StepContext};
use crate::error::{Error, Result};
use crate::finally::Finally;
use crate::frozen;
use crate::keys::GraphKey;
use crate::policy::Policy;
use crate::program::Visit;
use crate::state::Captured;
use crate::tensor_tree::{TensorTree, tensors};

/// A region whose code runs. At its end the region around it is the innermost one again.
struct Inside<'c, 'm, P: Policy> {
    cx: &'c mut StepContext<'m, P>,
    region: P::Region,
    outer: Option<Current<P::Region>>,
}

impl<P: Policy> Drop for Inside<'_, '_, P> {
    fn drop(&mut self) {
        self.cx.current = self.outer;
        if std::thread::panicking() {
            self.cx.unwound.get_or_insert(self.region);
        }
    }
}

/// The region under way: itself and its index in the recorded order.
type At<R> = (R, usize);

impl<'m, P: Policy> StepContext<'m, P> {
    /// A region of the step. It is recorded, run eagerly, captured and launched, or replayed, as the phase and the policy
    /// decide. A replay does not call `body`; it returns the captured output again. Where [`Policy::is_region`] answers
    /// false, `body` runs as part of the region around it.
    ///
    /// # Errors
    /// What `body` returns; an out-of-order error when the recorded step has another region here; [`Error::Changed`]
    /// when an input lies elsewhere than at capture; [`Error::Frozen`] from a manager that checks replays.
    pub fn region<I: TensorTree, O: TensorTree>(
        &mut self,
        region: P::Region,
        input: I,
        body: impl FnOnce(&mut StepContext<'m, P>, I) -> Result<O>,
    ) -> Result<O> {
        if !self.manager.policy.is_region(region) {
            return body(self, input);
        }
        self.check_unwound()?;
        let stream = self.compute().id();
        let visit = match &mut self.recording {
            Some(recording) => {
                let (device, recorder) = (self.manager.pool.device(), &mut recording.recorder);
                let captured = self.manager.options.enable && self.manager.policy.captured(region).is_ok();
                let visit = recorder.begin(device, region, stream, captured);
                // A listener hears whose operations these are.
                device.set_scope(&recorder.name(visit));
                visit
            }
            None => self.expect(region)?,
        };
        if self.graphs && !self.capturing && self.manager.why_eager(&self.program().visits[visit]).is_none() {
            self.join_branch()?;
            let (state, program) = (self.state(), self.program());
            let key = state.graph_key(&self.manager.policy, self.mode, program, visit);
            if !state.graphs.contains_key(&key) {
                return self.capture((region, visit), key, input, body);
            }
            let next = program.visits[visit].next();
            let output = self.replay((region, visit), &key, input, body)?;
            self.position = next;
            self.note_results(visit)?;
            return Ok(output);
        }
        if self.recording.is_none() {
            self.set_scope(visit);
        }
        let output = self.inside((region, visit), input, |cx, input| cx.work(region, input, body));
        // Also where it failed: the step may go on.
        if let Some(recording) = &mut self.recording {
            recording.recorder.end(self.manager.pool.device());
            self.forget_read(region, visit);
        }
        let output = output?;
        self.note_results(visit)?;
        Ok(output)
    }

    /// Runs `work` with `region` as the innermost region.
    fn inside<I: TensorTree, O>(
        &mut self,
        (region, visit): At<P::Region>,
        input: I,
        work: impl FnOnce(&mut StepContext<'m, P>, I) -> Result<O>,
    ) -> Result<O> {
        self.enter_branch()?;
        let planned = match self.recording {
            Some(_) => None,
            None => self.state().planned_visit(&self.manager.policy, region, self.microbatches),
        };
        let outer = self.current.replace(Current { region, visit, planned, taken: 0, part: None });
        let inside = Inside { cx: self, region, outer };
        let cx = &mut *inside.cx;
        cx.forget_deferred();
        let result = cx.own_inputs(region, input).and_then(|input| work(cx, input));
        result.map_err(|error| error.within(region))
    }

    /// The region's code, after a mark for a watchdog and before poison.
    fn work<I, O>(
        &mut self,
        region: P::Region,
        input: I,
        body: impl FnOnce(&mut StepContext<'m, P>, I) -> Result<O>,
    ) -> Result<O> {
        self.mark(region)?;
        let output = body(self, input)?;
        self.leave_branch(region)?;
        self.poison(region)?;
        Ok(output)
    }

    fn capture<I: TensorTree, O: TensorTree>(
        &mut self,
        at: At<P::Region>,
        key: GraphKey<P::Region, P::Variant>,
        input: I,
        body: impl FnOnce(&mut StepContext<'m, P>, I) -> Result<O>,
    ) -> Result<O> {
        let (region, visit) = at;
        let variant = key.code.variant.to_string();
        let name = if variant.is_empty() { region.to_string() } else { format!("{region}, {variant}") };
        self.set_scope(visit);
        let (graph, inputs, output) = self.capture_code(at, &name, input, body)?;
        tracing::debug!(graph = %graph.name(), nodes = graph.nodes().len(), "captured");
        graph.launch(self.compute()).map_err(|error| Error::from(error).within(name))?;
        let state = self.state_mut();
        let number = state.graphs.len();
        state.graphs.insert(key, Captured { number, graph, inputs, output: Box::new(output.clone()) });
        Ok(output)
    }

    /// The region's graph, which is not launched, with its inputs and its output.
    fn capture_code<I: TensorTree, O: TensorTree>(
        &mut self,
        at: At<P::Region>,
        name: &str,
        input: I,
        body: impl FnOnce(&mut StepContext<'m, P>, I) -> Result<O>,
    ) -> Result<(Graph, Vec<Tensor>, O)> {
        let compute = self.compute().clone();
        let (mut inputs, mut _unfinished) = (Vec::new(), None);
        let output = self.inside(at, input, |cx, input| {
            inputs = tensors(&input)?;
            compute.begin_capture()?;
            // After `end_capture` there is nothing to abandon.
            _unfinished = Some(Finally(|| compute.abandon_capture()));
            cx.capturing = true;
            let output = cx.work(at.0, input, body);
            cx.capturing = false;
            output
        })?;
        let graph = compute.end_capture(name).map_err(|error| Error::from(error).within(name))?;
        Ok((graph, inputs, output))
    }

    fn replay<I: TensorTree, O: TensorTree>(
        &mut self,
        (region, visit): At<P::Region>,
        key: &GraphKey<P::Region, P::Variant>,
        input: I,
        body: impl FnOnce(&mut StepContext<'m, P>, I) -> Result<O>,
    ) -> Result<O> {
        let check = self.manager.options.check_replays;
        if check || self.manager.pool.device().is_timed() {
            self.set_scope(visit);
        }
        let captured = &self.state().graphs[key];
        let copies = !self.manager.options.share_io_buffers;
        let mut inputs = captured.inputs.iter();
        let changed = |problem: String, fix| Error::changed(region, problem, fix);
        input.map(&mut |name, tensor| {
            let same = |was: &&Tensor| (was.shape, was.dtype) == (tensor.shape, tensor.dtype);
            let Some(&own) = inputs.next().filter(same) else {
                let problem = format!("input `{name}` has another number, shape or type than at capture");
                return Err(changed(problem, "pass the same buffers each step"));
            };
            if tensor.address != own.address && !copies {
                let problem = format!("input `{name}` lies at another address than at capture");
                let fix = "pass the buffer that the region was captured with, or set share_io_buffers = false";
                return Err(changed(problem, fix));
            }
            if tensor.address != own.address {
                self.set_scope(visit);
                self.run(Copy { input: tensor, output: own })?;
            }
            Ok(tensor)
        })?;
        if inputs.next().is_some() {
            return Err(changed("it has fewer inputs than at capture".into(), "pass the same buffers each step"));
        }
        if check {
            let (graph, ..) = self.capture_code((region, visit), "check", input, body)?;
            let was = &self.state().graphs[key].graph;
            if let Some(problem) = frozen::difference(was.nodes(), graph.nodes()) {
                return Err(Error::Frozen { region: region.to_string(), problem });
            }
            self.manager.compared += 1;
        }
        let captured = &self.state().graphs[key];
        let named = |error| Error::from(error).within(captured.graph.name());
        captured.graph.launch(self.compute()).map_err(named)?;
        captured.output.downcast_ref::<O>().cloned().ok_or_else(|| {
            let problem = format!("it was captured with another output type than {}", std::any::type_name::<O>());
            changed(problem, "return the same type from the region each step")
        })
    }

    /// Names the region that operations belong to from now on.
    fn set_scope(&self, visit: usize) {
        self.manager.pool.device().set_scope(&self.program().visits[visit].name);
    }

    /// With boundary copies, the captured region's own copies of its inputs; else the inputs themselves.
    fn own_inputs<I: TensorTree>(&mut self, region: P::Region, input: I) -> Result<I> {
        let (options, policy) = (&self.manager.options, &self.manager.policy);
        if options.share_io_buffers || !options.enable || policy.captured(region).is_err() {
            return Ok(input);
        }
        input.map(&mut |name, tensor| {
            let own = self.tensor(name, tensor.shape, tensor.dtype)?;
            self.run(Copy { input: tensor, output: own })?;
            Ok(own)
        })
    }

    /// Leaves a mark where a watchdog reads them; a captured region has it in its graph.
    fn mark(&self, region: P::Region) -> Result<()> {
        let Some(progress) = self.manager.pool.device().progress().filter(|_| !self.is_aside) else { return Ok(()) };
        match self.manager.policy.mark(region) {
            Some(name) => self.run(progress.region(&name)),
            None => Ok(()),
        }
    }

    /// Overwrites what is dead after this region.
    fn poison(&self, region: P::Region) -> Result<()> {
        if !self.manager.options.poison || self.recording.is_some() {
            return Ok(());
        }
        let plan = &self.state().plan;
        let key = plan.key(&self.manager.policy, region, self.microbatches);
        for dead in plan.dead_after.get(&key).into_iter().flatten() {
            let output = self.manager.areas[&dead.area].place(dead.buffer, dead.offset, [dead.bytes], DType::U8);
            self.run(Poison { output })?;
        }
        Ok(())
    }

    /// Checks that the recorded order has this region next, and moves on.
    fn expect(&mut self, region: P::Region) -> Result<usize> {
        let visit = self.position;
        match self.program().visits.get(visit) {
            Some(expected) if expected.region == region => {
                self.position += 1;
                Ok(visit)
            }
            expected => Err(out_of_order(visit, expected, &region.to_string())),
        }
    }

    /// Checks that the step has gone through all of the recorded order.
    pub(crate) fn check_complete(&self) -> Result<()> {
        match self.program().visits.get(self.position) {
            None => Ok(()),
            expected => Err(out_of_order(self.position, expected, "the end of the step")),
        }
    }
}

fn out_of_order<R>(position: usize, expected: Option<&Visit<R>>, actual: &str) -> Error {
    let expected = expected.map_or("the end of the step".into(), |visit| visit.name.to_string());
    let hazard = CheckError::OutOfOrder { position, expected, actual: actual.into() };
    device::Error::from(hazard).into()
}
