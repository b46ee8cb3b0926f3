//! Types of values in files.

use half::{bf16, f16};
use rayon::prelude::*;

/// Type of the values in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
}

impl DataType {
    /// The type that safetensors calls so.
    pub(crate) fn named(name: &str) -> Option<DataType> {
        match name {
            "F32" => Some(DataType::F32),
            "F16" => Some(DataType::F16),
            "BF16" => Some(DataType::Bf16),
            _ => None,
        }
    }

    /// The data type that an option's word names; f32 for words other than `f16` and `bf16`.
    pub fn from_option(word: &str) -> DataType {
        match word {
            "f16" => DataType::F16,
            "bf16" => DataType::Bf16,
            _ => DataType::F32,
        }
    }

    pub(crate) fn torch_name(self) -> &'static str {
        match self {
            DataType::F32 => "float32",
            DataType::F16 => "float16",
            DataType::Bf16 => "bfloat16",
        }
    }

    pub(crate) fn size(self) -> usize {
        if self == DataType::F32 { 4 } else { 2 }
    }

    pub(crate) fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let halves = |value: fn([u8; 2]) -> f32| bytes.par_chunks_exact(2).map(move |b| value([b[0], b[1]])).collect();
        match self {
            DataType::F32 => bytes.par_chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
            DataType::F16 => halves(|b| f16::from_le_bytes(b).to_f32()),
            DataType::Bf16 => halves(|b| bf16::from_le_bytes(b).to_f32()),
        }
    }

    /// The largest value.
    pub(crate) fn largest(self) -> f32 {
        match self {
            DataType::F32 => f32::MAX,
            DataType::F16 => f16::MAX.to_f32(),
            DataType::Bf16 => bf16::MAX.to_f32(),
        }
    }

    /// A finite value that becomes infinity in this type, if there is one.
    pub(crate) fn too_large(self, values: &[f32]) -> Option<f32> {
        let becomes_infinite = |x: f32| match self {
            DataType::F32 => false,
            DataType::F16 => f16::from_f32(x).is_infinite(),
            DataType::Bf16 => bf16::from_f32(x).is_infinite(),
        };
        let largest = self.largest();
        // Values a little above round to the largest.
        values.par_iter().copied().find_first(|&x| x.abs() > largest && x.is_finite() && becomes_infinite(x))
    }

    pub(crate) fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            DataType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            DataType::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            DataType::Bf16 => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        }
    }
}
