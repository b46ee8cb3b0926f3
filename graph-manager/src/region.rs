//! Where a region is recorded, run, captured or replayed.

use device::ops::{Copy, Poison};
use device::{CheckError, DType, Graph, Tensor};

use crate::context::{Current, Phase, StepContext};
use crate::error::{Error, OUTSIDE, Result};
use crate::frozen;
use crate::keys::GraphKey;
use crate::policy::Policy;
use crate::recording::Visit;
use crate::resources::Resources;
use crate::state::Captured;
use crate::tensor_tree::TensorTree;

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
        if !self.resources.policy.is_region(region) {
            return body(self, input);
        }
        let outer = self.current.map(|current| current.visit);
        if let Phase::Record { recording, .. } = &mut self.phase {
            let visit = recording.begin(region, outer, self.resources.device.trace_position());
            let output = self.inside((region, visit), |cx| {
                let input = cx.own_inputs(region, input)?;
                cx.mark(region)?;
                body(cx, input)
            })?;
            let end = self.resources.device.trace_position();
            if let Phase::Record { recording, .. } = &mut self.phase {
                recording.end(visit, end);
            }
            return Ok(output);
        }
        let visit = self.expect(region)?;
        let graphs = matches!(self.phase, Phase::Run { graphs: true, .. });
        let (state, recording) = (self.state(), self.recording());
        if graphs && !self.capturing && self.resources.captured(recording, visit).is_ok() {
            let key = state.graph_key(&self.resources.policy, self.mode, recording, visit);
            if !state.graphs.contains_key(&key) {
                return self.capture((region, visit), key, input, body);
            }
            let next = recording.order[visit].next;
            let output = self.replay((region, visit), &key, input, body)?;
            if let Phase::Run { position, .. } = &mut self.phase {
                *position = next;
            }
            return Ok(output);
        }
        self.set_scope(visit);
        self.inside((region, visit), |cx| {
            let input = cx.own_inputs(region, input)?;
            cx.mark(region)?;
            let output = body(cx, input)?;
            cx.poison(region)?;
            Ok(output)
        })
    }

    /// Runs `work` with `region` as the innermost region.
    fn inside<O>(
        &mut self,
        (region, visit): At<P::Region>,
        work: impl FnOnce(&mut StepContext<'m, P>) -> Result<O>,
    ) -> Result<O> {
        let outer = self.current.replace(Current { region, visit, taken: 0, part: None });
        self.forget_deferred();
        let result = work(self).map_err(|error| error.within(region));
        self.current = outer;
        result
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
        graph.launch(&self.resources.compute).map_err(|source| Error::Device { region: name, source })?;
        let state = self.state_mut();
        state.graphs.insert(key, Captured { graph, inputs, output: Box::new(output.clone()) });
        state.captured.push(key);
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
        let region = at.0;
        let compute = self.resources.compute.clone();
        let mut inputs = Vec::new();
        let output = self.inside(at, |cx| {
            let input = cx.own_inputs(region, input)?;
            input.map(&mut |_, tensor| {
                inputs.push(tensor);
                Ok(tensor)
            })?;
            compute.begin_capture().map_err(|source| cx.in_region(source))?;
            cx.capturing = true;
            let output = cx.mark(region).and_then(|()| body(cx, input)).and_then(|output| {
                cx.poison(region)?;
                Ok(output)
            });
            cx.capturing = false;
            if output.is_err() {
                compute.abandon_capture();
            }
            output
        })?;
        let graph = compute.end_capture(name).map_err(|source| Error::Device { region: name.into(), source })?;
        Ok((graph, inputs, output))
    }

    fn replay<I: TensorTree, O: TensorTree>(
        &mut self,
        (region, visit): At<P::Region>,
        key: &GraphKey<P::Region, P::Variant>,
        input: I,
        body: impl FnOnce(&mut StepContext<'m, P>, I) -> Result<O>,
    ) -> Result<O> {
        if self.resources.device.is_timed() || self.resources.options.check_replays {
            self.set_scope(visit);
        }
        let captured = &self.state().graphs[key];
        let copies = !self.resources.options.share_io_buffers;
        let mut at = 0;
        input.map(&mut |name, tensor| {
            let same = |was: &&Tensor| (was.shape, was.dtype) == (tensor.shape, tensor.dtype);
            let Some(&expected) = captured.inputs.get(at).filter(same) else {
                return Err(other_inputs(region, format!("input `{name}` has another number, shape or type")));
            };
            at += 1;
            if tensor.address == expected.address {
                return Ok(tensor);
            }
            if copies {
                self.set_scope(visit);
                self.run(Copy { input: tensor, output: expected })?;
                return Ok(tensor);
            }
            Err(Error::Changed {
                region: region.to_string(),
                problem: format!("input `{name}` lies at another address than at capture"),
                fix: "pass the buffer that the region was captured with, or set share_io_buffers = false",
            })
        })?;
        if at < captured.inputs.len() {
            return Err(other_inputs(region, format!("it has {at} inputs of {}", captured.inputs.len())));
        }
        if self.resources.options.check_replays {
            let (graph, ..) = self.capture_code((region, visit), "check", input, body)?;
            let was = &self.state().graphs[key].graph;
            if let Some(problem) = frozen::difference(was.nodes(), graph.nodes()) {
                return Err(Error::Frozen { region: region.to_string(), problem });
            }
        }
        let captured = &self.state().graphs[key];
        captured
            .graph
            .launch(&self.resources.compute)
            .map_err(|source| Error::Device { region: captured.graph.name().into(), source })?;
        match captured.output.downcast_ref::<O>() {
            Some(output) => Ok(output.clone()),
            None => Err(Error::Changed {
                region: region.to_string(),
                problem: format!("it was captured with another output type than {}", std::any::type_name::<O>()),
                fix: "return the same type from the region each step",
            }),
        }
    }

    /// Names the region that operations belong to from now on.
    fn set_scope(&self, visit: usize) {
        self.resources.device.set_scope(&self.recording().order[visit].name);
    }

    /// With boundary copies, the captured region's own copies of its inputs; else the inputs themselves.
    fn own_inputs<I: TensorTree>(&mut self, region: P::Region, input: I) -> Result<I> {
        let Resources { options, policy, .. } = &*self.resources;
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
        let Some(progress) = self.resources.device.progress() else { return Ok(()) };
        match self.resources.policy.mark(region) {
            Some(name) => self.run(progress.region(&name)),
            None => Ok(()),
        }
    }

    /// Overwrites what is dead after this region.
    fn poison(&mut self, region: P::Region) -> Result<()> {
        if !self.resources.options.poison {
            return Ok(());
        }
        let plan = &self.state().plan;
        for dead in plan.dead_after(plan.key(&self.resources.policy, region, self.microbatches)) {
            let output = self.resources.areas[&dead.area].place(dead.buffer, dead.offset, [dead.bytes], DType::U8);
            self.run(Poison { output })?;
        }
        Ok(())
    }

    /// Checks that the recorded order has this region next, and moves on.
    fn expect(&mut self, region: P::Region) -> Result<usize> {
        let Phase::Run { position: visit, .. } = self.phase else { return Ok(0) };
        match self.recording().order.get(visit) {
            Some(expected) if expected.region == region => {}
            expected => return Err(out_of_order(visit, expected, &region.to_string())),
        }
        if let Phase::Run { position, .. } = &mut self.phase {
            *position += 1;
        }
        Ok(visit)
    }

    /// Checks that the step has gone through all of the recorded order.
    pub(crate) fn check_complete(&self) -> Result<()> {
        let Phase::Run { position, .. } = &self.phase else { return Ok(()) };
        match self.recording().order.get(*position) {
            None => Ok(()),
            expected => Err(out_of_order(*position, expected, "the end of the step")),
        }
    }
}

fn out_of_order<R>(position: usize, expected: Option<&Visit<R>>, actual: &str) -> Error {
    let expected = expected.map_or("the end of the step".into(), |visit| visit.name.to_string());
    let hazard = CheckError::OutOfOrder { position, expected, actual: actual.into() };
    Error::Device { region: OUTSIDE.into(), source: hazard.into() }
}

fn other_inputs(region: impl std::fmt::Display, problem: String) -> Error {
    Error::Changed {
        region: region.to_string(),
        problem: format!("{problem} than at capture"),
        fix: "pass the same buffers each step",
    }
}
