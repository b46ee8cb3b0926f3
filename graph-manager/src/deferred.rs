//! Operations that a layer's backward defers: the gradients of weights, which no other layer waits for.
//!
//! An operation names its tensors, so to defer it is to put it on a list. The recording has it where it runs, so the plan
//! keeps what it reads until then.

use device::Op;

use crate::context::StepContext;
use crate::error::{Error, Result};
use crate::policy::Policy;

impl<P: Policy> StepContext<'_, P> {
    /// In a backward region: an operation that computes gradients of parameters and nothing that the layer passes on. If
    /// [`Policy::deferred_by`] names this region, the operation runs in the region that calls
    /// [`StepContext::run_deferred`] for it. Else it runs on the [branch](StepContext::branch).
    ///
    /// # Errors
    /// Errors of the device.
    pub fn defer(&mut self, op: impl Into<Op>) -> Result<()> {
        match self.own_deferred() {
            Some(region) => {
                self.deferred.entry(region).or_default().push(op.into());
                Ok(())
            }
            None => self.branch(op),
        }
    }

    /// Runs what the region that [`Policy::deferred_by`] answers has deferred for this microbatch, in its order.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn run_deferred(&mut self) -> Result<()> {
        let by = self.current.and_then(|current| self.manager.policy.deferred_by(current.region));
        // What is left at the end never ran.
        let ops = by.and_then(|by| self.deferred.remove(&by));
        ops.unwrap_or_default().into_iter().try_for_each(|op| self.run(op))
    }

    /// Fails if the recorded step deferred operations that it never ran.
    pub(crate) fn check_deferred(&mut self) -> Result<()> {
        let Some(region) = self.deferred.keys().next() else { return Ok(()) };
        let problem = format!("{region}: the step ends before its deferred operations run");
        Err(Error::usage(problem, "call run_deferred in a region for which Policy::deferred_by names this one"))
    }

    /// The current region, if it defers.
    fn own_deferred(&self) -> Option<P::Region> {
        let region = self.current?.region;
        (self.manager.policy.deferred_by(region)? == region).then_some(region)
    }
}
