//! Element types a tensor can hold.

use half::bf16;

use crate::{F8E4M3, F8E5M2};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// bfloat16: the exponent of f32, 8 bits of precision. Arithmetic on it is done in f32.
    Bf16,
    /// 8-bit floating, 4 bits of exponent; see [`F8E4M3`](crate::F8E4M3). Only matrix products take it, and operations
    /// that make their factors.
    F8E4M3,
    /// 8-bit floating, 5 bits of exponent; see [`F8E5M2`](crate::F8E5M2). As [`DType::F8E4M3`].
    F8E5M2,
    /// Token ids and targets.
    I32,
    /// Bits of 16: the remainders of master weights, see [`split_master`](crate::ops::split_master).
    U16,
    /// Raw bytes: control blocks, records, and codes of weights.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::Bf16 | DType::U16 => 2,
            DType::F8E4M3 | DType::F8E5M2 | DType::U8 => 1,
        }
    }

    /// The name used in configs, reports and errors.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::F8E4M3 => "fp8-e4m3",
            DType::F8E5M2 => "fp8-e5m2",
            DType::I32 => "i32",
            DType::U16 => "u16",
            DType::U8 => "u8",
        }
    }
}

impl DType {
    /// The largest number of an 8-bit floating type.
    ///
    /// # Panics
    /// If it is another type.
    pub fn largest_fp8(self) -> f32 {
        match self {
            DType::F8E4M3 => F8E4M3::LARGEST,
            DType::F8E5M2 => F8E5M2::LARGEST,
            other => unreachable!("{other} is no 8-bit floating type"),
        }
    }

    /// The middle between the largest number of an 8-bit floating type and the next, if there were one: values above it
    /// saturate.
    ///
    /// # Panics
    /// If it is another type.
    pub fn saturates_above(self) -> f32 {
        // Both largest numbers are 1.75 times a power of two, with 3 bits and 2 bits after the point.
        let half_step = if self == DType::F8E4M3 { 1.0 / 16.0 } else { 1.0 / 8.0 };
        self.largest_fp8() / 1.75 * (1.75 + half_step)
    }

    /// Whether the type is one of the two 8-bit floating types.
    pub const fn is_fp8(self) -> bool {
        matches!(self, DType::F8E4M3 | DType::F8E5M2)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that is the host image of a [`DType`].
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The tensor type this is the image of.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
}
impl Element for i32 {
    const DTYPE: DType = DType::I32;
}
impl Element for u16 {
    const DTYPE: DType = DType::U16;
}
impl Element for u8 {
    const DTYPE: DType = DType::U8;
}

/// A floating type that kernels load to f32, compute in, and round once when storing.
pub trait Float: Element {
    /// Exact widening.
    fn to_f32(self) -> f32;
    /// Round to nearest even.
    fn from_f32(x: f32) -> Self;
}

impl Float for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(x: f32) -> f32 {
        x
    }
}

impl Float for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits((self.to_bits() as u32) << 16)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
}
