//! Regions that run next to those of the compute stream, on a second lane, such as a microbatch's forward next to the backward
//! of an earlier one.

use crate::context::StepContext;
use crate::error::{Error, Result};
use crate::lane::Aside;
use crate::passes::Then;
use crate::policy::Policy;

impl<'m, P: Policy> StepContext<'m, P> {
    /// Runs regions on the second lane: in their order, after all that was submitted so far, and next to what follows. The
    /// same regions run aside in each step of a mode. What they fork and what follows must not share a side stream.
    ///
    /// # Errors
    /// What `regions` returns; errors of the device; [`Error::Usage`] within regions that run aside.
    pub fn aside<T>(&mut self, regions: impl FnOnce(&mut StepContext<'m, P>) -> Result<T>) -> Result<(T, Aside)> {
        if self.is_aside {
            let problem = "regions were run aside within regions that run aside";
            return Err(Error::usage(problem, "run them one after the other: there is one second lane"));
        }
        self.end_piece(Then::Inner)?;
        let pool = self.manager.pool.clone();
        pool.lane().fork(pool.compute())?;
        self.is_aside = true;
        let output = regions(self);
        self.is_aside = false;
        let aside = pool.lane().under_way()?;
        Ok((output?, aside))
    }

    /// Whether what runs now runs aside. Its transfers need communicators of their own: two that are under way at once on one
    /// communicator might start in another order on another rank, and wait for each other for ever.
    pub fn is_aside(&self) -> bool {
        self.is_aside
    }

    /// Makes what follows wait for these regions.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn join_aside(&self, aside: Aside) -> Result<()> {
        self.end_piece(Then::More)?;
        self.manager.pool.lane().join(&aside, self.manager.pool.compute())
    }
}
