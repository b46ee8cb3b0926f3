//! Operations that a layer's backward defers: the gradients of weights, which no other layer waits for.
//!
//! An operation names its tensors, so to defer it is to put it on a list. The recording has it where it runs, so the plan
//! keeps what it reads until then.

use device::Op;

use crate::context::StepContext;
use crate::error::{Error, Result};
use crate::keys::CodeKey;
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
            Some(key) => {
                self.handover().deferred.entry(key).or_default().push(op.into());
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
        let Some(key) = by.map(|by| self.code_key(by)) else { return Ok(()) };
        let ops = match &mut self.recording {
            // What is left at the end of the recording never ran.
            Some(recording) => recording.handover.deferred.remove(&key),
            None => self.handover().deferred.get(&key).cloned(),
        };
        ops.unwrap_or_default().into_iter().try_for_each(|op| self.run(op))
    }

    /// At the start of a region that defers: what the slot's microbatch before deferred has run.
    pub(crate) fn forget_deferred(&mut self) {
        if let Some(key) = self.own_deferred() {
            self.handover().deferred.remove(&key);
        }
    }

    /// Fails if the recorded step deferred operations that it never ran.
    pub(crate) fn check_deferred(&mut self) -> Result<()> {
        let Some(key) = self.handover().deferred.keys().next() else { return Ok(()) };
        let problem = format!("{}: the step ends before its deferred operations run", key.region.region);
        Err(Error::usage(problem, "call run_deferred in a region for which Policy::deferred_by names this one"))
    }

    /// The key of the current region's list, if it defers.
    fn own_deferred(&self) -> Option<CodeKey<P::Region, P::Variant>> {
        let region = self.current?.region;
        (self.manager.policy.deferred_by(region)? == region).then(|| self.code_key(region))
    }
}
