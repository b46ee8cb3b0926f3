//! Rotary position embedding.

use crate::Result;
use crate::cuda::kernels::{KernelFile, args, kernel_file};
use crate::cuda::ops::shape::{LoadWidth, over_rows};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::Rotary;

impl KernelOperation for Rotary {
    const FILES: &'static [KernelFile] = &[kernel_file!("attention/rotary.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, width, dtype) = (self.qkv.shape.rows(), self.qkv.shape.last(), self.qkv.dtype);
        let (seq, rotated) = (self.qkv.shape.sizes()[1], self.heads + self.kv_heads);
        let half = width / (self.heads + 2 * self.kv_heads) / 2;
        let load = LoadWidth::of(half, [self.qkv, self.table]);
        let grid = over_rows(rows, rotated * (half / load.values(dtype)), queue);
        queue.launch(
            &load.kernel("rotary", dtype),
            grid,
            args! {
                self.qkv, self.table; U32: rows, seq, width, rotated, half; F32: if self.inverse { -1.0 } else { 1.0 }
            },
        )
    }
}
