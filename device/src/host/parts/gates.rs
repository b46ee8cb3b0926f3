//! The functions of gated linear units.

use super::math::{gelu, gelu_derivative, sigmoid, silu, silu_derivative};
use crate::ops::Gate;

/// A gated linear unit of two values: `value(gate) * other(up)`.
pub(crate) trait GateFunction: Copy + Sync {
    /// Of the gate.
    fn value(self, gate: f32) -> f32;

    /// The gate's derivative.
    fn derivative(self, gate: f32) -> f32;

    /// Of the gated value.
    #[inline(always)]
    fn other(self, up: f32) -> f32 {
        up
    }

    /// The gate's derivative.
    #[inline(always)]
    fn other_derivative(self, _up: f32) -> f32 {
        1.0
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Silu;

impl GateFunction for Silu {
    #[inline(always)]
    fn value(self, gate: f32) -> f32 {
        silu(gate)
    }

    #[inline(always)]
    fn derivative(self, gate: f32) -> f32 {
        silu_derivative(gate)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Gelu;

impl GateFunction for Gelu {
    #[inline(always)]
    fn value(self, gate: f32) -> f32 {
        gelu(gate)
    }

    #[inline(always)]
    fn derivative(self, gate: f32) -> f32 {
        gelu_derivative(gate)
    }
}

/// See [`Gate::ClampedSilu`]. NaN stays NaN.
#[derive(Clone, Copy)]
pub(crate) struct ClampedSilu;

impl GateFunction for ClampedSilu {
    #[inline(always)]
    fn value(self, gate: f32) -> f32 {
        let gate = if gate > Gate::LIMIT { Gate::LIMIT } else { gate };
        gate * sigmoid(Gate::SLOPE * gate)
    }

    #[inline(always)]
    fn derivative(self, gate: f32) -> f32 {
        if gate > Gate::LIMIT {
            return 0.0;
        }
        let s = sigmoid(Gate::SLOPE * gate);
        s * (1.0 + Gate::SLOPE * gate * (1.0 - s))
    }

    #[inline(always)]
    fn other(self, up: f32) -> f32 {
        1.0 + up.clamp(-Gate::LIMIT, Gate::LIMIT)
    }

    #[inline(always)]
    fn other_derivative(self, up: f32) -> f32 {
        if up.abs() > Gate::LIMIT { 0.0 } else { 1.0 }
    }
}

/// Runs an expression with `$function` as the [`GateFunction`] of a [`Gate`].
macro_rules! with_gate {
    ($gate:expr, $function:ident => $body:expr) => {
        match $gate {
            crate::ops::Gate::Silu => {
                let $function = crate::host::parts::Silu;
                $body
            }
            crate::ops::Gate::Gelu => {
                let $function = crate::host::parts::Gelu;
                $body
            }
            crate::ops::Gate::ClampedSilu => {
                let $function = crate::host::parts::ClampedSilu;
                $body
            }
        }
    };
}
pub(crate) use with_gate;
