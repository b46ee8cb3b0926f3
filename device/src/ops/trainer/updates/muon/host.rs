//! Muon's operations beside matrix products.

use crate::host::parts::{for_each_part, publish};
use crate::host::{HostKernel, Pool, view, with_float};
use crate::ops::{Control, DecayedStep, MatrixPolynomial, NesterovMomentum, ScaleBlock, Status};
use crate::{Float, Tensor};

impl HostKernel for NesterovMomentum {
    fn run(&self, pool: &Pool) {
        let status: Status = view::read_block(&self.status);
        if status.applies == 0 {
            return;
        }
        let beta = self.beta;
        for_each_part(self.tensors.iter().map(|each| each.grad.elements()), pool, |tensor, start, length| {
            let each = &self.tensors[tensor];
            let part = |tensor: &Tensor| tensor.view(start, [length]);
            let grad = view::write::<f32>(&part(&each.grad));
            for (g, m) in grad.iter_mut().zip(view::write::<f32>(&part(&each.momentum))) {
                let clipped = *g * status.grad_factor;
                *m = beta * *m + (1.0 - beta) * clipped;
                *g = beta * *m + (1.0 - beta) * clipped;
            }
        });
    }
}

impl HostKernel for ScaleBlock {
    fn run(&self, pool: &Pool) {
        let norm = self.square_sum.map(|sum| view::read::<f32>(&sum)[0].sqrt().max(1e-7));
        let factor = norm.map_or(self.factor, |norm| self.factor / norm);
        with_float!(self.from.matrix.dtype, A => with_float!(self.to.matrix.dtype, B => scale::<A, B>(self, factor, pool)));
    }
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

impl HostKernel for MatrixPolynomial {
    fn run(&self, pool: &Pool) {
        let (n, [a, b, c]) = (self.x.shape.last(), self.coefficients);
        with_float!(self.x.dtype, T => {
            let (x, square) = (view::read::<T>(&self.x), view::read::<T>(&self.square));
            pool.for_each_chunk(view::write::<T>(&self.output), n, |row, out| {
                let (x, square) = (&x[row * n..][..n], &square[row * n..][..n]);
                for (column, out) in out.iter_mut().enumerate() {
                    let identity = if row == column { a } else { 0.0 };
                    *out = T::from_f32(identity + b * x[column].to_f32() + c * square[column].to_f32());
                }
            });
        });
    }
}

impl HostKernel for DecayedStep {
    fn run(&self, pool: &Pool) {
        let control: Control = view::read_block(&self.control);
        let status: Status = view::read_block(&self.status);
        if status.applies == 0 {
            return;
        }
        for_each_part(self.tensors.iter().map(|each| each.master.elements()), pool, |tensor, start, length| {
            let each = &self.tensors[tensor];
            let rate = control.learning_rate * each.lr_multiplier;
            let part = |tensor: &Tensor| tensor.view(start, [length]);
            let direction = view::read::<f32>(&part(&each.direction));
            let master = view::write::<f32>(&part(&each.master));
            let decay = 1.0 - rate * each.weight_decay;
            master.iter_mut().zip(direction).for_each(|(w, d)| *w = *w * decay - rate * d);
            publish(each.compute, start, master);
        });
    }
}
