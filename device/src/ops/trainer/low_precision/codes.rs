//! Weights that lie in memory as codes of 4 or 8 bits, with a scale for each block of neighbours.

mod host;

use crate::cuda::{Arg, KernelFile, KernelOperation, Queue, kernel_file, over_packs};
use crate::ops::{Operation, ensure, ensure_dtype, ensure_elements, ensure_float, tensors};
use crate::{DType, Result, Tensor, bf16};

/// Values that share a scale.
pub const CODE_BLOCK: usize = 64;

/// The values of the 16 codes of [`CodeForm::Nf4`], times the scale.
const NF4_VALUES: [f32; 16] = [
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

/// Above the number with index `i` a value, divided by its scale, has a code of [`CodeForm::Nf4`] above `i`, as
/// bitsandbytes rounds.
const NF4_BORDERS: [f32; 15] = [
    -0.848_096_4,
    -0.610_632_9,
    -0.459_995_27,
    -0.339_679_43,
    -0.234_607_4,
    -0.137_911_73,
    -0.045_525_018,
    0.039_790_15,
    0.120_255_25,
    0.203_521_25,
    0.292_013_77,
    0.389_312_54,
    0.501_663_45,
    0.642_786_9,
    0.861_478_45,
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

    /// The values that the codes of a block stand for.
    pub fn values(self, codes: &[u8], scale: bf16, values: &mut [f32]) {
        let scale = scale.to_f32();
        match self {
            CodeForm::Nf4 => {
                let codes = codes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
                values.iter_mut().zip(codes).for_each(|(to, code)| *to = NF4_VALUES[usize::from(code)] * scale);
            }
            CodeForm::Int8 => {
                let factor = scale * (1.0 / 127.0);
                values.iter_mut().zip(codes).for_each(|(to, code)| *to = f32::from(*code as i8) * factor);
            }
        }
    }

    /// Writes the codes of a block's values. Returns their scale, the largest magnitude.
    pub(crate) fn encode(self, values: &[bf16], codes: &mut [u8]) -> bf16 {
        let values = || values.iter().map(|x| x.to_f32());
        let largest = values().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let inverse = if largest > 0.0 { 1.0 / largest } else { 0.0 };
        let code = |x: f32| match self {
            CodeForm::Nf4 => NF4_BORDERS.partition_point(|border| x * inverse > *border) as u8,
            CodeForm::Int8 => ((x * inverse * 127.0).round_ties_even() as i32).clamp(-127, 127) as u8,
        };
        codes.fill(0);
        for (at, x) in values().enumerate() {
            match self {
                CodeForm::Nf4 => codes[at / 2] |= code(x) << if at.is_multiple_of(2) { 4 } else { 0 },
                CodeForm::Int8 => codes[at] = code(x),
            }
        }
        bf16::from_f32(largest)
    }
}

/// Fails unless codes and scales are those of so many values, at addresses that kernels take.
fn check(name: &'static str, form: CodeForm, codes: Tensor, scales: Tensor, values: Tensor) -> Result<()> {
    ensure_dtype(name, "codes", &codes, DType::U8)?;
    ensure_dtype(name, "scales", &scales, DType::Bf16)?;
    let elements = values.elements();
    ensure(name, elements.is_multiple_of(CODE_BLOCK), || format!("{elements} values are no multiple of {CODE_BLOCK}"))?;
    // A kernel moves 16 bytes of values at a time, and the codes of 8 values.
    ensure(name, values.address.is_multiple_of(16) && codes.address.is_multiple_of(8), || {
        "values begin at an address that is a multiple of 16, and codes at one of 8".into()
    })?;
    ensure_elements(name, "codes", &codes, form.bytes(elements))?;
    ensure_elements(name, "scales", &scales, elements / CODE_BLOCK)
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
        check(Self::NAME, self.form, self.codes, self.scales, self.output)
    }

    tensors! { read codes, scales; write output }
}

/// The codes of values, rounded to bf16 first as a model is loaded: so bf16 has their largest magnitudes, which are the
/// scales, and the codes of what codes stand for are the same.
#[derive(Clone, Debug, PartialEq)]
pub struct CodesOfValues {
    /// The form of the codes.
    pub form: CodeForm,
    /// Any shape, f32 or bf16.
    pub input: Tensor,
    /// As many [bytes](CodeForm::bytes) as the values need.
    pub codes: Tensor,
    /// The scale of each [`CODE_BLOCK`] values, bf16.
    pub scales: Tensor,
}

impl Operation for CodesOfValues {
    const NAME: &'static str = "codes_of_values";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("input", self.input)])?;
        check(Self::NAME, self.form, self.codes, self.scales, self.input)
    }

    tensors! { read input; write codes, scales }
}

/// Values that a thread computes at a time; `VALUES` in `device/kernels/low_precision/codes.cu`.
const VALUES: usize = 8;

/// The name of a form within the names of kernels.
fn named(form: CodeForm) -> &'static str {
    match form {
        CodeForm::Nf4 => "nf4",
        CodeForm::Int8 => "int8",
    }
}

impl KernelOperation for CodedValues {
    const FILES: &'static [KernelFile] = &[kernel_file!("low_precision/codes.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let packs = self.output.elements() / VALUES;
        let arguments = [self.codes.into(), self.scales.into(), self.output.into(), Arg::U64(packs as u64)];
        let kernel = format!("{}_values_{}", named(self.form), self.output.dtype);
        queue.launch(&kernel, over_packs(packs, queue), &arguments)
    }
}

impl KernelOperation for CodesOfValues {
    const FILES: &'static [KernelFile] = &[kernel_file!("low_precision/codes.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let packs = self.input.elements() / VALUES;
        let arguments = [self.input.into(), self.codes.into(), self.scales.into(), Arg::U64(packs as u64)];
        let kernel = format!("{}_codes_{}", named(self.form), self.input.dtype);
        queue.launch(&kernel, over_packs(packs, queue), &arguments)
    }
}
