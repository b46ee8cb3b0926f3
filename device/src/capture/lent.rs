//! Results that other code reads until the next run writes them anew.

use std::collections::{HashMap, VecDeque};

use crate::BufferId;

/// The names under which results of runs are read.
#[derive(Default)]
pub(crate) struct Lent {
    by_name: HashMap<BufferId, Values>,
    /// By buffer: its names so far, the oldest first.
    of_buffer: HashMap<BufferId, VecDeque<BufferId>>,
}

/// The values that a buffer had at some time.
#[derive(Clone, Copy)]
pub(crate) struct Values {
    pub(crate) of: BufferId,
    /// The last operation that may have written the values.
    pub(crate) until: u64,
}

impl Values {
    pub(crate) fn at_any_time(of: BufferId) -> Values {
        Values { of, until: u64::MAX }
    }
}

/// Names of one buffer. After so many runs the first one is given again.
const NAMES: usize = 16;

impl Lent {
    /// The values that a name stands for. A buffer's own name stands for its values at any time.
    pub(crate) fn meant(&self, name: BufferId) -> Values {
        self.by_name.get(&name).copied().unwrap_or(Values::at_any_time(name))
    }

    /// The own name of the buffer that `operation` is about to write under `name`.
    pub(crate) fn written(&mut self, name: BufferId, operation: u64) -> BufferId {
        let Some(values) = self.by_name.get_mut(&name) else { return name };
        values.until = operation;
        values.of
    }

    /// A name for a buffer's values. `make` makes a new one.
    pub(crate) fn name(&mut self, values: Values, make: impl FnOnce() -> BufferId) -> BufferId {
        let names = self.of_buffer.entry(values.of).or_default();
        let name = if names.len() < NAMES { make() } else { names.pop_front().unwrap_or_else(make) };
        names.push_back(name);
        self.by_name.insert(name, values);
        name
    }

    /// Forgets names whose numbers will be given again.
    pub(crate) fn truncate(&mut self, buffers: usize) {
        let stays = |buffer: &BufferId| buffer.number() < buffers;
        self.by_name.retain(|name, values| stays(name) && stays(&values.of));
        self.of_buffer.retain(|of, names| {
            names.retain(stays);
            stays(of)
        });
    }
}
