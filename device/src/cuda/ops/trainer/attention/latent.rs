//! Latent attention: packing heads, and back.

use crate::cuda::kernels::{KernelFile, args, kernel_file, kernel_struct};
use crate::cuda::ops::shape::{over_packs, over_rows};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{LatentHead, LatentSizes, LatentTensors, PackLatent, PackLatentBackward, ResizeHeads};
use crate::{Result, Tensor};

const FILES: &[KernelFile] = &[kernel_file!("attention/latent.cu")];

kernel_struct! {
    /// `Latent` of `kernels/attention/latent.cu`.
    LatentArgs {
        u64: queries, keys_values, rotated, packed, table;
        u32: rows, seq, heads, plain, turned, value, width, query_columns, rotated_columns, reserved;
    }
}

impl LatentArgs {
    fn new(head: LatentHead, tensors: &LatentTensors, table: &Tensor) -> LatentArgs {
        let LatentSizes { rows, seq, heads } = LatentSizes::of(head, tensors);
        LatentArgs {
            queries: tensors.queries.address,
            keys_values: tensors.keys_values.address,
            rotated: tensors.rotated.address,
            packed: tensors.packed.address,
            table: table.address,
            rows: rows as u32,
            seq: seq as u32,
            heads: heads as u32,
            plain: head.plain as u32,
            turned: head.rotated as u32,
            value: head.value as u32,
            width: head.packed() as u32,
            query_columns: tensors.queries.shape.last() as u32,
            rotated_columns: tensors.rotated.shape.last() as u32,
            reserved: 0,
        }
    }
}

impl KernelOperation for PackLatent {
    const FILES: &'static [KernelFile] = FILES;

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let packed = self.tensors.packed;
        let grid = over_rows(packed.shape.rows(), packed.shape.last(), queue);
        let block = LatentArgs::new(self.head, &self.tensors, &self.table);
        queue.launch_block(&format!("pack_latent_{}", packed.dtype), grid, &block)
    }
}

impl KernelOperation for PackLatentBackward {
    const FILES: &'static [KernelFile] = FILES;

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let LatentTensors { queries, keys_values, rotated, packed } = self.tensors;
        let others = if rotated == queries { 0 } else { rotated.shape.last() };
        let columns = queries.shape.last() + keys_values.shape.last() + others;
        let grid = over_rows(packed.shape.rows(), columns, queue);
        let block = LatentArgs::new(self.head, &self.tensors, &self.table);
        queue.launch_block(&format!("pack_latent_backward_{}", packed.dtype), grid, &block)
    }
}

impl KernelOperation for ResizeHeads {
    const FILES: &'static [KernelFile] = FILES;

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let [from, to] = [self.input, self.output].map(|tensor| tensor.shape.last() / self.heads);
        let heads = self.output.shape.rows() * self.heads;
        queue.launch(
            &format!("resize_heads_{}", self.output.dtype),
            over_packs(heads * to, queue),
            args! { self.input, self.output; U64: heads; U32: from, to },
        )
    }
}
