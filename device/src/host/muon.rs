//! Muon's operations beside matrix products.

use super::elementwise::with_float;
use super::optimizer::{for_each_part, publish};
use super::{Pool, view};
use crate::ops::{Control, DecayedStep, MatrixPolynomial, NesterovMomentum, ScaleBlock, Status};
use crate::{Float, Tensor};

/// See [`NesterovMomentum`].
pub(super) fn nesterov_momentum(op: &NesterovMomentum, pool: &Pool) {
    let status: Status = view::read_block(&op.status);
    if status.applies == 0 {
        return;
    }
    let beta = op.beta;
    for_each_part(op.tensors.iter().map(|each| each.grad.elements()), pool, |tensor, start, length| {
        let each = &op.tensors[tensor];
        let part = |tensor: &Tensor| tensor.view(start, [length]);
        let grad = view::write::<f32>(&part(&each.grad));
        for (g, m) in grad.iter_mut().zip(view::write::<f32>(&part(&each.momentum))) {
            let clipped = *g * status.grad_factor;
            *m = beta * *m + (1.0 - beta) * clipped;
            *g = beta * *m + (1.0 - beta) * clipped;
        }
    });
}

/// See [`ScaleBlock`].
pub(super) fn scale_block(op: &ScaleBlock, pool: &Pool) {
    let norm = op.square_sum.map(|sum| view::read::<f32>(&sum)[0].sqrt().max(1e-7));
    let factor = norm.map_or(op.factor, |norm| op.factor / norm);
    with_float!(op.from.matrix.dtype, A => with_float!(op.to.matrix.dtype, B => scale::<A, B>(op, factor, pool)));
}

fn scale<A: Float, B: Float>(op: &ScaleBlock, factor: f32, pool: &Pool) {
    let width = op.from.matrix.shape.last();
    let from = view::read::<A>(&op.from.matrix);
    let (row, rows, column, columns) = (op.to.row, op.rows, op.to.column, op.columns);
    pool.for_each_chunk(view::write::<B>(&op.to.matrix), op.to.matrix.shape.last(), |at, to| {
        if !(row..row + rows).contains(&at) {
            return;
        }
        let from = &from[(op.from.row + at - row) * width + op.from.column..][..columns];
        let to = &mut to[column..][..columns];
        to.iter_mut().zip(from).for_each(|(to, from)| *to = B::from_f32(from.to_f32() * factor));
    });
}

/// See [`MatrixPolynomial`].
pub(super) fn matrix_polynomial(op: &MatrixPolynomial, pool: &Pool) {
    let (n, [a, b, c]) = (op.x.shape.last(), op.coefficients);
    with_float!(op.x.dtype, T => {
        let (x, square) = (view::read::<T>(&op.x), view::read::<T>(&op.square));
        pool.for_each_chunk(view::write::<T>(&op.output), n, |row, out| {
            let (x, square) = (&x[row * n..][..n], &square[row * n..][..n]);
            for (column, out) in out.iter_mut().enumerate() {
                let identity = if row == column { a } else { 0.0 };
                *out = T::from_f32(identity + b * x[column].to_f32() + c * square[column].to_f32());
            }
        });
    });
}

/// See [`DecayedStep`].
pub(super) fn decayed_step(op: &DecayedStep, pool: &Pool) {
    let control: Control = view::read_block(&op.control);
    let status: Status = view::read_block(&op.status);
    if status.applies == 0 {
        return;
    }
    for_each_part(op.tensors.iter().map(|each| each.master.elements()), pool, |tensor, start, length| {
        let each = &op.tensors[tensor];
        let rate = control.learning_rate * each.lr_multiplier;
        let part = |tensor: &Tensor| tensor.view(start, [length]);
        let direction = view::read::<f32>(&part(&each.direction));
        let master = view::write::<f32>(&part(&each.master));
        let decay = 1.0 - rate * each.weight_decay;
        master.iter_mut().zip(direction).for_each(|(w, d)| *w = *w * decay - rate * d);
        publish(each.compute, start, master);
    });
}
