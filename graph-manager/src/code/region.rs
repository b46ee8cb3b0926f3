//! A region of a step that is recorded.

use std::cell::Cell;

use device::NvtxRange;
use device::ops::Copy;

use super::context::{Current, StepContext};
use crate::error::Result;
use crate::passes::Then;
use crate::policy::Policy;
use crate::tensor_tree::TensorTree;

/// A region while the region's code runs. At its end the region around it is the innermost one again.
struct Inside<'c, 'm, P: Policy> {
    cx: &'c mut StepContext<'m, P>,
    region: P::Region,
    outer: Option<Current<P::Region>>,
}

/// A region that was entered.
struct Entered<R> {
    current: Current<R>,
    begins_aside: bool,
    _range: Option<NvtxRange>,
}

impl<P: Policy> Drop for Inside<'_, '_, P> {
    fn drop(&mut self) {
        self.cx.current = self.outer.take();
        if std::thread::panicking() {
            self.cx.unwound.get_or_insert(self.region);
        }
    }
}

impl<'m, P: Policy> StepContext<'m, P> {
    /// A region of the step: a named part of it. Runs `body` at once, as the recording of the region, and returns its
    /// result. With [`share_io_buffers`](crate::ManagerOptions::share_io_buffers) off, a captured region's `body` gets
    /// copies of the tensors in `input`.
    ///
    /// # Errors
    /// Errors of `body`; of a pass that got its operations; [`Error::Usage`](crate::Error::Usage) after a panic was
    /// caught within the step.
    pub fn region<I: TensorTree, O>(
        &mut self,
        region: P::Region,
        input: I,
        body: impl FnOnce(&mut StepContext<'m, P>, I) -> Result<O>,
    ) -> Result<O> {
        let entered = self.enter(region)?;
        let outer = self.current.replace(entered.current);
        let inside = Inside { cx: self, region, outer };
        let cx = &mut *inside.cx;
        let result = match cx.begin(region, input) {
            Ok(input) => body(cx, input),
            Err(error) => Err(error),
        };
        let ended = cx.end(result.is_ok());
        drop(inside);
        // Also after a failure: the step may go on.
        self.recorder.borrow_mut().end(self.manager.pool.device());
        self.is_aside &= !entered.begins_aside;
        match (result, ended) {
            (Ok(output), Ok(())) => Ok(output),
            (Err(error), _) | (_, Err(error)) => Err(error.within(region)),
        }
    }

    // What follows does not depend on the region's code, so the compiler makes it once and not for each region.

    /// Begins the recording of a region.
    fn enter(&mut self, region: P::Region) -> Result<Entered<P::Region>> {
        self.check_unwound()?;
        self.end_piece(Then::Inner)?;
        let begins_aside = !self.is_aside && self.runs_aside(region);
        if begins_aside {
            self.manager.pool.lane().begin_after(self.manager.pool.compute())?;
            self.is_aside = true;
        }
        let (device, stream) = (self.manager.pool.device(), self.stream().id());
        let captured = self.manager.options.enable && self.manager.policy.captured(region).is_ok();
        let instance = self.manager.policy.instance(region);
        let visit = self.recorder.borrow_mut().begin(device, region, instance, stream, captured);
        let name = self.recorder.borrow().name(visit);
        device.set_scope(&name);
        let range = device.nvtx_range(|| name.to_string());
        let microbatch = instance.map(|instance| instance.microbatch);
        let current = Current { region, visit, microbatch, begins: Cell::new(true) };
        Ok(Entered { current, begins_aside, _range: range })
    }

    /// The inputs that the code of a region gets, after a mark for a watchdog.
    fn begin<I: TensorTree>(&mut self, region: P::Region, input: I) -> Result<I> {
        let input = self.own_inputs(region, input)?;
        self.mark(region)?;
        Ok(input)
    }

    /// Ends the last piece of a region, or drops the piece where the region's code failed.
    fn end(&mut self, succeeded: bool) -> Result<()> {
        let ended = if succeeded { self.end_piece(Then::End) } else { Ok(()) };
        if !succeeded || ended.is_err() {
            self.passes.drop_entries();
        }
        ended
    }

    /// With boundary copies, the captured region's copies of the inputs; else the inputs.
    fn own_inputs<I: TensorTree>(&mut self, region: P::Region, input: I) -> Result<I> {
        let (options, policy) = (&self.manager.options, &self.manager.policy);
        if options.share_io_buffers || !options.enable || policy.captured(region).is_err() {
            return Ok(input);
        }
        let own = input.map(&mut |name, tensor| {
            let own = self.tensor(name, tensor.shape, tensor.dtype)?;
            self.stream().submit(Copy { input: tensor, output: own })?;
            Ok(own)
        })?;
        self.recorder.borrow_mut().inputs_are_copied(self.manager.pool.device());
        Ok(own)
    }

    /// Submits a mark for a watchdog.
    fn mark(&self, region: P::Region) -> Result<()> {
        let Some(progress) = self.manager.pool.device().progress().filter(|_| !self.is_aside) else { return Ok(()) };
        match self.manager.policy.mark(region) {
            Some(name) => Ok(self.stream().submit(progress.region(&name))?),
            None => Ok(()),
        }
    }
}
