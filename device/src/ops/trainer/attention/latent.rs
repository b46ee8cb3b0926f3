//! Latent attention (DeepSeek-V2, 2024): queries, keys and values of heads, from the products that they come from, and back.

pub(super) mod host;

use crate::cuda::{KernelFile, KernelOperation, Queue, args, fill, kernel_file, kernel_struct, over_packs, over_rows};
use crate::ops::{Accesses, HasTensors, Operation, ensure, ensure_elements, ensure_float, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// The channels of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentHead {
    /// Channels of queries and keys that are not rotated.
    pub plain: usize,
    /// Channels of queries and keys that are rotated; an even number. All heads have the same ones of keys.
    pub rotated: usize,
    /// Channels of a value.
    pub value: usize,
}

impl LatentHead {
    /// Channels of a query.
    pub fn query(self) -> usize {
        self.plain + self.rotated
    }

    /// Channels of a key and of a value in packed rows: those of a query, or of a value if these are more.
    pub fn packed(self) -> usize {
        self.query().max(self.value)
    }
}

/// The tensors of both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentTensors {
    /// `(batch, seq, heads * query or more)`: rows that begin with the queries of heads.
    pub queries: Tensor,
    /// `(batch, seq, heads * (plain + value))`: the keys' plain channels of a head, then its values.
    pub keys_values: Tensor,
    /// `(batch, seq, rotated or more)`: rows that end with the keys' rotated channels. It may be `queries`.
    pub rotated: Tensor,
    /// `(batch, seq, 3 * heads * packed)`: query heads, key heads, value heads, with zeros behind the channels of each.
    pub packed: Tensor,
}

impl HasTensors for LatentTensors {
    tensors! { queries, keys_values, rotated, packed }
}

/// Packs queries, keys and values of heads as [`Attention`](crate::ops::Attention) reads them. Rotated channels are turned
/// in pairs of neighbours.
#[derive(Clone, Debug, PartialEq)]
pub struct PackLatent {
    /// The sizes of a head.
    pub head: LatentHead,
    /// `packed` is written.
    pub tensors: LatentTensors,
    /// `(seq, rotated / 2, 2)`, f32: cosines and sines.
    pub table: Tensor,
}

/// Gradient of [`PackLatent`]: reads the gradient of `packed`. All of `queries` and `rotated` is written: their channels that
/// were not packed have zeros.
#[derive(Clone, Debug, PartialEq)]
pub struct PackLatentBackward {
    /// The sizes of a head.
    pub head: LatentHead,
    /// The gradients of the forward's tensors.
    pub tensors: LatentTensors,
    /// The forward's table of cosines and sines.
    pub table: Tensor,
}

/// The sizes of a row.
#[derive(Clone, Copy)]
pub(crate) struct LatentSizes {
    pub(crate) rows: usize,
    pub(crate) seq: usize,
    pub(crate) heads: usize,
}

impl LatentSizes {
    /// The sizes of checked tensors.
    pub(crate) fn of(head: LatentHead, tensors: &LatentTensors) -> LatentSizes {
        let (rows, seq) = (tensors.packed.shape.rows(), tensors.packed.shape.sizes()[1]);
        LatentSizes { rows, seq, heads: tensors.packed.shape.last() / (3 * head.packed()) }
    }
}

fn check(op: &'static str, head: LatentHead, tensors: &LatentTensors, table: &Tensor) -> Result<()> {
    let LatentTensors { queries, keys_values, rotated, packed } = tensors;
    let all = [("queries", *queries), ("keys_values", *keys_values), ("rotated", *rotated), ("packed", *packed)];
    ensure_float(op, &all)?;
    ensure(op, head.rotated.is_multiple_of(2) && head.packed() > 0, || format!("{head:?}: an even number rotates"))?;
    let sizes = packed.shape.sizes();
    ensure(op, sizes.len() == 3 && sizes[2].is_multiple_of(3 * head.packed()), || {
        format!("`packed` is {:?}, needs (batch, seq, 3 * heads * {})", packed.shape, head.packed())
    })?;
    let LatentSizes { rows, seq, heads } = LatentSizes::of(head, tensors);
    ensure_elements(op, "keys_values", keys_values, rows * heads * (head.plain + head.value))?;
    let fits = |tensor: &Tensor, least: usize| tensor.shape.rows() == rows && tensor.shape.last() >= least;
    ensure(op, fits(queries, heads * head.query()) && fits(rotated, head.rotated), || {
        format!("`queries` is {:?} and `rotated` {:?}, of {heads} heads with {head:?}", queries.shape, rotated.shape)
    })?;
    ensure_values(op, "table", table, DType::F32, seq * head.rotated)
}

