//! Matrix product: tiles of fixed size over `out`, each a call into the GEMM library.

use std::borrow::Cow;

use crate::host::parts::{Matrix, TILE_ROWS, factors_in_f32, gelu, gelu_derivative, multiply};
use crate::host::{HostKernel, Pool, map, to_f32, view};
use crate::ops::{BLOCK, Epilogue, Gemm, MatrixPlace, Operation, Scale};
use crate::{DType, Float, bf16};

impl HostKernel for Gemm {
    fn run(&self, pool: &Pool) {
        let (mut a, mut b) = (to_f32(&self.a), to_f32(&self.b));
        if let Some(scales) = &self.fp8 {
            let (_, _, k) = self.dimensions();
            (a, b) = (scaled(&a, k, &scales.a), scaled(&b, k, &scales.b));
        }
        match self.out.dtype {
            DType::F32 => into::<f32>(self, &a, &b, pool),
            _ => into::<bf16>(self, &a, &b, pool),
        }
    }

    fn scratch_bytes(&self, pool: &Pool) -> usize {
        let (m, n) = (self.out.shape.rows(), self.out.shape.last());
        let tiled = self.out.dtype != DType::F32 || matches!(self.epilogue, Epilogue::BiasGelu { .. });
        let copies = factors_in_f32(&self.accesses());
        // The values of 8-bit factors are scaled in a second copy.
        let copies = if self.fp8.is_some() { 2 * copies } else { copies };
        copies + if tiled { 4 * n * m.min(pool.threads() * TILE_ROWS) } else { 0 }
    }
}

/// The values that 8-bit factors `(_, k)` stand for.
fn scaled(values: &[f32], k: usize, scale: &Scale) -> Cow<'static, [f32]> {
    let scales = view::read::<f32>(&scale.tensor());
    let mut scaled = Vec::with_capacity(values.len());
    for (row, values) in values.chunks(k.max(1)).enumerate() {
        for (block, values) in values.chunks(BLOCK).enumerate() {
            let scale = scales[scale.index(row, block)];
            scaled.extend(values.iter().map(|x| x * scale));
        }
    }
    scaled.into()
}

fn into<T: Float>(op: &Gemm, a: &[f32], b: &[f32], pool: &Pool) {
    let (m, n, k) = op.dimensions();
    if m == 0 || n == 0 {
        return;
    }
    let [place_a, place_b, place_out] = op.places();
    let matrix = |data, place: MatrixPlace, transposed: bool| {
        let stored = Matrix { offset: place.first, ..Matrix::rows(data, place.stride) };
        if transposed { stored.transposed() } else { stored }
    };
    let (a, b) = (matrix(a, place_a, op.transpose_a), matrix(b, place_b, op.transpose_b));
    let out = view::write::<T>(&op.out);
    let product = |tile: usize, rows: usize, to: &mut [f32], accumulate: bool| {
        let a = Matrix { offset: a.offset + tile * TILE_ROWS * a.row_stride, ..a };
        multiply((rows, n, k), op.alpha, a, b, &mut to[place_out.first..], place_out.stride, accumulate);
    };
    match op.epilogue {
        Epilogue::BiasGelu { bias, pre } => {
            let bias = to_f32(&bias);
            // Each task writes its rows of both outputs.
            let pre = view::write::<T>(&pre);
            let size = TILE_ROWS * n;
            pool.for_each_chunk_pair((out, size), (pre, size), |tile, out, pre| {
                let mut scratch = vec![0.0; out.len()];
                product(tile, out.len() / n, &mut scratch, false);
                for ((out, pre), row) in out.chunks_mut(n).zip(pre.chunks_mut(n)).zip(scratch.chunks(n)) {
                    for (((out, pre), x), bias) in out.iter_mut().zip(pre).zip(row).zip(bias.iter()) {
                        *pre = T::from_f32(x + bias);
                        *out = T::from_f32(gelu(pre.to_f32()));
                    }
                }
            });
        }
        _ => {
            let extra = match op.epilogue {
                Epilogue::Bias(tensor) | Epilogue::GeluBackward { pre: tensor, .. } => to_f32(&tensor),
                _ => Vec::new().into(),
            };
            pool.for_each_chunk(out, TILE_ROWS * place_out.stride, |tile, out| {
                in_f32(out, op.accumulate, place_out, |to| {
                    product(tile, to.len() / place_out.stride, to, op.accumulate);
                    match op.epilogue {
                        Epilogue::Bias(_) => {
                            for row in to.chunks_mut(n) {
                                row.iter_mut().zip(extra.iter()).for_each(|(x, bias)| *x += bias);
                            }
                        }
                        Epilogue::GeluBackward { .. } => {
                            let pre = &extra[tile * TILE_ROWS * n..];
                            to.iter_mut().zip(pre).for_each(|(x, pre)| *x *= gelu_derivative(*pre));
                        }
                        _ => {}
                    }
                });
            });
            if let Epilogue::GeluBackward { activated: Some(activated), .. } = op.epilogue {
                map::<T>(&activated, pool, |i| gelu(extra[i]));
            }
        }
    }
}

/// Lets `work` compute f32 values in place when `T` is f32, and in scratch when not. Of that only the columns of `place` are
/// rounded to `out`: the others keep their bits.
fn in_f32<T: Float>(out: &mut [T], accumulate: bool, place: MatrixPlace, work: impl FnOnce(&mut [f32])) {
    if T::DTYPE == DType::F32 {
        work(bytemuck::cast_slice_mut(out));
        return;
    }
    let mut scratch: Vec<f32> =
        if accumulate { out.iter().map(|x| x.to_f32()).collect() } else { vec![0.0; out.len()] };
    work(&mut scratch);
    let columns = place.first..place.first + place.columns;
    for (out, row) in out.chunks_mut(place.stride).zip(scratch.chunks(place.stride)) {
        out[columns.clone()].iter_mut().zip(&row[columns.clone()]).for_each(|(out, x)| *out = T::from_f32(*x));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, HostOptions};

    #[test]
    fn a_product_of_halves_needs_its_factors_in_f32_and_tiles_of_its_result() {
        let device = Device::host(HostOptions { dry: true, ..HostOptions::default() }).unwrap();
        let (rows, input, output) = (1000, 32, 64);
        let needed = |dtype, threads| {
            let tensor = |name, shape| device.virtual_tensor(name, shape, dtype);
            let (x, weight) = (tensor("x", [rows, input]), tensor("weight", [output, input]));
            let op = Gemm::linear(x, weight, tensor("out", [rows, output]), Epilogue::None);
            op.scratch_bytes(&Pool::new(threads).unwrap())
        };
        assert_eq!(needed(DType::F32, 2), 0);
        let factors = 4 * (rows * input + output * input);
        assert_eq!(needed(DType::Bf16, 1), factors + 4 * TILE_ROWS * output);
        assert_eq!(needed(DType::Bf16, 2), factors + 8 * TILE_ROWS * output);
        assert_eq!(needed(DType::Bf16, 64), factors + 4 * rows * output, "there are no more rows");
    }
}
