//! Normalisation of queries and keys over all heads at once.

use crate::Float;
use crate::host::parts::sum;
use crate::host::{HostKernel, Pool, store_sums, to_f32, view, with_float};
use crate::ops::{AttentionSizes, HeadSums, JointNorm, JointNormBackward};

/// Rows of one task. It sums their gradients of weights.
const ROWS: usize = 16;

impl HostKernel for HeadSums {
    fn run(&self, pool: &Pool) {
        with_float!(self.input.dtype, T => sums::<T>(self, pool));
    }
}

fn sums<T: Float>(op: &HeadSums, pool: &Pool) {
    let sizes = AttentionSizes::new(&op.input, op.heads, op.kv_heads);
    let (width, parts) = (sizes.packed_width(), parts(&sizes));
    let input = view::read::<T>(&op.input);
    let gradient =
        op.gradient.map(|of| (view::read::<T>(&of.grad), [of.query_weight, of.key_weight].map(|w| to_f32(&w))));
    pool.for_each_chunk(view::write::<f32>(&op.sums), 2, |row, sums| {
        for (kind, (first, count)) in parts.into_iter().enumerate() {
            let at = |c: usize| row * width + first + c;
            sums[kind] = match &gradient {
                None => sum(count, |c| input[at(c)].to_f32() * input[at(c)].to_f32()),
                Some((grad, weights)) => {
                    sum(count, |c| input[at(c)].to_f32() * weights[kind][c] * grad[at(c)].to_f32())
                }
            };
        }
    });
}

/// Queries and keys in a row: their beginnings and numbers of channels.
fn parts(sizes: &AttentionSizes) -> [(usize, usize); 2] {
    let queries = sizes.heads * sizes.dim;
    [(0, queries), (queries, sizes.kv_heads * sizes.dim)]
}

impl HostKernel for JointNorm {
    fn run(&self, pool: &Pool) {
        with_float!(self.input.dtype, T => forward::<T>(self, pool));
    }
}

fn forward<T: Float>(op: &JointNorm, pool: &Pool) {
    let sizes = AttentionSizes::new(&op.input, op.heads, op.kv_heads);
    let (width, parts) = (sizes.packed_width(), parts(&sizes));
    let (input, squares) = (view::read::<T>(&op.input), view::read::<f32>(&op.squares));
    let weights = [op.query_weight, op.key_weight].map(|weight| to_f32(&weight));
    pool.for_each_chunk(view::write::<T>(&op.output), width, |row, output| {
        let input = &input[row * width..][..width];
        output.copy_from_slice(input);
        for (kind, (first, count)) in parts.into_iter().enumerate() {
            let rstd = rstd(squares[2 * row + kind], count * op.ranks, op.eps);
            for c in 0..count {
                output[first + c] = T::from_f32(input[first + c].to_f32() * rstd * weights[kind][c]);
            }
        }
    });
}

impl HostKernel for JointNormBackward {
    fn run(&self, pool: &Pool) {
        with_float!(self.input.dtype, T => backward::<T>(self, pool));
    }
}

fn backward<T: Float>(op: &JointNormBackward, pool: &Pool) {
    let sizes = AttentionSizes::new(&op.input, op.heads, op.kv_heads);
    let (width, parts) = (sizes.packed_width(), parts(&sizes));
    let input = view::read::<T>(&op.input);
    let [squares, products] = [&op.squares, &op.products].map(view::read::<f32>);
    let weights = [op.query_weight, op.key_weight].map(|weight| to_f32(&weight));
    let rows = op.input.shape.rows();
    // Of queries and of keys, for each task.
    let mut partial = vec![parts.map(|(_, count)| vec![0.0; count]); rows.div_ceil(ROWS)];
    let grads = (view::write::<T>(&op.grad), ROWS * width);
    pool.for_each_chunk_pair(grads, (&mut partial[..], 1), |chunk, grads, sums| {
        for (i, grad) in grads.chunks_mut(width).enumerate() {
            let row = chunk * ROWS + i;
            let input = &input[row * width..][..width];
            for (kind, (first, count)) in parts.into_iter().enumerate() {
                let all = count * op.ranks;
                let rstd = rstd(squares[2 * row + kind], all, op.eps);
                let mean_product = products[2 * row + kind] * rstd / all as f32;
                for c in 0..count {
                    let (dy, normed) = (grad[first + c].to_f32(), input[first + c].to_f32() * rstd);
                    sums[0][kind][c] += dy * normed;
                    grad[first + c] = T::from_f32((dy * weights[kind][c] - normed * mean_product) * rstd);
                }
            }
        }
    });
    for (kind, output) in [op.grad_query_weight, op.grad_key_weight].iter().enumerate() {
        let Some(output) = output else { continue };
        let sums: Vec<Vec<f32>> = partial.iter_mut().map(|sums| std::mem::take(&mut sums[kind])).collect();
        store_sums(&sums, output, op.accumulate);
    }
}

fn rstd(squares: f32, count: usize, eps: f32) -> f32 {
    1.0 / (squares / count as f32 + eps).sqrt()
}
