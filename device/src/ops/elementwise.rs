//! Copies, sums and constants.

mod host;

use crate::cuda::{Arg, KernelFile, KernelOperation, LoadWidth, Queue, args, kernel_file, over_packs};
use crate::ops::{
    HasTensors, Operation, SequenceShare, ensure, ensure_apart, ensure_dtype, ensure_elements, ensure_float,
    ensure_shape, ensure_values, tensors,
};
use crate::{DType, Result, Tensor};

/// `output = a + b`, elementwise. `output` may be `a`, and must not overlap with `a` or `b` otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Add {
    /// Any shape.
    pub a: Tensor,
    /// As many elements.
    pub b: Tensor,
    /// As many elements.
    pub output: Tensor,
}

impl Operation for Add {
    const NAME: &'static str = "add";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("a", self.a), ("b", self.b), ("output", self.output)])?;
        ensure_elements(Self::NAME, "b", &self.b, self.a.elements())?;
        ensure_elements(Self::NAME, "output", &self.output, self.a.elements())?;
        let is_a = self.output.address == self.a.address && self.output.dtype == self.a.dtype;
        ensure_apart(Self::NAME, ("b", &self.b), &self.output)?;
        if is_a { Ok(()) } else { ensure_apart(Self::NAME, ("a", &self.a), &self.output) }
    }

    tensors! { read a, b; write output }
}

/// `output = factor * input`, elementwise, with a factor in device memory, such as a temperature or a loss scale. Graphs
/// read it anew at each replay: the host writes it in between ([`Stream::write`](crate::Stream::write)), or an operation
/// does. `output` may be `input`, and must not overlap with it otherwise. The gradient of the input is the same operation on
/// the output's.
#[derive(Clone, Debug, PartialEq)]
pub struct Multiply {
    /// Any shape.
    pub input: Tensor,
    /// `(1)`, f32.
    pub factor: Tensor,
    /// As many elements.
    pub output: Tensor,
}

impl Operation for Multiply {
    const NAME: &'static str = "multiply";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("input", self.input), ("output", self.output)])?;
        ensure_values(Self::NAME, "factor", &self.factor, DType::F32, 1)?;
        ensure_elements(Self::NAME, "output", &self.output, self.input.elements())?;
        ensure_apart(Self::NAME, ("factor", &self.factor), &self.output)?;
        let in_place = self.output.address == self.input.address;
        if in_place { Ok(()) } else { ensure_apart(Self::NAME, ("input", &self.input), &self.output) }
    }

    tensors! { read input, factor; write output }
}

/// `output = input`, converted if the floating types differ (round to nearest even). They must not overlap.
#[derive(Clone, Debug, PartialEq)]
pub struct Copy {
    /// Any shape and type.
    pub input: Tensor,
    /// As many elements.
    pub output: Tensor,
}

impl Operation for Copy {
    const NAME: &'static str = "copy";

    fn check(&self) -> Result<()> {
        let float = |dtype| matches!(dtype, DType::F32 | DType::Bf16);
        ensure(
            Self::NAME,
            self.input.dtype == self.output.dtype || (float(self.input.dtype) && float(self.output.dtype)),
            || format!("cannot convert {} to {}", self.input.dtype, self.output.dtype),
        )?;
        ensure_elements(Self::NAME, "output", &self.output, self.input.elements())?;
        ensure_apart(Self::NAME, ("input", &self.input), &self.output)
    }

    tensors! { read input; write output }
}

/// `output = input`, byte for byte. It is the only operation that may name memory of the [host](crate::Home::Host): others
/// compute in the device's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// Any shape and type.
    pub input: Tensor,
    /// The same shape and type.
    pub output: Tensor,
}

impl Operation for Move {
    const NAME: &'static str = "move";

    fn check(&self) -> Result<()> {
        ensure_dtype(Self::NAME, "output", &self.output, self.input.dtype)?;
        ensure_shape(Self::NAME, "output", &self.output, self.input.shape.sizes())?;
        ensure_apart(Self::NAME, ("input", &self.input), &self.output)
    }

