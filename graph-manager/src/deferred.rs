//! What a layer's backward puts off: the gradients of weights, which no other layer waits for.
//!
//! An operation names its tensors, so putting it off is keeping it in a list. The recording has it where it runs, in
//! [`Region::Weights`], and so the plan keeps what it reads until then.

use std::collections::HashMap;

use device::Op;

use crate::context::Phase;
use crate::{Region, Result, StepContext};

/// Whose backward put something off: its region, of its slot, and whether it was to overwrite gradients. The code of a
/// region that is replayed is not run, so the list of its capture stays.
pub(crate) type DeferredKey = (Region, bool);

impl StepContext<'_> {
    /// In a backward region: an operation that makes gradients of parameters and nothing that the layer hands on. Where
    /// backwards are split it runs in the layer's [`Region::Weights`] for the microbatch, else at once.
    ///
    /// # Errors
    /// What the device refused, with the region.
    pub fn defer(&mut self, op: impl Into<Op>) -> Result<()> {
        match self.deferred_key() {
            Some(key) if self.in_backward() => {
                self.deferred_map().entry(key).or_default().push(op.into());
                Ok(())
            }
            _ => self.run(op),
        }
    }

    /// In a weights region: runs what the layer's backward of the microbatch put off, in its order.
    ///
    /// # Errors
    /// What the device refused, with the region.
    pub fn run_deferred(&mut self) -> Result<()> {
        let Some(key) = self.deferred_key() else { return Ok(()) };
        let ops = self.deferred_map().get(&key).cloned().unwrap_or_default();
        ops.into_iter().try_for_each(|op| self.run(op))
    }

    /// At the start of a backward: what one before it in the slot put off is done.
    pub(crate) fn forget_deferred(&mut self) {
        if let Some(key) = self.deferred_key().filter(|_| self.in_backward()) {
            self.deferred_map().remove(&key);
        }
    }

    fn in_backward(&self) -> bool {
        matches!(self.current, Some(current) if matches!(current.region, Region::Backward { .. }))
    }

    /// Of the layer and microbatch of the current region, where backwards are split.
    fn deferred_key(&self) -> Option<DeferredKey> {
        let region = self.current?.region;
        let (layer, microbatch) = region.layer().zip(region.microbatch())?;
        if !self.manager.shape.splits_backward {
            return None;
        }
        let backward = Region::Backward { layer, microbatch };
        let overwrites = !self.accumulate();
        match self.manager.states.get(&self.state) {
            Some(state) if !matches!(self.phase, Phase::Record(_)) => {
                Some((state.plan.canonical(backward, self.microbatches()), overwrites))
            }
            _ => Some((backward, overwrites)),
        }
    }

    fn deferred_map(&mut self) -> &mut HashMap<DeferredKey, Vec<Op>> {
        match &mut self.phase {
            Phase::Record(recording) => &mut recording.deferred,
            Phase::Run { .. } => match self.manager.states.get_mut(&self.state) {
                Some(state) => &mut state.deferred,
                None => unreachable!("a mode runs after it was recorded"),
            },
        }
    }
}
