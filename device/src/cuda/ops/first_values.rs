//! The random numbers that a parameter begins with.

use super::shape::over_packs;
use crate::cuda::Queue;
use crate::cuda::kernels::Arg;
use crate::ops::{Distribution, FirstValues};
use crate::{DType, Result};

/// See [`FirstValues`].
pub(super) fn first_values(op: &FirstValues, queue: &Queue<'_>) -> Result<()> {
    let count = op.output.elements();
    let (output, rounded) = match op.output.dtype {
        DType::F32 => (Some(op.output), op.rounded),
        _ => (None, Some(op.output)),
    };
    let (is_normal, scale) = match op.distribution {
        Distribution::Normal(std) => (1, std),
        Distribution::Uniform(bound) => (0, bound),
    };
    let sizes = [count as u64, op.seed, op.stream, op.first, op.row as u64, op.pitch as u64].map(Arg::U64);
    let arguments = [&[output.into(), rounded.into()][..], &sizes, &[Arg::U32(is_normal), Arg::F32(scale)]].concat();
    queue.launch("first_values", over_packs(count, queue), &arguments)
}