impl Operation for PackLatent {
    const NAME: &'static str = "pack_latent";

    fn check(&self) -> Result<()> {
        check(Self::NAME, self.head, &self.tensors, &self.table)
    }

    fn accesses(&self) -> Accesses {
        let LatentTensors { queries, keys_values, rotated, packed } = self.tensors;
        let other = (rotated != queries).then_some(rotated);
        Accesses::new([queries, keys_values, self.table], [packed]).reads(other)
    }

    tensors! { tensors, table }
}

impl Operation for PackLatentBackward {
    const NAME: &'static str = "pack_latent_backward";

    fn check(&self) -> Result<()> {
        check(Self::NAME, self.head, &self.tensors, &self.table)
    }

    fn accesses(&self) -> Accesses {
        let LatentTensors { queries, keys_values, rotated, packed } = self.tensors;
        let other = (rotated != queries).then_some(rotated);
        Accesses::new([packed, self.table], [queries, keys_values]).writes(other)
    }

    tensors! { tensors, table }
}

/// The first channels of each head, as many as both tensors have; channels that the output has beyond them are 0.
#[derive(Clone, Debug, PartialEq)]
pub struct ResizeHeads {
    /// `(rows, heads * width)`.
    pub input: Tensor,
    /// `(rows, heads * other width)`, of the type of `input`.
    pub output: Tensor,
    /// Heads of a row.
    pub heads: usize,
}

impl Operation for ResizeHeads {
    const NAME: &'static str = "resize_heads";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("input", self.input), ("output", self.output)])?;
        let [input, output] = [self.input.shape, self.output.shape];
        let whole = |width: usize| self.heads > 0 && width.is_multiple_of(self.heads);
        ensure(Self::NAME, input.rows() == output.rows() && whole(input.last()) && whole(output.last()), || {
            format!("`input` is {input:?} and `output` {output:?}, of {} heads", self.heads)
        })
    }

    tensors! { read input; write output }
}

const FILES: &[KernelFile] = &[kernel_file!("attention/latent.cu")];

kernel_struct! {
    /// `Latent` of `kernels/attention/latent.cu`.
    LatentArgs {
        u64: queries, keys_values, rotated, packed, table;
        u32: rows, seq, heads, plain, turned, value, width, query_columns, rotated_columns, reserved;
    }
}

impl LatentArgs {
    fn new(head: LatentHead, tensors: &LatentTensors, table: Tensor) -> LatentArgs {
        let LatentSizes { rows, seq, heads } = LatentSizes::of(head, tensors);
        fill! {
            LatentArgs: tensors.{queries, keys_values, rotated, packed}, head.{plain, value}; table, rows, seq, heads,
            turned: head.rotated, width: head.packed(), query_columns: tensors.queries.shape.last(),
            rotated_columns: tensors.rotated.shape.last(), reserved: 0u32
        }
    }
}

impl KernelOperation for PackLatent {
    const FILES: &'static [KernelFile] = FILES;

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let packed = self.tensors.packed;
        let grid = over_rows(packed.shape.rows(), packed.shape.last(), queue);
        let block = LatentArgs::new(self.head, &self.tensors, self.table);
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
        let block = LatentArgs::new(self.head, &self.tensors, self.table);
        queue.launch_block(&format!("pack_latent_backward_{}", packed.dtype), grid, &block)
    }
}

impl KernelOperation for ResizeHeads {
    const FILES: &'static [KernelFile] = FILES;

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let [from, to] = [self.input, self.output].map(|tensor| tensor.shape.last() / self.heads);
        let heads = self.output.shape.rows() * self.heads;
        let arguments = args! { self.input, self.output; U64: heads; U32: from, to };
        queue.launch(&format!("resize_heads_{}", self.output.dtype), over_packs(heads * to, queue), arguments)
    }
}