    tensors! { read input; write output }
}

/// Copies ranges of columns, one or two: `output[row, c] = input[row, first + c]`, or of each range a share. Ranges may
/// overlap. For bf16 outputs f32 is converted (round to nearest even).
#[derive(Clone, Debug, PartialEq)]
pub struct CopyColumns {
    /// `(rows, width)`, i32 or f32.
    pub input: Tensor,
    /// The ranges, each with its output. All outputs are of one type.
    pub parts: [Option<ColumnRange>; 2],
}

/// Columns of a [`CopyColumns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnRange {
    /// First column in the input.
    pub first: usize,
    /// The columns of the range that are copied, if a range is a sequence.
    pub share: SequenceShare,
    /// `(rows, columns)`.
    pub output: Tensor,
}

impl HasTensors for ColumnRange {
    tensors! { output }
}

impl CopyColumns {
    /// Type of the outputs; the input's without any.
    pub(crate) fn output_dtype(&self) -> DType {
        self.parts.iter().flatten().next().map_or(self.input.dtype, |part| part.output.dtype)
    }
}

impl Operation for CopyColumns {
    const NAME: &'static str = "copy_columns";

    fn check(&self) -> Result<()> {
        let (rows, width) = (self.input.shape.rows(), self.input.shape.last());
        let (from, to) = (self.input.dtype, self.output_dtype());
        let known = matches!((from, to), (DType::I32, DType::I32) | (DType::F32, DType::F32 | DType::Bf16));
        ensure(Self::NAME, known, || format!("copies i32, f32, and f32 to bf16, not {from} to {to}"))?;
        for ColumnRange { first, share, output } in self.parts.iter().flatten() {
            ensure_dtype(Self::NAME, "output", output, to)?;
            let columns = share.ranks * output.shape.last();
            ensure(Self::NAME, output.shape.rows() == rows && first + columns <= width, || {
                let range = format!("columns {first} to {}", first + columns);
                format!("`output` is {:?}, {range} of an `input` of {:?}", output.shape, self.input.shape)
            })?;
        }
        Ok(())
    }

    tensors! { read input; write parts }
}

/// `output = value` everywhere; f32 or bf16.
#[derive(Clone, Debug)]
pub struct Fill {
    /// Any shape.
    pub output: Tensor,
    /// The constant; it is part of the graph, so it never changes between steps.
    pub value: f32,
}

/// The value is compared by its bits: NaN is itself, and 0 is not -0.
impl PartialEq for Fill {
    fn eq(&self, other: &Fill) -> bool {
        self.output == other.output && self.value.to_bits() == other.value.to_bits()
    }
}

impl Operation for Fill {
    const NAME: &'static str = "fill";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("output", self.output)])
    }

    tensors! { write output }
}

/// Every byte of `output` becomes 0xFF: NaN in any floating type, an impossible token as i32.
/// Marks memory of dead values, so that a stray read shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Poison {
    /// Any shape and type.
    pub output: Tensor,
}

impl Operation for Poison {
    const NAME: &'static str = "poison";

    fn check(&self) -> Result<()> {
        Ok(())
    }

    tensors! { write output }
}

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
    queue.set_bytes(output.address, value, output.bytes())
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
            return queue.copy(to.address, from.address, from.bytes());
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
            bytes => queue.copy(self.output.address, self.input.address, bytes),
        }
    }
}

impl KernelOperation for CopyColumns {
    const FILES: &'static [KernelFile] = &[kernel_file!("elementwise.cu")];

    /// A single kernel for both ranges of columns. An absent range has no columns.
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
        let arguments = args! {
            self.input, output(a), a_first, a_second, a_part, a_columns, output(b), b_first, b_second, b_part,
            b_columns; U64: count; U32: self.input.shape.last()
        };
        queue.launch(name, over_packs(count, queue), arguments)
    }
}
