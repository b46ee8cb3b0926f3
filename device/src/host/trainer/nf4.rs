//! Weights in 4 bits.

use crate::host::elementwise::with_float;
use crate::host::{HostKernel, Pool, view};
use crate::ops::{NF4_BLOCK, NF4_VALUES, Nf4Values};
use crate::{Float, bf16};

impl HostKernel for Nf4Values {
    fn run(&self, pool: &Pool) {
        let (codes, scales) = (view::read::<u8>(&self.codes), view::read::<bf16>(&self.scales));
        with_float!(self.output.dtype, T => {
            pool.for_each_chunk(view::write::<T>(&self.output), NF4_BLOCK, |block, values| {
                let scale = scales[block].to_f32();
                for (at, value) in values.iter_mut().enumerate() {
                    let byte = codes[(block * NF4_BLOCK + at) / 2];
                    let code = if at % 2 == 0 { byte >> 4 } else { byte & 15 };
                    *value = T::from_f32(NF4_VALUES[usize::from(code)] * scale);
                }
            });
        });
    }
}
