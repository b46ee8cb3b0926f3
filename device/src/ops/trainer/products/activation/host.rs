//! Activation functions.

use crate::Float;
use crate::host::parts::{GateFunction, gelu, gelu_derivative, with_gate};
use crate::host::{HostKernel, Pool, map, view, with_float};
use crate::ops::{Activation, ActivationBackward, ActivationKind, Glu, GluBackward};

impl HostKernel for Activation {
    fn run(&self, pool: &Pool) {
        with_float!(self.output.dtype, T => {
            let input = view::read::<T>(&self.input);
            match self.kind {
                ActivationKind::Gelu => map::<T>(&self.output, pool, |i| gelu(input[i].to_f32())),
                ActivationKind::Relu => {
                    map::<T>(&self.output, pool, |i| match input[i].to_f32() {
                        x if x <= 0.0 => 0.0,
                        x => x, // NaN too: `max` would hide it
                    });
                },
            }
        });
    }
}

impl HostKernel for ActivationBackward {
    fn run(&self, pool: &Pool) {
        with_float!(self.grad_input.dtype, T => {
            let (input, grad) = (view::read::<T>(&self.input), view::read::<T>(&self.grad_output));
            match self.kind {
                ActivationKind::Gelu => {
                    map::<T>(&self.grad_input, pool, |i| grad[i].to_f32() * gelu_derivative(input[i].to_f32()));
                }
                ActivationKind::Relu => {
                    map::<T>(&self.grad_input, pool, |i| if input[i].to_f32() > 0.0 { grad[i].to_f32() } else { 0.0 });
                }
            }
        });
    }
}

impl HostKernel for Glu {
    fn run(&self, pool: &Pool) {
        with_float!(self.output.dtype, T => with_gate!(self.gate, of => forward::<T>(self, of, pool)));
    }
}

fn forward<T: Float>(op: &Glu, of: impl GateFunction, pool: &Pool) {
    let width = op.output.shape.last();
    let input = view::read::<T>(&op.input);
    pool.for_each_chunk(view::write::<T>(&op.output), width, |row, out| {
        let (gate, up) = input[row * 2 * width..(row + 1) * 2 * width].split_at(width);
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = T::from_f32(of.value(gate.to_f32()) * of.other(up.to_f32()));
        }
    });
}

impl HostKernel for GluBackward {
    fn run(&self, pool: &Pool) {
        with_float!(self.grad_input.dtype, T => with_gate!(self.gate, of => backward::<T>(self, of, pool)));
        if let Some(output) = self.output {
            HostKernel::run(&Glu { gate: self.gate, input: self.input, output }, pool);
        }
    }
}

fn backward<T: Float>(op: &GluBackward, of: impl GateFunction, pool: &Pool) {
    let width = op.grad_output.shape.last();
    let (input, grad) = (view::read::<T>(&op.input), view::read::<T>(&op.grad_output));
    pool.for_each_chunk(view::write::<T>(&op.grad_input), 2 * width, |row, out| {
        let (gate, up) = input[row * 2 * width..(row + 1) * 2 * width].split_at(width);
        let (grad_gate, grad_up) = out.split_at_mut(width);
        for i in 0..width {
            let (g, u, dy) = (gate[i].to_f32(), up[i].to_f32(), grad[row * width + i].to_f32());
            grad_gate[i] = T::from_f32(dy * of.other(u) * of.derivative(g));
            grad_up[i] = T::from_f32(dy * of.value(g) * of.other_derivative(u));
        }
    });
}
