//! Work over the parameters of an update.

use crate::host::{Pool, view};
use crate::{DType, Float, Tensor, bf16};

/// Elements of one task.
const CHUNK: usize = 1 << 14;

/// Calls `work(tensor, start, length)` for chunks of all tensors of `sizes`, in parallel.
pub(crate) fn for_each_part(
    sizes: impl Iterator<Item = usize>,
    pool: &Pool,
    work: impl Fn(usize, usize, usize) + Send + Sync,
) {
    let mut parts = Vec::new();
    for (tensor, size) in sizes.enumerate() {
        parts.extend((0..size).step_by(CHUNK).map(|start| (tensor, start, CHUNK.min(size - start))));
    }
    pool.map(parts.len(), |i| {
        let (tensor, start, length) = parts[i];
        work(tensor, start, length);
    });
}

/// Rounds new master weights to the weights that layers compute with.
pub(crate) fn publish(compute: Option<Tensor>, start: usize, master: &[f32]) {
    let Some(compute) = compute else { return };
    let compute = compute.view(start, [master.len()]);
    match compute.dtype {
        DType::Bf16 => {
            let out = view::write::<bf16>(&compute);
            out.iter_mut().zip(master).for_each(|(out, x)| *out = <bf16 as Float>::from_f32(*x));
        }
        _ => view::write::<f32>(&compute).copy_from_slice(master),
    }
}
