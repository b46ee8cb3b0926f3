//! Functions of layers in f64.

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
