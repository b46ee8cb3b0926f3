//! Operations that the rest of a region need not wait for, such as gradients of weights. They run on a branch: a stream of
//! their own, next to the compute stream.

use device::Op;

use crate::context::StepContext;
use crate::error::Result;
use crate::policy::Policy;

impl<P: Policy> StepContext<'_, P> {
    /// Runs an operation on the branch: after all that was submitted so far, and next to the rest of the region. The
    /// region waits for it at its end, or a later one does ([`Policy::branch_outlives`]). Until then nothing may write
    /// the tensors that it reads. Outside of a region, and [aside](StepContext::aside), it runs as any other.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn branch(&mut self, op: impl Into<Op>) -> Result<()> {
        if self.current.is_none() || self.is_aside {
            return self.run(op);
        }
        self.branch_outlived = false;
        // One join waits for all that the stream has.
        self.on_branch = Some(self.fork(self.manager.pool.branch(), [op.into()])?);
        Ok(())
    }

    /// Makes what follows wait for the operations on the branch. The end of a region does that too, unless they may
    /// outlive it, and the beginning of an inner one.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn join_branch(&mut self) -> Result<()> {
        self.branch_outlived = false;
        self.on_branch.take().map_or(Ok(()), |fork| self.join(fork))
    }

    /// At the start of a region: waits for the branch of the region around it. Operations of an earlier region that
    /// outlive it go on.
    pub(crate) fn enter_branch(&mut self) -> Result<()> {
        if self.branch_outlived { Ok(()) } else { self.join_branch() }
    }

    /// At the end of a region: waits for the branch, or leaves it to a later region.
    pub(crate) fn leave_branch(&mut self, region: P::Region) -> Result<()> {
        if !self.manager.policy.branch_outlives(region) {
            return self.join_branch();
        }
        self.branch_outlived = self.on_branch.is_some();
        Ok(())
    }
}
