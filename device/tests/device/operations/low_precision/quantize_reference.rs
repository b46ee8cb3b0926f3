//! The references of 8-bit copies: the types by their definition, and matrices with values known in f64.

use device::DType;
use device::DType::{Bf16, F8E4M3, F8E5M2, F32};
use device::ops::*;

use crate::common::{Bench, numbers, rounded};
use crate::operations::functions::{gelu, silu, slope};

/// An 8-bit floating type by its definition: its numbers that are not negative, in the order of their bytes.
pub struct Format {
    numbers: Vec<f64>,
    nan: fn(u8) -> bool,
}

/// NaN as a result; an operation may give any of the type's NaNs.
const NAN: u8 = 0x7f;

impl Format {
    pub fn of(dtype: DType) -> Format {
        // Subnormal below the smallest power of two, then `steps` numbers to each power of two.
        let (steps, smallest, count, nan): (_, _, _, fn(u8) -> bool) = match dtype {
            F8E4M3 => (8, 2f64.powi(-6), 0x7f, |byte| byte & 0x7f == 0x7f),
            F8E5M2 => (4, 2f64.powi(-14), 0x7c, |byte| byte & 0x7f >= 0x7d),
            _ => panic!("{dtype} is no 8-bit floating type"),
        };
        let number = |byte: i32| match (byte / steps, f64::from(byte % steps) / f64::from(steps)) {
            (0, fraction) => smallest * fraction,
            (power, fraction) => smallest * 2f64.powi(power - 1) * (1.0 + fraction),
        };
        Format { numbers: (0..count).map(number).collect(), nan }
    }

    pub fn largest(&self) -> f64 {
        *self.numbers.last().unwrap()
    }

    /// The byte of the nearest number, of two the even one; the largest for all beyond it; NaN for NaN and infinities.
    pub fn nearest(&self, x: f64) -> u8 {
        if !x.is_finite() {
            return NAN;
        }
        let sign = if x.is_sign_negative() { 0x80 } else { 0 };
        let above = self.numbers.partition_point(|number| *number < x.abs()).min(self.numbers.len() - 1);
        let below = above.saturating_sub(1);
        let (up, down) = (self.numbers[above] - x.abs(), x.abs() - self.numbers[below]);
        let byte = if up < down || (up == down && above % 2 == 0) { above } else { below };
        sign | byte as u8
    }

    pub fn number(&self, byte: u8) -> f64 {
        if (self.nan)(byte) {
            return f64::NAN;
        }
        let number = self.numbers.get(usize::from(byte & 0x7f)).copied().unwrap_or(f64::INFINITY);
        if byte & 0x80 == 0 { number } else { -number }
    }

    /// How many numbers of the type one is from the other; 0 and -0 are one. `None` if only one of them is NaN.
    pub fn steps(&self, a: u8, b: u8) -> Option<i32> {
        match ((self.nan)(a), (self.nan)(b)) {
            (false, false) => {
                let place = |byte: u8| i32::from(byte & 0x7f) * if byte & 0x80 == 0 { 1 } else { -1 };
                Some((place(a) - place(b)).abs())
            }
            (a, b) => (a && b).then_some(0),
        }
    }
}

/// The byte of `x`, with every rounding that the operation promises: of the inverse, of the product, of the byte. A
/// scale of 0 is not known yet.
pub fn quantized(x: f64, scale: f32, format: &Format) -> u8 {
    let inverse = if scale == 0.0 { 0.0 } else { (1.0 / f64::from(scale)) as f32 };
    format.nearest(f64::from((x * f64::from(inverse)) as f32))
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Stored,
    Rounded,
    Norm(NormKind),
    Activation(ActivationKind),
    ActivationBackward(ActivationKind),
    Glu(Gate),
    GluBackward(Gate),
}

pub const KINDS: [Kind; 13] = [
    Kind::Stored,
    Kind::Rounded,
    Kind::Norm(NormKind::Layer),
    Kind::Norm(NormKind::Rms),
    Kind::Norm(NormKind::Rms1p),
    Kind::Activation(ActivationKind::Gelu),
    Kind::Activation(ActivationKind::Relu),
    Kind::ActivationBackward(ActivationKind::Gelu),
    Kind::ActivationBackward(ActivationKind::Relu),
    Kind::Glu(Gate::Silu),
    Kind::GluBackward(Gate::Silu),
    Kind::Glu(Gate::Gelu),
    Kind::GluBackward(Gate::Gelu),
];

fn of_gate(gate: Gate) -> fn(f64) -> f64 {
    match gate {
        Gate::Silu => silu,
        Gate::Gelu => gelu,
        Gate::ClampedSilu => unreachable!("8-bit copies do not compute it"),
    }
}

fn function(kind: ActivationKind) -> fn(f64) -> f64 {
    match kind {
        ActivationKind::Gelu => gelu,
        ActivationKind::Relu => |x| x.max(0.0),
    }
}

