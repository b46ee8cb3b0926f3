//! Kinds of steps that were forgotten because there were more than `plan_limit`.

use std::num::NonZeroUsize;

use crate::words::{counted, tell};

/// Kinds of steps that were forgotten because there were more than
/// [`plan_limit`](crate::ManagerOptions::plan_limit), or more shapes than the `shapes` of a
/// [`Capture`](crate::Capture).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Forgotten {
    /// The number of forgotten kinds. One that comes back is counted again when it is forgotten again.
    pub plans: usize,
    /// The kinds of steps that were forgotten before the first capture: they were recorded and planned, and ran eagerly
    /// alone.
    pub without_graph: usize,
}

impl Forgotten {
    /// Counts one. If graphs are not getting made at all, a program must hear of it: once, when more went without a
    /// graph than there are places.
    pub(crate) fn add(&mut self, had_graph: bool, limit: NonZeroUsize) {
        self.plans += 1;
        if had_graph {
            return;
        }
        self.without_graph += 1;
        if self.without_graph == limit.saturating_add(1).get()
            && let Some(words) = self.in_words()
        {
            tell(&words);
        }
    }

    /// The fact and the fix, if plans went without a graph.
    pub(crate) fn in_words(&self) -> Option<String> {
        let Forgotten { plans, without_graph } = *self;
        let times = counted(plans, "time");
        (without_graph > 0).then(|| {
            format!(
                "a kind of step was forgotten {times} because there are more than plan_limit, {without_graph} of them before \
                 its graphs were captured: it runs eagerly, and is recorded anew when it comes back. Fix: raise plan_limit (of \
                 a Capture: its `shapes`), use fewer shapes, or run each shape several times in a row"
            )
        })
    }
}
