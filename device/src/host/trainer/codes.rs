//! Weights that lie as codes.

use crate::host::elementwise::with_float;
use crate::host::{HostKernel, Pool, view};
use crate::ops::{CODE_BLOCK, CodeForm, CodedValues, NF4_VALUES};
use crate::{Float, bf16};

impl HostKernel for CodedValues {
    fn run(&self, pool: &Pool) {
        let (codes, scales) = (view::read::<u8>(&self.codes), view::read::<bf16>(&self.scales));
        let value = |at: usize, scale: f32| match self.form {
            CodeForm::Nf4 => {
                let byte = codes[at / 2];
                NF4_VALUES[usize::from(if at.is_multiple_of(2) { byte >> 4 } else { byte & 15 })] * scale
            }
            CodeForm::Int8 => f32::from(codes[at] as i8) * (scale * (1.0 / 127.0)),
        };
        with_float!(self.output.dtype, T => {
            pool.for_each_chunk(view::write::<T>(&self.output), CODE_BLOCK, |block, values| {
                let scale = scales[block].to_f32();
                for (at, to) in values.iter_mut().enumerate() {
                    *to = T::from_f32(value(block * CODE_BLOCK + at, scale));
                }
            });
        });
    }
}
