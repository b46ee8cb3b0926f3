//! Copies from the GPU to the host that are under way.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::driver::{RawEvent, RawStream};
use crate::gpu_types::Counters;
use crate::host_memory::HostBlock;
use crate::{Element, Result};

/// Pinned memory that a copy goes to, and the event after the copy. It serves one copy after the other.
pub(crate) struct CopyToHost {
    block: HostBlock,
    done: RawEvent,
    /// The number of the copy under way among the stream's copies to the host.
    number: Cell<u64>,
    /// The highest number that arrived, shared by the stream's copies.
    arrived: Rc<Cell<u64>>,
}

impl CopyToHost {
    pub(crate) fn new(bytes: usize, arrived: Rc<Cell<u64>>) -> Result<CopyToHost> {
        Ok(CopyToHost { block: HostBlock::locked(bytes)?, done: RawEvent::new()?, number: Cell::new(0), arrived })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.block.bytes()
    }

    /// Starts the stream's copy of that number, from `address`, in stream order.
    pub(crate) fn start(&self, stream: &RawStream, address: u64, bytes: usize, number: u64) -> Result<()> {
        self.number.set(number);
        stream.copy_out((&self.block, 0), address, bytes)?;
        stream.record(&self.done)
    }

    /// Waits for the copy.
    fn wait<T: Element>(&self, count: usize) -> Result<Vec<T>> {
        self.done.synchronize()?;
        self.arrived.set(self.arrived.get().max(self.number.get()));
        Ok(self.block.slice(count).to_vec())
    }
}

/// A copy under way that somebody will wait for.
pub(crate) struct PendingCopy {
    pub(super) copy: Rc<CopyToHost>,
    /// Values that are copied.
    pub(super) count: usize,
    pub(super) counters: Rc<RefCell<Counters>>,
}

impl PendingCopy {
    /// Waits for the copy and returns its values. `T` is the copied tensor's type.
    pub(crate) fn wait<T: Element>(self) -> Result<Vec<T>> {
        self.counters.borrow_mut().metric_waits += 1;
        self.copy.wait(self.count)
    }
}
