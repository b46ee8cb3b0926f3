//! Gated linear units of rows, times the router's weights.

use crate::Float;
use crate::host::parts::{GateFunction, with_gate};
use crate::host::{HostKernel, Pool, view, with_float};
use crate::ops::{ExpertGlu, ExpertGluBackward};

impl HostKernel for ExpertGlu {
    fn run(&self, pool: &Pool) {
        with_float!(self.output.dtype, T => with_gate!(self.gate, of => forward::<T>(self, of, pool)));
    }
}

fn forward<T: Float>(op: &ExpertGlu, of: impl GateFunction, pool: &Pool) {
    let width = op.output.shape.last();
    let (input, pairs) = (view::read::<T>(&op.input), view::read::<i32>(&op.pairs));
    let weights = view::read::<f32>(&op.weights);
    pool.for_each_chunk(view::write::<T>(&op.output), width, |row, out| {
        if pairs[row] < 0 {
            return out.fill(T::from_f32(0.0));
        }
        let (gate, up) = input[row * 2 * width..(row + 1) * 2 * width].split_at(width);
        let weight = weights[pairs[row] as usize];
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = T::from_f32(of.value(gate.to_f32()) * of.other(up.to_f32()) * weight);
        }
    });
}

impl HostKernel for ExpertGluBackward {
    fn run(&self, pool: &Pool) {
        with_float!(self.grad_input.dtype, T => with_gate!(self.gate, of => backward::<T>(self, of, pool)));
        let ExpertGluBackward { gate, input, weights, pairs, output, .. } = *self;
        HostKernel::run(&ExpertGlu { gate, input, weights, pairs, output }, pool);
    }
}

fn backward<T: Float>(op: &ExpertGluBackward, of: impl GateFunction, pool: &Pool) {
    let width = op.grad_output.shape.last();
    let (input, grad) = (view::read::<T>(&op.input), view::read::<T>(&op.grad_output));
    let (weights, pairs) = (view::read::<f32>(&op.weights), view::read::<i32>(&op.pairs));
    let halves = |row: usize| input[row * 2 * width..(row + 1) * 2 * width].split_at(width);
    pool.for_each_chunk(view::write::<T>(&op.grad_input), 2 * width, |row, out| {
        if pairs[row] < 0 {
            return out.fill(T::from_f32(0.0));
        }
        let ((gate, up), weight) = (halves(row), weights[pairs[row] as usize]);
        let (grad_gate, grad_up) = out.split_at_mut(width);
        for i in 0..width {
            let (g, u, dy) = (gate[i].to_f32(), up[i].to_f32(), grad[row * width + i].to_f32() * weight);
            grad_gate[i] = T::from_f32(dy * of.other(u) * of.derivative(g));
            grad_up[i] = T::from_f32(dy * of.value(g) * of.other_derivative(u));
        }
    });
    let sums = pool.map(pairs.len(), |row| {
        if pairs[row] < 0 {
            return 0.0;
        }
        let (gate, up) = halves(row);
        let values = gate.iter().zip(up).zip(&grad[row * width..]);
        values.map(|((g, u), dy)| of.value(g.to_f32()) * of.other(u.to_f32()) * dy.to_f32()).sum::<f32>()
    });
    let grad_weights = view::write::<f32>(&op.grad_weights);
    let number = |pair: i32| if pair < 0 { -1 - pair } else { pair } as usize;
    pairs.iter().zip(sums).for_each(|(pair, sum)| grad_weights[number(*pair)] = sum);
}
