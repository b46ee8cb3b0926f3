//! Elementary functions in forms that the compiler can vectorise.

/// `e^x` within 2e-7 relative: argument reduction by powers of two and a degree-6 polynomial (the Cephes method).
/// Below -87.3 the result is 0, so that masked scores vanish.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let clamped = x.clamp(-87.3, 88.7);
    let n = (clamped * std::f32::consts::LOG2_E).round_ties_even();
    // ln 2 in two parts, so that the reduction is exact.
    let r = n.mul_add(2.121_944_4e-4, n.mul_add(-0.693_359_4, clamped));
    let mut p = 1.987_569_1e-4;
    p = r.mul_add(p, 1.398_199_9e-3);
    p = r.mul_add(p, 8.333_452e-3);
    p = r.mul_add(p, 4.166_579_6e-2);
    p = r.mul_add(p, 1.666_666_5e-1);
    p = r.mul_add(p, 5e-1);
    p = (r * r).mul_add(p, r + 1.0);
    // 2^n in two factors, as n = 128 has no exponent of its own.
    let half = (n * 0.5).floor();
    let power = |n: f32| f32::from_bits(((n as i32 + 127) << 23) as u32);
    let result = p * power(half) * power(n - half);
    if x < -87.3 { 0.0 } else { result }
}

/// GELU, tanh form, as a sigmoid: `0.5 (1 + tanh(u))` is the sigmoid of `2 u`. This takes one division less.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    x * sigmoid(twice_u(x))
}

/// Derivative of [`gelu`].
#[inline(always)]
pub(crate) fn gelu_derivative(x: f32) -> f32 {
    let s = sigmoid(twice_u(x));
    s + x * s * (1.0 - s) * (TWICE_SQRT_2_OVER_PI * (3.0 * 0.044_715 * x).mul_add(x, 1.0))
}

const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;

/// `2 sqrt(2/pi) (x + 0.044715 x^3)`.
#[inline(always)]
fn twice_u(x: f32) -> f32 {
    TWICE_SQRT_2_OVER_PI * x * (0.044_715 * x).mul_add(x, 1.0)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// SiLU: `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// Derivative of [`silu`].
#[inline(always)]
pub(crate) fn silu_derivative(x: f32) -> f32 {
    let s = sigmoid(x);
    s * (1.0 + x * (1.0 - s))
}

/// `tanh(x)` within 3e-7 relative: a polynomial near 0 (the Cephes method), else by [`exp`].
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let z = x * x;
    let mut p = -5.704_988_7e-3;
    p = z.mul_add(p, 2.063_909e-2);
    p = z.mul_add(p, -5.373_971_6e-2);
    p = z.mul_add(p, 1.333_144_2e-1);
    p = z.mul_add(p, -3.333_328e-1);
    let near = (x * z).mul_add(p, x);
    let far = 1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0);
    if x.abs() < 0.625 { near } else { far.copysign(x) }
}

/// Lanes of a running sum: one vector register of the widest kind.
const LANES: usize = 16;

/// Sum of `f(i)` over `0..n`, in an order fixed by `n`, wide enough to vectorise.
#[inline(always)]
pub(crate) fn sum(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let whole = n / LANES * LANES;
    for base in (0..whole).step_by(LANES) {
        for (lane, total) in lanes.iter_mut().enumerate() {
            *total += f(base + lane);
        }
    }
    let mut total = 0.0;
    for lane in lanes {
        total += lane;
    }
    for i in whole..n {
        total += f(i);
    }
    total
}

/// Largest `f(i)` over `0..n`; -inf for none.
#[inline(always)]
pub(crate) fn max(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let whole = n / LANES * LANES;
    for base in (0..whole).step_by(LANES) {
        for (lane, best) in lanes.iter_mut().enumerate() {
            *best = best.max(f(base + lane));
        }
    }
    let best = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (whole..n).fold(best, |best, i| best.max(f(i)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_2e_7_of_the_true_value_over_its_range() {
        for i in -8700..=8800 {
            let x = i as f32 / 100.0;
            let truth = f64::from(x).exp();
            assert!((f64::from(exp(x)) / truth - 1.0).abs() < 2e-7, "exp({x}) = {} not {truth}", exp(x));
        }
        assert_eq!((exp(f32::NEG_INFINITY), exp(-200.0), exp(0.0)), (0.0, 0.0, 1.0));
    }

    #[test]
    fn gelu_and_its_derivative_are_within_4e_7_of_the_true_values_and_saturate() {
        let truth =
            |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh());
        for i in -2000..=2000 {
            let x = i as f32 / 100.0;
            let exact = f64::from(x);
            let slope = (truth(exact + 1e-5) - truth(exact - 1e-5)) / 2e-5;
            assert!((f64::from(gelu(x)) - truth(exact)).abs() < 4e-7 * exact.abs().max(1.0), "gelu({x})");
            assert!((f64::from(gelu_derivative(x)) - slope).abs() < 2e-6, "gelu'({x})");
        }
        assert_eq!([gelu(1e4), gelu_derivative(1e4)], [1e4, 1.0]);
        assert!(gelu(-1e4).abs() < 1e-20 && gelu_derivative(-1e4).abs() < 1e-20);
    }

    #[test]
    fn tanh_is_within_3e_7_of_the_true_value_and_saturates() {
        for i in -3000..=3000 {
            let x = i as f32 / 200.0;
            let truth = f64::from(x).tanh();
            let error = (f64::from(tanh(x)) - truth).abs();
            assert!(error <= 3e-7 * truth.abs(), "tanh({x}) = {} not {truth}", tanh(x));
        }
        assert_eq!([tanh(1e4), tanh(-1e4), tanh(f32::INFINITY)], [1.0, -1.0, 1.0]);
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn sums_and_maxima_include_every_element_of_odd_lengths() {
        for n in [0, 1, 15, 16, 17, 33] {
            assert_eq!(sum(n, |i| i as f32), (n * n.saturating_sub(1) / 2) as f32);
            let last = if n == 0 { f32::NEG_INFINITY } else { n as f32 - 1.0 };
            assert_eq!(max(n, |i| i as f32), last);
        }
    }
}
