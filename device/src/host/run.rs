//! Any operation on a host device.

use super::{HostDevice, HostKernel, HostOperation, Pool, declared, view};
use crate::ops::{Collective, When};
use crate::{Op, ProgressMark, Result};

/// Runs a checked operation to its end on the calling thread and the pool's.
///
/// # Errors
/// A custom operation's.
///
/// # Panics
/// If the device checks, and the kernel takes memory that the operation did not declare.
pub(crate) fn run(op: &Op, device: &HostDevice) -> Result<()> {
    if let (true, Op::Custom(op)) = (device.check, op) {
        op.poison_outputs(&device.pool);
    }
    let _held = device.check.then(|| declared::hold(op.name(), op.accesses(), &device.pool));
    op.on_host().run(device)
}

/// The body, if the flag says so. Each operation is held to its own declaration.
impl HostOperation for When {
    fn run(&self, device: &HostDevice) -> Result<()> {
        match view::read::<i32>(&self.flag)[0] {
            0 => Ok(()),
            _ => self.body.iter().try_for_each(|op| run(op, device)),
        }
    }

    fn scratch_bytes(&self, pool: &Pool) -> usize {
        self.body.iter().map(|op| op.on_host().scratch_bytes(pool)).max().unwrap_or(0)
    }
}

impl HostKernel for ProgressMark {
    fn run(&self, _pool: &Pool) {
        self.leave();
    }
}

/// Streams and graphs start collectives and wait for them.
impl HostOperation for Collective {
    fn run(&self, _device: &HostDevice) -> Result<()> {
        unreachable!("streams start collectives")
    }

    fn scratch_bytes(&self, _pool: &Pool) -> usize {
        0
    }
}
