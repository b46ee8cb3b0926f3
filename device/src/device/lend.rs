//! Results of runs, for code that reads them until the next run.

use super::Device;
use crate::capture::Values;
use crate::{BufferId, BufferName, Tensor};

impl Device {
    /// The tensor under a name for its present values. With the checker, a read by that name fails once another operation
    /// has written there. So a result that is kept for too long is found. While work is recorded or captured, the name is
    /// the buffer's own: a graph reads the values that it finds.
    pub fn lend(&self, tensor: Tensor) -> Tensor {
        let mut core = self.core();
        let core = &mut *core;
        let Some(checker) = &mut core.checker else { return tensor };
        let (names, device) = (&mut core.buffers, core.number);
        let of = checker.lent.meant(tensor.buffer).of;
        let name = checker.lent.name(Values { of, until: checker.operations }, || {
            let text = names.of(of);
            BufferId::new(device, names.add(BufferName::from(&*text)))
        });
        Tensor { buffer: name, ..tensor }
    }
}
