//! Custom operations.

use super::{HostTensors, Pool};
use crate::Result;
use crate::ops::Custom;

/// See [`CustomOp`](crate::ops::CustomOp).
pub(super) fn custom(op: &Custom, pool: &Pool) -> Result<()> {
    op.op().run_host(&mut HostTensors::new(op, pool))
}
