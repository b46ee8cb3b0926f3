//! Matrix products of each expert's rows.

use crate::host::parts::{Matrix, TILE_ROWS, factors_in_f32, in_f32, multiply};
use crate::host::{HostKernel, Pool, to_f32, view, with_float};
use crate::ops::{GroupedGemm, GroupedProduct, MatrixPlace, Operation};
use crate::{DType, Float};

impl HostKernel for GroupedGemm {
    fn run(&self, pool: &Pool) {
        match self.product {
            GroupedProduct::WeightGradient => weight_gradient(self, pool),
            _ => with_float!(self.out.dtype, T => of_rows::<T>(self, pool)),
        }
    }

    /// Tiles of the result are collected before they are stored.
    fn scratch_bytes(&self, _pool: &Pool) -> usize {
        match self.product {
            GroupedProduct::WeightGradient => 0,
            _ => factors_in_f32(&self.accesses()) + in_f32(&self.out),
        }
    }
}

/// A product whose result has rows: tiles of rows within an expert.
fn of_rows<T: Float>(op: &GroupedGemm, pool: &Pool) {
    let [_, n, k] = op.sizes();
    let (inner, width) = match op.product {
        GroupedProduct::Forward => (k, n),
        _ => (n, k),
    };
    let (a, b, offsets) = (to_f32(&op.a), to_f32(&op.b), view::read::<i32>(&op.offsets));
    let scale = op.scales.iter().flatten().map(|scale| view::read::<f32>(scale)[0]).product::<f32>() * op.alpha;
    let [place_a, place_out] = op.places();
    let mut tiles = Vec::new();
    for (expert, ends) in offsets.windows(2).enumerate() {
        let rows = ends[0] as usize..ends[1] as usize;
        tiles.extend(rows.clone().step_by(TILE_ROWS).map(|first| (expert, first, rows.end.min(first + TILE_ROWS))));
    }
    let products = pool.map(tiles.len(), |tile| {
        let (expert, first, end) = tiles[tile];
        // As (inner, width).
        let weights = match op.is_transposed() {
            true => Matrix { offset: expert * n, ..Matrix::rows(&b, op.experts() * n) }.transposed(),
            false if op.product == GroupedProduct::Forward => {
                Matrix { offset: expert * n * k, ..Matrix::rows(&b, k) }.transposed()
            }
            false => Matrix { offset: expert * n * k, ..Matrix::rows(&b, k) },
        };
        let rows = Matrix { offset: first * place_a.stride + place_a.first, ..Matrix::rows(&a, place_a.stride) };
        let mut out = vec![0.0; (end - first) * width];
        multiply((end - first, width, inner), scale, rows, weights, &mut out, width, false);
        out
    });
    let out = view::write::<T>(&op.out);
    for ((_, first, _), product) in tiles.iter().zip(products) {
        let rows = out[first * place_out.stride..].chunks_mut(place_out.stride.max(1));
        for (row, product) in rows.zip(product.chunks(width.max(1))) {
            for (out, x) in row[place_out.first..].iter_mut().zip(product) {
                *out = T::from_f32(if op.accumulate { out.to_f32() + x } else { *x });
            }
        }
    }
}

/// The product of each expert is one task.
fn weight_gradient(op: &GroupedGemm, pool: &Pool) {
    let [_, n, k] = op.sizes();
    let (a, b, offsets) = (to_f32(&op.a), to_f32(&op.b), view::read::<i32>(&op.offsets));
    debug_assert_eq!(op.out.dtype, DType::F32);
    let [place_a, place_b] = op.places();
    pool.for_each_chunk(view::write::<f32>(&op.out), n * k, |expert, out| {
        let (first, end) = (offsets[expert] as usize, offsets[expert + 1] as usize);
        let rows = |data, place: MatrixPlace| Matrix {
            offset: first * place.stride + place.first,
            ..Matrix::rows(data, place.stride)
        };
        let (grad, input) = (rows(&a, place_a).transposed(), rows(&b, place_b));
        multiply((n, k, end - first), op.alpha, grad, input, out, k, op.accumulate);
    });
}
