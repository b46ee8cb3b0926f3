//! Frozen weights that lie as codes of 4 or 8 bits.

use device::ops::{CODE_BLOCK, CodeForm, CodesOfValues};
use device::{DType, Device, Home, Result, Stream, Tensor, bf16};
use rayon::prelude::*;

use super::masters::rounded;

/// The values whose codes are made at once. They lie in bf16 in memory of the device that passes.
pub(super) const AT_ONCE: usize = 64 << 20;

/// Values as codes.
#[derive(Clone, Debug, PartialEq)]
pub struct Codes {
    /// The form.
    pub form: CodeForm,
    /// See [`CodeForm`].
    pub codes: Vec<u8>,
    /// The largest magnitude of each block.
    pub scales: Vec<bf16>,
}

impl Codes {
    /// The values that the codes stand for, f32.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.scales.len() * CODE_BLOCK];
        let codes = self.codes.par_chunks(self.form.bytes(CODE_BLOCK));
        let blocks = values.par_chunks_mut(CODE_BLOCK).zip(codes).zip(&self.scales);
        blocks.for_each(|((values, codes), scale)| self.form.values(codes, *scale, values));
        values
    }
}

/// The memory of values that lie as codes.
#[derive(Clone, Copy, Debug)]
pub struct CodeMemory {
    /// The form.
    pub form: CodeForm,
    /// See [`CodeForm`].
    pub codes: Tensor,
    /// The scale of each [`CODE_BLOCK`] values, bf16.
    pub scales: Tensor,
}

impl CodeMemory {
    /// Memory for the codes of so many values, a multiple of [`CODE_BLOCK`]. `allocate` makes tensors of these names, of
    /// the codes and of the scales, with so many elements.
    pub(super) fn allocate(
        form: CodeForm,
        values: usize,
        names: [&'static str; 2],
        mut allocate: impl FnMut(Home, &'static str, usize, DType) -> Result<Tensor>,
    ) -> Result<CodeMemory> {
        let codes = allocate(Home::Device, names[0], form.bytes(values), DType::U8)?;
        let scales = allocate(Home::Device, names[1], values / CODE_BLOCK, DType::Bf16)?;
        Ok(CodeMemory { form, codes, scales })
    }

    /// Bytes of codes and scales.
    pub(super) fn bytes(&self) -> usize {
        self.codes.bytes() + self.scales.bytes()
    }

    /// The number of values.
    pub fn elements(&self) -> usize {
        self.scales.elements() * CODE_BLOCK
    }

    /// The memory of some of the values. Both numbers are multiples of [`CODE_BLOCK`].
    pub fn part(self, first: usize, values: usize) -> CodeMemory {
        CodeMemory {
            codes: self.codes.view(self.form.bytes(first), [self.form.bytes(values)]),
            scales: self.scales.view(first / CODE_BLOCK, [values / CODE_BLOCK]),
            ..self
        }
    }

    /// Overwrites all codes, on a stream.
    pub(super) fn submit(self, stream: &Stream, input: Tensor) -> Result<()> {
        let CodeMemory { form, codes, scales } = self;
        stream.submit(CodesOfValues { form, input, codes, scales })
    }

    /// Overwrites all codes, and waits for the device.
    pub(super) fn set(self, device: &Device, values: &[f32]) -> Result<()> {
        if device.is_dry() || values.is_empty() {
            return Ok(());
        }
        let passing = device.allocate("values of codes", values.len().min(AT_ONCE) * DType::Bf16.size())?;
        let stream = device.stream("codes");
        for (number, values) in values.chunks(AT_ONCE).enumerate() {
            let input = passing.tensor("values of codes", 0, [values.len()], DType::Bf16);
            // Waits until the codes of the values before are made.
            device.upload(&input, &rounded(values, DType::F32))?;
            self.part(number * AT_ONCE, values.len()).submit(&stream, input)?;
        }
        stream.synchronize()
    }

    /// The values of the codes, rounded to the type that layers read.
    pub(super) fn values(self, device: &Device, dtype: DType) -> Result<Vec<f32>> {
        let CodeMemory { form, codes, scales } = self;
        let mut values = Codes { form, codes: device.download(&codes)?, scales: device.download(&scales)? }.values();
        if dtype == DType::Bf16 {
            values.par_iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
        }
        Ok(values)
    }
}