fn derivative(kind: ActivationKind, x: f64) -> f64 {
    match kind {
        ActivationKind::Gelu => slope(gelu, x),
        ActivationKind::Relu => f64::from(u8::from(x > 0.0)),
    }
}

/// A matrix to quantise.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    pub kind: Kind,
    pub dtype: DType,
    /// Even for [`Kind::GluBackward`].
    pub shape: [usize; 2],
    /// The offset of tensors from a multiple of 256 bytes, in elements.
    pub offset: usize,
}

impl Matrix {
    /// Its values in f64, and the source from which a device computes them.
    pub fn make(&self, t: &Bench) -> (Vec<f64>, QuantizeSource) {
        let Matrix { kind, dtype, shape: [rows, columns], offset } = *self;
        let tensor = |seed: u64, columns: usize| {
            let values: Vec<f64> =
                numbers(seed, rows * columns, dtype).into_iter().map(|x| rounded(3.0 * x, dtype)).collect();
            let padded: Vec<f64> = std::iter::repeat_n(f64::NAN, offset).chain(values.iter().copied()).collect();
            (values, t.put(&[padded.len()], dtype, &padded).view(offset, [rows, columns]))
        };
        let half = columns / 2;
        match kind {
            Kind::Stored => {
                let (x, input) = tensor(1, columns);
                (x, QuantizeSource::Stored(input))
            }
            Kind::Rounded => {
                let (x, input) = tensor(1, columns);
                (x.into_iter().map(|x| rounded(x, Bf16)).collect(), QuantizeSource::Rounded(input))
            }
            Kind::Norm(kind) => {
                // Statistics and parameters of any numbers: they need not fit the rows.
                let (layer, weight_offset) = (kind == NormKind::Layer, kind.weight_offset());
                let (x, input) = tensor(1, columns);
                let vector = |seed: u64| {
                    let values = numbers(seed, columns, dtype);
                    let padded: Vec<f64> = vec![f64::NAN; offset].into_iter().chain(values.iter().copied()).collect();
                    (values, t.put(&[padded.len()], dtype, &padded).view(offset, [columns]))
                };
                let ((weights, weight), (biases, bias)) = (vector(3), vector(4));
                let (means, rstds) = (numbers(5, rows, F32), numbers(6, rows, F32));
                let value = |i: usize| {
                    let (row, column) = (i / columns, i % columns);
                    let (mean, shift) = if layer { (means[row], biases[column]) } else { (0.0, 0.0) };
                    (x[i] - mean) * rstds[row] * (f64::from(weight_offset) + weights[column]) + shift
                };
                let rstd = t.put(&[rows], F32, &rstds);
                let (mean, bias) = (layer.then(|| t.put(&[rows], F32, &means)), layer.then_some(bias));
                let values = (0..x.len()).map(value).collect();
                (values, QuantizeSource::Norm { input, mean, rstd, weight, weight_offset, bias })
            }
            Kind::Activation(kind) => {
                let (x, input) = tensor(1, columns);
                (x.into_iter().map(function(kind)).collect(), QuantizeSource::Activation { kind, input })
            }
            Kind::ActivationBackward(kind) => {
                let ((x, input), (dy, grad_output)) = (tensor(1, columns), tensor(2, columns));
                let values = x.iter().zip(&dy).map(|(x, dy)| dy * derivative(kind, *x)).collect();
                (values, QuantizeSource::ActivationBackward { kind, input, grad_output })
            }
            Kind::Glu(gate) => {
                let (x, input) = tensor(1, 2 * columns);
                let f = of_gate(gate);
                let row = |row: &[f64]| -> Vec<f64> { (0..columns).map(|c| f(row[c]) * row[columns + c]).collect() };
                (x.chunks(2 * columns).flat_map(row).collect(), QuantizeSource::Glu { gate, input })
            }
            Kind::GluBackward(of) => {
                let f = of_gate(of);
                let ((x, input), (dy, grad_output)) = (tensor(1, columns), tensor(2, half));
                let row = |(row, dy): (&[f64], &[f64])| -> Vec<f64> {
                    let gate = (0..half).map(|c| dy[c] * row[half + c] * slope(f, row[c]));
                    gate.chain((0..half).map(|c| dy[c] * f(row[c]))).collect()
                };
                let values = x.chunks(columns).zip(dy.chunks(half)).flat_map(row).collect();
                (values, QuantizeSource::GluBackward { gate: of, input, grad_output })
            }
        }
    }

    /// The distance that a value may have from its f64 reference: stored values are exact, and functions are within a
    /// few bits of f32, or within 1e-5 for bf16 inputs.
    pub fn allowed(&self, x: f64) -> f64 {
        match (self.kind, self.dtype) {
            (Kind::Stored | Kind::Rounded, _) => 0.0,
            (_, Bf16) => 3e-5 * (x.abs() + 1.0),
            _ => 3e-6 * (x.abs() + 1.0),
        }
    }
}

pub fn transposed(values: &[f64], columns: usize) -> Vec<f64> {
    (0..values.len()).map(|i| values[i % (values.len() / columns) * columns + i / (values.len() / columns)]).collect()
}
