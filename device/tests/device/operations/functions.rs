//! Functions of layers in f64, and odd sizes.

use proptest::prelude::*;

/// One dimension: 1, primes, a tile border and beyond.
pub fn dimension() -> impl Strategy<Value = usize> {
    prop_oneof![Just(1), Just(2), Just(7), Just(13), Just(31), Just(64), Just(129), Just(131)]
}

/// Logits as the loss sees them.
pub fn capped(logits: &[f64], cap: Option<f32>) -> Vec<f64> {
    let Some(cap) = cap.map(f64::from) else { return logits.to_vec() };
    logits.iter().map(|x| cap * (x / cap).tanh()).collect()
}

pub fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

pub fn slope(f: impl Fn(f64) -> f64, x: f64) -> f64 {
    (f(x + 1e-6) - f(x - 1e-6)) / 2e-6
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Turns pairs of neighbours. Each angle is its cosine and its sine.
pub fn turned(values: &[f64], angles: &[f64]) -> Vec<f64> {
    let pairs = values.chunks(2).zip(angles.chunks(2));
    pairs.flat_map(|(x, angle)| [x[0] * angle[0] - x[1] * angle[1], x[0] * angle[1] + x[1] * angle[0]]).collect()
}
