//! Latent attention: packing heads, and back.

use crate::Float;
use crate::host::{HostKernel, Pool, view, with_float};
use crate::ops::{LatentHead, LatentSizes, LatentTensors, PackLatent, PackLatentBackward, ResizeHeads};

/// Turns pairs of neighbours by the angles of a position.
pub(crate) fn turn<T: Float>(values: &[T], angles: &[f32], out: &mut [T]) {
    for ((out, pair), angle) in out.chunks_mut(2).zip(values.chunks(2)).zip(angles.chunks(2)) {
        let (a, b) = (pair[0].to_f32(), pair[1].to_f32());
        out[0] = T::from_f32(a * angle[0] - b * angle[1]);
        out[1] = T::from_f32(a * angle[1] + b * angle[0]);
    }
}

impl HostKernel for PackLatent {
    fn run(&self, pool: &Pool) {
        with_float!(self.tensors.packed.dtype, T => pack::<T>(self, pool));
    }
}

fn pack<T: Float>(op: &PackLatent, pool: &Pool) {
    let (head, LatentTensors { queries, keys_values, rotated, packed }) = (op.head, op.tensors);
    let LatentHead { plain, rotated: turned, value } = head;
    let LatentSizes { seq, heads, .. } = LatentSizes::of(head, &op.tensors);
    let (all_queries, all_keys, all_rotated) =
        (view::read::<T>(&queries), view::read::<T>(&keys_values), view::read::<T>(&rotated));
    let (width, query, table) = (head.packed(), head.query(), view::read::<f32>(&op.table));
    pool.for_each_chunk(view::write::<T>(&packed), 3 * heads * width, |row, out| {
        out.fill(T::from_f32(0.0));
        let angles = &table[row % seq * turned..][..turned];
        let of_keys = &all_keys[row * heads * (plain + value)..][..heads * (plain + value)];
        let of_queries = &all_queries[row * queries.shape.last()..][..heads * query];
        let shared = &all_rotated[(row + 1) * rotated.shape.last() - turned..][..turned];
        let (to_queries, rest) = out.split_at_mut(heads * width);
        let (to_keys, to_values) = rest.split_at_mut(heads * width);
        for at in 0..heads {
            let (from, to) = (&of_queries[at * query..][..query], &mut to_queries[at * width..][..query]);
            to[..plain].copy_from_slice(&from[..plain]);
            turn(&from[plain..], angles, &mut to[plain..]);
            let (from, to) = (&of_keys[at * (plain + value)..][..plain + value], &mut to_keys[at * width..][..query]);
            to[..plain].copy_from_slice(&from[..plain]);
            turn(shared, angles, &mut to[plain..]);
            to_values[at * width..][..value].copy_from_slice(&from[plain..]);
        }
    });
}

impl HostKernel for PackLatentBackward {
    fn run(&self, pool: &Pool) {
        with_float!(self.tensors.packed.dtype, T => unpack::<T>(self, pool));
    }
}

fn unpack<T: Float>(op: &PackLatentBackward, pool: &Pool) {
    let (head, LatentTensors { queries, keys_values, rotated, packed }) = (op.head, op.tensors);
    let LatentHead { plain, rotated: turned, value } = head;
    let LatentSizes { seq, heads, .. } = LatentSizes::of(head, &op.tensors);
    let (grads, table) = (view::read::<T>(&packed), view::read::<f32>(&op.table));
    let (width, query) = (head.packed(), head.query());
    // The inverse of a turn has the other sign.
    let back = |row: usize| -> Vec<f32> {
        let angles = &table[row % seq * turned..][..turned];
        angles.iter().enumerate().map(|(at, x)| if at % 2 == 1 { -x } else { *x }).collect()
    };
    let part = |row: usize, group: usize, at: usize| &grads[(row * 3 * heads + group * heads + at) * width..][..width];
    let keys = view::write::<T>(&keys_values);
    pool.for_each_chunk(keys, (heads * (plain + value)).max(1), |row, out| {
        for (at, out) in out.chunks_mut(plain + value).enumerate() {
            out[..plain].copy_from_slice(&part(row, 1, at)[..plain]);
            out[plain..].copy_from_slice(&part(row, 2, at)[..value]);
        }
    });
    let columns = queries.shape.last();
    pool.for_each_chunk(view::write::<T>(&queries), columns, |row, out| {
        out.fill(T::from_f32(0.0));
        let angles = back(row);
        for (at, out) in out[..heads * query].chunks_mut(query).enumerate() {
            let grad = part(row, 0, at);
            out[..plain].copy_from_slice(&grad[..plain]);
            turn(&grad[plain..query], &angles, &mut out[plain..]);
        }
    });
    let columns = rotated.shape.last();
    pool.for_each_chunk(view::write::<T>(&rotated), columns, |row, out| {
        if rotated != queries {
            out.fill(T::from_f32(0.0));
        }
        let mut sums = vec![0.0; turned];
        for at in 0..heads {
            let grad = &part(row, 1, at)[plain..query];
            sums.iter_mut().zip(grad).for_each(|(sum, x)| *sum += x.to_f32());
        }
        let (angles, to) = (back(row), &mut out[columns - turned..]);
        for ((to, pair), angle) in to.chunks_mut(2).zip(sums.chunks(2)).zip(angles.chunks(2)) {
            to[0] = T::from_f32(pair[0] * angle[0] - pair[1] * angle[1]);
            to[1] = T::from_f32(pair[0] * angle[1] + pair[1] * angle[0]);
        }
    });
}

impl HostKernel for ResizeHeads {
    fn run(&self, pool: &Pool) {
        with_float!(self.output.dtype, T => {
            let input = view::read::<T>(&self.input);
            let [from, to] = [self.input, self.output].map(|tensor| tensor.shape.last() / self.heads);
            pool.for_each_chunk(view::write::<T>(&self.output), to.max(1), |head, out| {
                let common = from.min(to);
                out[..common].copy_from_slice(&input[head * from..][..common]);
                out[common..].fill(T::from_f32(0.0));
            });
        });
    }
}
