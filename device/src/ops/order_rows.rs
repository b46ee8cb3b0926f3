//! Rows of sequences that ranks divide, in the order of ranks or of positions.

mod host;

use crate::cuda::{Arg, KernelFile, KernelOperation, LoadWidth, Queue, kernel_file, over_packs};
use crate::ops::{Accesses, Operation, SequenceShare, ensure, ensure_dtype, ensure_shape, tensors};
use crate::{DType, Result, Tensor};

/// Copies the rows of sequences from one order to another.
#[derive(Clone, Debug, PartialEq)]
pub struct OrderRows {
    /// `(ranks, batch, tokens, width)`, f32, bf16 or i32: of each rank the tokens of its [`SequenceShare`](super::SequenceShare).
    pub by_rank: Tensor,
    /// `(batch, ranks * tokens, width)`, of the same type: the sequences.
    pub by_position: Tensor,
    /// The order that is written. The other is read.
    pub to: RowOrder,
}

/// An order of the rows of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowOrder {
    /// The rows of one rank after those of another, as ranks gather them.
    ByRank,
    /// The rows by their positions.
    ByPosition,
}

impl OrderRows {
    /// The tensor that is read, and the one that is written.
    pub(crate) fn source_and_target(&self) -> [Tensor; 2] {
        match self.to {
            RowOrder::ByPosition => [self.by_rank, self.by_position],
            RowOrder::ByRank => [self.by_position, self.by_rank],
        }
    }
}

impl Operation for OrderRows {
    const NAME: &'static str = "order_rows";

    fn check(&self) -> Result<()> {
        let sizes = self.by_rank.shape.sizes();
        let is_even = |tokens: usize| sizes[0] == 1 || tokens.is_multiple_of(2);
        ensure(Self::NAME, sizes.len() == 4 && is_even(sizes[2]), || {
            format!("`by_rank` is {:?}, needs (ranks, batch, tokens, width) with an even number of tokens", sizes)
        })?;
        let known = matches!(self.by_rank.dtype, DType::F32 | DType::Bf16 | DType::I32);
        ensure(Self::NAME, known, || format!("`by_rank` is {}, needs f32, bf16 or i32", self.by_rank.dtype))?;
        ensure_dtype(Self::NAME, "by_position", &self.by_position, self.by_rank.dtype)?;
        let whole = [sizes[1], sizes[0] * sizes[2], sizes[3]];
        ensure_shape(Self::NAME, "by_position", &self.by_position, &whole)
    }

    fn accesses(&self) -> Accesses {
        let [from, to] = self.source_and_target();
        Accesses::new([from], [to])
    }

    tensors! { by_rank, by_position }
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
