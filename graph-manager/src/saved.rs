//! What a layer's forward saves for its backward, by microbatch or slot.

use crate::context::{Current, StepContext};
use crate::error::{Error, Result};
use crate::keys::SavedKey;
use crate::policy::Policy;
use crate::state::Saved;

/// The key of what the current part saves, and the region under way.
type Saving<P> = (SavedKey<<P as Policy>::Region, <P as Policy>::Variant>, Current<<P as Policy>::Region>);

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
    /// forward passes it to itself. A part of a region passes one value: see [`StepContext::part`].
    ///
    /// # Errors
    /// [`Error::Usage`] in a region that [`Policy::saved_by`] does not know.
    pub fn save_for_backward<T: 'static>(&mut self, value: T) -> Result<()> {
        let (key, Current { visit: by, .. }) = self.saved_key("save_for_backward")?;
        let saved = &mut self.handover().saved;
        // Where a backward recomputes, it replaces what the forward has saved for it: that is another region's.
        let replaces_unread =
            saved.get(&key).is_some_and(|before| before.by == by && (before.replaces_unread || !before.is_read));
        saved.insert(key, Saved { value: Box::new(value), by, is_read: false, replaces_unread });
        Ok(())
    }

    /// What the layer's forward saved for this microbatch. Besides the forward, one region reads it: the backward.
    ///
    /// # Errors
    /// [`Error::Usage`] in a region that [`Policy::saved_by`] does not know, or if forward saved no `T`; while recording, if
    /// forward saved twice and nothing read the first value.
    pub fn saved<T: Clone + 'static>(&mut self) -> Result<T> {
        let ((code, part), Current { region, visit, .. }) = self.saved_key("saved")?;
        let recording = self.recording.is_some();
        if let Some(recording) = &mut self.recording {
            recording.read.push((visit, (code, part)));
        }
        let saved = self.handover().saved.get_mut(&(code, part));
        if saved.as_ref().is_some_and(|saved| recording && saved.replaces_unread) {
            let (by, part) = (code.region.region, part.map_or(String::new(), |part| format!(" in part {part}")));
            let problem = format!("{region}: `{by}` saved two values{part}, and the second replaced the first unread");
            return Err(Error::usage(problem, "call each layer within a StepContext::part of its own"));
        }
        let value = saved.and_then(|saved| {
            saved.is_read = true;
            saved.value.downcast_ref::<T>().cloned()
        });
        value.ok_or_else(|| {
            let problem = format!("{region}: no {} was saved", std::any::type_name::<T>());
            let fix = "call save_for_backward in the region that Policy::saved_by answers, with a value of that type";
            Error::usage(problem, fix)
        })
    }

    /// After a visit of a recording. A backward is the only one to read what its forward saved, so the values that it has
    /// read can go: those of all microbatches together are large.
    pub(crate) fn forget_read(&mut self, region: P::Region, visit: usize) {
        let saves = self.manager.policy.saved_by(region) == Some(region);
        let Some(recording) = &mut self.recording else { return };
        while let Some((_, key)) = recording.read.pop_if(|(by, _)| *by == visit) {
            if !saves {
                recording.handover.saved.remove(&key);
            }
        }
    }

    fn saved_key(&self, what: &str) -> Result<Saving<P>> {
        let known = self.current.and_then(|current| {
            let forward = self.manager.policy.saved_by(current.region)?;
            Some(((self.code_key(forward), current.part), current))
        });
        known.ok_or_else(|| {
            let problem = format!("{}: `{what}` was called where Policy::saved_by answers None", self.region_name());
            Error::usage(problem, "call it in a forward or backward region that the policy knows")
        })
    }
}
