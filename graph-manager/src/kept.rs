//! What a layer's forward keeps for its backward, by microbatch or slot.

use std::any::Any;
use std::collections::HashMap;

use crate::context::{Current, Phase};
use crate::{Region, Result, StepContext};

/// Whose forward kept something: its region, and the part of its layer.
pub(crate) type KeptKey = (Region, Option<usize>);

impl<'m> StepContext<'m> {
    /// Does the work of one of the parts of this region's layer: what parts keep is kept apart.
    ///
    /// # Errors
    /// What `work` returns.
    pub fn part<T>(&mut self, part: usize, work: impl FnOnce(&mut StepContext<'m>) -> Result<T>) -> Result<T> {
        let set = |cx: &mut StepContext<'m>, part| {
            cx.current.as_mut().and_then(|current| std::mem::replace(&mut current.part, part))
        };
        let outer = set(self, Some(part));
        let result = work(self);
        set(self, outer);
        result
    }

    /// Hands something from a layer's forward to its backward: the tensors it saved. A backward that computes its forward
    /// again hands it to itself.
    ///
    /// # Panics
    /// Outside of a forward or backward region: layers call it, users never.
    pub fn keep<T: 'static>(&mut self, kept: T) {
        let key = self.kept_key("keep()");
        self.kept_map().insert(key, Box::new(kept));
    }

    /// What this layer's forward kept for this microbatch.
    ///
    /// # Panics
    /// Outside of a forward or backward region, or if forward kept nothing of this type: layers call it, users never.
    pub fn kept<T: Clone + 'static>(&mut self) -> T {
        let key = self.kept_key("kept()");
        match self.kept_map().get(&key).and_then(|kept| kept.downcast_ref::<T>()) {
            Some(kept) => kept.clone(),
            None => panic!("in {} no {} was kept", self.region_name(), std::any::type_name::<T>()),
        }
    }

    /// While recording every microbatch has its own tensors; later those of a slot are the same.
    fn kept_key(&self, what: &str) -> KeptKey {
        let (layer, microbatch, part) = match self.current {
            Some(Current { region: Region::Forward { layer, microbatch }, part, .. })
            | Some(Current { region: Region::Backward { layer, microbatch }, part, .. }) => (layer, microbatch, part),
            _ => panic!("{what} outside of a layer's regions, in {}", self.region_name()),
        };
        let forward = Region::Forward { layer, microbatch };
        match self.manager.states.get(&self.state) {
            Some(state) if !matches!(self.phase, Phase::Record(_)) => {
                (state.plan.canonical(forward, self.microbatches()), part)
            }
            _ => (forward, part),
        }
    }

    fn kept_map(&mut self) -> &mut HashMap<KeptKey, Box<dyn Any>> {
        match &mut self.phase {
            Phase::Record(recording) => &mut recording.kept,
            Phase::Run { .. } => match self.manager.states.get_mut(&self.state) {
                Some(state) => &mut state.kept,
                None => unreachable!("a mode runs after it was recorded"),
            },
        }
    }
}
