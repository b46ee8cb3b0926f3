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
    /// The last operation that may have written them.
    pub(crate) until: u64,
}

/// Names of one buffer. After so many runs the first one is given again.
const NAMES: usize = 16;

impl Lent {
    /// The buffer that a name stands for, and the time of the values. A buffer's own name stands for its values at any time.
    pub(crate) fn meant(&self, buffer: BufferId) -> Values {
        self.by_name.get(&buffer).copied().unwrap_or(Values { of: buffer, until: u64::MAX })
    }

    /// The buffer's own name, before that operation writes it under this one.
    pub(crate) fn written(&mut self, buffer: BufferId, operation: u64) -> BufferId {
        let Some(values) = self.by_name.get_mut(&buffer) else { return buffer };
        values.until = operation;
        values.of
    }

    /// A name for the values that the buffer has after so many operations. `make` makes a new one.
    pub(crate) fn name(&mut self, buffer: BufferId, until: u64, make: impl FnOnce() -> BufferId) -> BufferId {
        let of = self.meant(buffer).of;
        let names = self.of_buffer.entry(of).or_default();
        let name = if names.len() < NAMES { make() } else { names.pop_front().unwrap_or_else(make) };
        names.push_back(name);
        self.by_name.insert(name, Values { of, until });
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
