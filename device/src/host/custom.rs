//! Custom operations.

use super::{HostTensors, Pool};
use crate::ops::{Custom, Operation};
use crate::{Result, calling};

/// See [`CustomOp`](crate::ops::CustomOp).
pub(super) fn custom(op: &Custom, pool: &Pool) -> Result<()> {
    calling::run(op.name(), || op.op().run_host(&mut HostTensors::new(op, pool)))
}
