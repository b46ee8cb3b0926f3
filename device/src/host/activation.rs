//! Activation functions.

use super::elementwise::{map, with_float};
use super::math::{gelu, gelu_derivative, sigmoid};
use super::{Pool, view};
use crate::Float;
use crate::ops::{Activation, ActivationBackward, ActivationKind, SwiGlu, SwiGluBackward};

/// See [`Activation`].
pub(super) fn activation(op: &Activation, pool: &Pool) {
    with_float!(op.output.dtype, T => {
        let input = view::read::<T>(&op.input);
        match op.kind {
            ActivationKind::Gelu => map::<T>(&op.output, pool, |i| gelu(input[i].to_f32())),
            ActivationKind::Relu => {
                map::<T>(&op.output, pool, |i| match input[i].to_f32() {
                    x if x <= 0.0 => 0.0,
                    x => x, // NaN too: `max` would hide it
                });
            },
        }
    });
}

/// See [`ActivationBackward`].
pub(super) fn activation_backward(op: &ActivationBackward, pool: &Pool) {
    with_float!(op.grad_input.dtype, T => {
        let (input, grad) = (view::read::<T>(&op.input), view::read::<T>(&op.grad_output));
        match op.kind {
            ActivationKind::Gelu => {
                map::<T>(&op.grad_input, pool, |i| grad[i].to_f32() * gelu_derivative(input[i].to_f32()));
            }
            ActivationKind::Relu => {
                map::<T>(&op.grad_input, pool, |i| if input[i].to_f32() > 0.0 { grad[i].to_f32() } else { 0.0 });
            }
        }
    });
}

/// See [`SwiGlu`].
pub(super) fn swiglu(op: &SwiGlu, pool: &Pool) {
    with_float!(op.output.dtype, T => {
        let width = op.output.shape.last();
        let input = view::read::<T>(&op.input);
        pool.for_each_chunk(view::write::<T>(&op.output), width, |row, out| {
            let (gate, up) = input[row * 2 * width..(row + 1) * 2 * width].split_at(width);
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                let gate = gate.to_f32();
                *out = T::from_f32(gate * sigmoid(gate) * up.to_f32());
            }
        });
    });
}

/// See [`SwiGluBackward`].
pub(super) fn swiglu_backward(op: &SwiGluBackward, pool: &Pool) {
    with_float!(op.grad_input.dtype, T => {
        let width = op.grad_output.shape.last();
        let (input, grad) = (view::read::<T>(&op.input), view::read::<T>(&op.grad_output));
        pool.for_each_chunk(view::write::<T>(&op.grad_input), 2 * width, |row, out| {
            let (gate, up) = input[row * 2 * width..(row + 1) * 2 * width].split_at(width);
            let (grad_gate, grad_up) = out.split_at_mut(width);
            for i in 0..width {
                let (g, u, dy) = (gate[i].to_f32(), up[i].to_f32(), grad[row * width + i].to_f32());
                let s = sigmoid(g);
                grad_gate[i] = T::from_f32(dy * u * s * (1.0 + g * (1.0 - s)));
                grad_up[i] = T::from_f32(dy * g * s);
            }
        });
    });
    if let Some(output) = op.output {
        swiglu(&SwiGlu { input: op.input, output }, pool);
    }
}
