//! Copies, sums and constants.

use super::Queue;
use crate::Result;
use crate::cuda::{Arg, Grid};
use crate::ops::Fill;

pub(super) fn fill(op: &Fill, queue: &Queue<'_>) -> Result<()> {
    let count = op.output.elements();
    let grid = Grid::line(count.div_ceil(1024).min(queue.multiprocessors() * 8), 256);
    queue.launch("fill_f32", grid, &[op.output.into(), Arg::F32(op.value), Arg::U64(count as u64)])
}
