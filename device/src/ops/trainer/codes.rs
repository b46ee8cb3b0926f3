//! Weights that lie in memory as codes of 4 or 8 bits, with a scale for each block of neighbours.

use crate::ops::{Accesses, Operation, ensure, ensure_dtype, ensure_elements, ensure_float, visit_all};
use crate::{DType, Result, Tensor};

/// Values that share a scale.
pub const CODE_BLOCK: usize = 64;

/// The values of the 16 codes of [`CodeForm::Nf4`], times the scale.
pub const NF4_VALUES: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The form of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeForm {
    /// 4 bits: NF4 (Dettmers et al., 2023), with the values that bitsandbytes gives it. Of a byte's two codes the upper one is
    /// first.
    Nf4,
    /// 8 bits: whole numbers from -127 to 127, times the 127th part of the scale.
    Int8,
}

impl CodeForm {
    /// The bytes of the codes of so many values, a multiple of [`CODE_BLOCK`].
    pub fn bytes(self, values: usize) -> usize {
        match self {
            CodeForm::Nf4 => values / 2,
            CodeForm::Int8 => values,
        }
    }
}

/// `output[i]` = the value of code `i` with the scale of its block, rounded to the type of `output`.
#[derive(Clone, Debug, PartialEq)]
pub struct CodedValues {
    /// The form of the codes.
    pub form: CodeForm,
    /// As many [bytes](CodeForm::bytes) as the values need.
    pub codes: Tensor,
    /// The scale of each [`CODE_BLOCK`] values, bf16.
    pub scales: Tensor,
    /// Any shape, f32 or bf16.
    pub output: Tensor,
}

impl Operation for CodedValues {
    const NAME: &'static str = "coded_values";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("output", self.output)])?;
        ensure_dtype(Self::NAME, "codes", &self.codes, DType::U8)?;
        ensure_dtype(Self::NAME, "scales", &self.scales, DType::Bf16)?;
        let elements = self.output.elements();
        ensure(Self::NAME, elements.is_multiple_of(CODE_BLOCK), || {
            format!("{elements} values are no multiple of {CODE_BLOCK}")
        })?;
        // A kernel writes 16 bytes at a time, and reads the codes of 8 values.
        ensure(Self::NAME, self.output.address.is_multiple_of(16) && self.codes.address.is_multiple_of(8), || {
            "values begin at an address that is a multiple of 16, and codes at one of 8".into()
        })?;
        ensure_elements(Self::NAME, "codes", &self.codes, self.form.bytes(elements))?;
        ensure_elements(Self::NAME, "scales", &self.scales, elements / CODE_BLOCK)
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.codes, self.scales], [self.output])
    }

    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(visit, [&mut self.codes, &mut self.scales, &mut self.output]);
    }
}
