//! Weights that lie as codes.

use crate::host::{HostKernel, Pool, view, with_float};
use crate::ops::{CODE_BLOCK, CodedValues, CodesOfValues};
use crate::{Float, bf16};

impl HostKernel for CodedValues {
    fn run(&self, pool: &Pool) {
        let (codes, scales) = (view::read::<u8>(&self.codes), view::read::<bf16>(&self.scales));
        let bytes = self.form.bytes(CODE_BLOCK);
        with_float!(self.output.dtype, T => {
            pool.for_each_chunk(view::write::<T>(&self.output), CODE_BLOCK, |block, output| {
                let mut values = [0.0; CODE_BLOCK];
                self.form.values(&codes[block * bytes..][..bytes], scales[block], &mut values);
                output.iter_mut().zip(values).for_each(|(to, x)| *to = T::from_f32(x));
            });
        });
    }
}

impl HostKernel for CodesOfValues {
    fn run(&self, pool: &Pool) {
        let codes = (view::write::<u8>(&self.codes), self.form.bytes(CODE_BLOCK));
        let scales = (view::write::<bf16>(&self.scales), 1);
        with_float!(self.input.dtype, T => {
            let input = view::read::<T>(&self.input);
            pool.for_each_chunk_pair(codes, scales, |block, codes, scale| {
                let values = &input[block * CODE_BLOCK..][..CODE_BLOCK];
                let mut rounded = [bf16::ZERO; CODE_BLOCK];
                rounded.iter_mut().zip(values).for_each(|(to, x)| *to = bf16::from_f32(x.to_f32()));
                scale[0] = self.form.encode(&rounded, codes);
            });
        });
    }
}
