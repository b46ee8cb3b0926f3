//! Copies, sums and constants.

use super::shape::{LoadWidth, over_packs};
use crate::cuda::kernels::{Arg, KernelFile, args, kernel_file};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{
    Add, ColumnRange, Copy, CopyColumns, Fill, Move, Multiply, OrderRows, Poison, RowOrder, SequenceShare,
};
use crate::{DType, Result, Tensor};

impl KernelOperation for Fill {
    const FILES: &'static [KernelFile] = &[kernel_file!("elementwise.cu")];

    /// The driver sets zeros.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        if self.value.to_bits() == 0 {
            return set_bytes(&self.output, 0, queue);
        }
        let (count, dtype) = (self.output.elements(), self.output.dtype);
        let load = LoadWidth::of(count, [self.output]);
        let grid = over_packs(count / load.values(dtype), queue);
        queue.launch(&load.kernel("fill", dtype), grid, args! { self.output; F32: self.value; U64: count })
    }
}

impl KernelOperation for Poison {
    const FILES: &'static [KernelFile] = &[];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        set_bytes(&self.output, 0xff, queue)
    }
}

fn set_bytes(output: &Tensor, value: u8, queue: &Queue<'_>) -> Result<()> {
    if output.bytes() == 0 {
        return Ok(());
    }
    queue.stream.set_bytes(output.address, value, output.bytes())
}

impl KernelOperation for Add {
    const FILES: &'static [KernelFile] = &[kernel_file!("elementwise.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (count, dtype) = (self.output.elements(), self.output.dtype);
        let load = LoadWidth::of(count, [self.a, self.b, self.output]);
        let grid = over_packs(count / load.values(dtype), queue);
        queue.launch(&load.kernel("add", dtype), grid, args! { self.a, self.b, self.output; U64: count })
    }
}

impl KernelOperation for Multiply {
    const FILES: &'static [KernelFile] = &[kernel_file!("elementwise.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (count, dtype) = (self.output.elements(), self.output.dtype);
        let load = LoadWidth::of(count, [self.input, self.output]);
        let grid = over_packs(count / load.values(dtype), queue);
        let arguments = [self.input.into(), self.factor.into(), self.output.into(), Arg::U64(count as u64)];
        queue.launch(&load.kernel("multiply", dtype), grid, &arguments)
    }
}

impl KernelOperation for Copy {
    const FILES: &'static [KernelFile] = &[kernel_file!("elementwise.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (from, to) = (self.input, self.output);
        let count = from.elements();
        if from.dtype == to.dtype {
            if count == 0 || from.address == to.address {
                return Ok(());
            }
            return queue.stream.copy(to.address, from.address, from.bytes());
        }
        // Four values at a time: 16 bytes of f32, 8 of bf16.
        let load = LoadWidth::of(count, [from, to]);
        let packs = if load == LoadWidth::Vector { count / 4 } else { count };
        let name = if from.dtype == DType::F32 { "convert_f32" } else { "convert_bf16" };
        queue.launch(&load.kernel(name, to.dtype), over_packs(packs, queue), args! { from, to; U64: count })
    }
}

impl KernelOperation for Move {
    const FILES: &'static [KernelFile] = &[];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        match self.input.bytes() {
            0 => Ok(()),
            bytes => queue.stream.copy(self.output.address, self.input.address, bytes),
        }
    }
}

impl KernelOperation for CopyColumns {
    const FILES: &'static [KernelFile] = &[kernel_file!("elementwise.cu")];

    /// One kernel for both parts. An absent part has no columns.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let count = self.input.elements();
        let [a, b] = self.parts;
        // Where the two parts of the columns begin, and how many are in the first, and in both.
        let range = |part: Option<ColumnRange>| {
            part.map_or([0; 4], |ColumnRange { first, share, output }| {
                let columns = output.shape.last();
                let [begin, second] = share.begins(columns);
                [first + begin, first + second, share.first_part(columns), columns].map(|number| number as u32)
            })
            .map(Arg::U32)
        };
        let ([a_first, a_second, a_part, a_columns], [b_first, b_second, b_part, b_columns]) = (range(a), range(b));
        let output = |part: Option<ColumnRange>| part.map(|part| part.output);
        // Values of four bytes are copied as they are.
        let name = if self.output_dtype() == DType::Bf16 { "copy_columns_bf16" } else { "copy_columns_words" };
        queue.launch(
            name,
            over_packs(count, queue),
            args! {
                self.input, output(a), a_first, a_second, a_part, a_columns, output(b), b_first, b_second, b_part,
                b_columns; U64: count; U32: self.input.shape.last()
            },
        )
    }
}

impl KernelOperation for OrderRows {
    const FILES: &'static [KernelFile] = &[kernel_file!("elementwise.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let [from, to] = self.source_and_target();
        let &[ranks, batch, tokens, width] = self.by_rank.shape.sizes() else { return Ok(()) };
        // Whole vectors are copied as they are.
        let load = LoadWidth::of(width, [from, to]);
        let (values, suffix) = match load {
            LoadWidth::Vector => (load.values(from.dtype), "words"),
            LoadWidth::Scalar => (1, if from.dtype == DType::Bf16 { "bf16" } else { "f32" }),
        };
        let name = match self.to {
            RowOrder::ByPosition => "order_rows_by_position",
            RowOrder::ByRank => "order_rows_by_rank",
        };
        let part = SequenceShare { rank: 0, ranks }.first_part(tokens);
        let count = from.elements() / values;
        let sizes = [ranks, batch, tokens, width / values, part].map(|size| Arg::U32(size as u32));
        let arguments: Vec<Arg> = [from.into(), to.into(), Arg::U64(count as u64)].into_iter().chain(sizes).collect();
        queue.launch(&format!("{name}_{suffix}"), over_packs(count, queue), &arguments)
    }
}
