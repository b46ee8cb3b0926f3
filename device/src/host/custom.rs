//! Custom operations.

use super::{HostTensors, Pool, elementwise};
use crate::ops::{Custom, Operation, Poison};
use crate::{Result, calling};

/// Overwrites the tensors that the operation declares to write alone, before it runs: one that reads them, or leaves a part
/// as it was, does not get away with it.
pub(super) fn poison_outputs(op: &Custom, pool: &Pool) {
    op.written_alone().for_each(|output| elementwise::poison(&Poison { output }, pool));
}

/// See [`CustomOp`](crate::ops::CustomOp).
pub(super) fn custom(op: &Custom, pool: &Pool) -> Result<()> {
    calling::run(op.name(), || op.op().run_host(&mut HostTensors::new(op, pool)))
}
