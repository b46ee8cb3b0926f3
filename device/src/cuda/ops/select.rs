//! Choices between two tensors.

use super::shape::{LoadWidth, over_packs};
use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::Arg;
use crate::ops::{Condition, Select};

/// See [`Select`].
pub(super) fn select(op: &Select, queue: &Queue<'_>) -> Result<()> {
    let (count, dtype) = (op.output.elements(), op.output.dtype);
    let load = match op.condition {
        // A pack of a mask is as many bytes as a pack of values has values.
        Condition::Mask(mask) if !mask.address.is_multiple_of(16) => LoadWidth::Scalar,
        _ => LoadWidth::of(count, [op.a, op.b, op.output]),
    };
    let (flag, mask) = match op.condition {
        Condition::Flag(flag) => (Some(flag), None),
        Condition::Mask(mask) => (None, Some(mask)),
    };
    let suffix = if load == LoadWidth::Scalar { "_scalar" } else { "" };
    queue.launch(
        &format!("select_{}{suffix}", 8 * dtype.size()),
        over_packs(count / load.values(dtype), queue),
        &[flag.into(), mask.into(), op.a.into(), op.b.into(), op.output.into(), Arg::U64(count as u64)],
    )
}
