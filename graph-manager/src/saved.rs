//! What a layer's forward saves for its backward, by microbatch or slot.

use crate::context::StepContext;
use crate::error::{Error, Result};
use crate::keys::SavedKey;
use crate::policy::Policy;

impl<'m, P: Policy> StepContext<'m, P> {
    /// Does the work of one part of this region's layer. What one part saves, the others do not see.
    ///
    /// # Errors
    /// What `work` returns.
    pub fn part<T>(&mut self, part: usize, work: impl FnOnce(&mut StepContext<'m, P>) -> Result<T>) -> Result<T> {
        let set = |cx: &mut StepContext<'m, P>, part| {
            cx.current.as_mut().and_then(|current| std::mem::replace(&mut current.part, part))
        };
        let outer = set(self, Some(part));
        let result = work(self);
        set(self, outer);
        result
    }

    /// Passes a value from a layer's forward to its backward: the tensors that it needs. A backward that recomputes its
    /// forward passes it to itself.
    ///
    /// # Errors
    /// [`Error::Usage`] in a region that [`Policy::saved_by`] does not know.
    pub fn save_for_backward<T: 'static>(&mut self, value: T) -> Result<()> {
        let key = self.saved_key("save_for_backward")?;
        self.handover().saved.insert(key, Box::new(value));
        Ok(())
    }

    /// What the layer's forward saved for this microbatch.
    ///
    /// # Errors
    /// [`Error::Usage`] in a region that [`Policy::saved_by`] does not know, or if forward saved no `T`.
    pub fn saved<T: Clone + 'static>(&mut self) -> Result<T> {
        let key = self.saved_key("saved")?;
        let value = self.handover().saved.get(&key).and_then(|value| value.downcast_ref::<T>()).cloned();
        value.ok_or_else(|| {
            let problem = format!("{}: no {} was saved", self.region_name(), std::any::type_name::<T>());
            let fix = "call save_for_backward in the region that Policy::saved_by answers, with a value of that type";
            Error::usage(problem, fix)
        })
    }

    fn saved_key(&self, what: &str) -> Result<SavedKey<P::Region, P::Variant>> {
        let known = self.current.and_then(|current| {
            let forward = self.manager.policy.saved_by(current.region)?;
            Some((self.code_key(forward), current.part))
        });
        known.ok_or_else(|| {
            let problem = format!("{}: `{what}` was called where Policy::saved_by answers None", self.region_name());
            Error::usage(problem, "call it in a forward or backward region that the policy knows")
        })
    }
}
