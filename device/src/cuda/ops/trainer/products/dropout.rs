//! Dropout, also after a ReLU.

use crate::Result;
use crate::cuda::kernels::{KernelFile, args, kernel_file};
use crate::cuda::ops::shape::{LoadWidth, over_packs, over_rows};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{Dropout, ReluDropout, ReluDropoutBackward};

impl KernelOperation for Dropout {
    const FILES: &'static [KernelFile] = &[kernel_file!("products/dropout.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        launch("dropout", self, queue)
    }
}

impl KernelOperation for ReluDropout {
    const FILES: &'static [KernelFile] = &[kernel_file!("products/dropout.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        launch("relu_dropout", &self.dropout(), queue)
    }
}

fn launch(kernel: &str, op: &Dropout, queue: &Queue<'_>) -> Result<()> {
    let (rows, channels, dtype) = (op.input.shape.rows(), op.input.shape.last(), op.input.dtype);
    let site = &op.site;
    let [first_part, first_shift, second_shift] = site.part.share.shifts(op.tokens());
    let [key_low, key_high] = site.key();
    // A thread with a whole vector takes words from the beginning of a Philox block.
    let load = match site.part.first_channel.is_multiple_of(4) {
        true => LoadWidth::of(channels, [op.input, op.output]),
        false => LoadWidth::Scalar,
    };
    let grid = over_rows(rows, channels / load.values(dtype), queue);
    queue.launch(
        &load.kernel(kernel, dtype),
        grid,
        args! {
            op.input, op.output, site.record; U32: rows, site.part.first_row, site.part.first_channel, op.tokens(),
            first_part, first_shift, second_shift, channels, key_low, key_high, site.threshold(); F32: site.keep_scale()
        },
    )
}

impl KernelOperation for ReluDropoutBackward {
    const FILES: &'static [KernelFile] = &[kernel_file!("products/dropout.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (count, dtype) = (self.grad_input.elements(), self.grad_input.dtype);
        let load = LoadWidth::of(count, [self.output, self.grad_output, self.grad_input]);
        let grid = over_packs(count / load.values(dtype), queue);
        queue.launch(
            &load.kernel("relu_dropout_backward", dtype),
            grid,
            args! { self.output, self.grad_output, self.grad_input; U64: count; F32: self.scale },
        )
    }
}
