//! Matrix products of each expert's rows.

mod hopper;

use super::super::kernels::at_most;
use crate::cuda::{
    GpuProperties, Grid, KernelFile, KernelOperation, LoadWidth, Queue, accept_on_hopper, fill, kernel_file,
    kernel_struct,
};
use crate::ops::{GroupedGemm, GroupedProduct};
use crate::{DType, Operation, Result, Tensor};

kernel_struct! {
    /// `GroupedGemm` of `kernels/experts/grouped_gemm.cu`.
    GroupedGemmArgs {
        u64: offsets, a, b, out;
        u32: rows, experts, n, k, a_stride, b_stride, out_stride;
        f32: alpha;
        u32: accumulate, reserved;
    }
}

/// Rows and columns of a tile; `TILE` in `kernels/experts/grouped_gemm.cu`.
const TILE: usize = 128;

/// The most rows or columns of a thin matrix, and of its tile; `THIN` in `kernels/experts/grouped_gemm.cu`.
const THIN: usize = 32;

/// The tiles of a product.
#[derive(Clone, Copy, PartialEq)]
enum Tiles {
    Wide,
    /// The result has few columns.
    ThinColumns,
    /// The result has few rows.
    ThinRows,
}

impl Tiles {
    /// For a product in bf16 whose rows are whole vectors.
    fn of(product: GroupedProduct, n: usize, k: usize) -> Tiles {
        match product {
            GroupedProduct::Forward if n <= THIN => Tiles::ThinColumns,
            GroupedProduct::InputGradient | GroupedProduct::WeightGradient if k <= THIN => Tiles::ThinColumns,
            GroupedProduct::WeightGradient if n <= THIN => Tiles::ThinRows,
            _ => Tiles::Wide,
        }
    }

    /// Rows and columns of a tile.
    fn sizes(self) -> [usize; 2] {
        match self {
            Tiles::Wide => [TILE, TILE],
            Tiles::ThinColumns => [TILE, THIN],
            Tiles::ThinRows => [THIN, TILE],
        }
    }

    /// Bytes of shared memory for bf16: stages of two parts with rows that are longer by 8 values. A wide tile has three, of
    /// 128 rows of 32 values; a thin one four, at most of 128 rows of 64 values and 64 of 32.
    fn shared(self) -> usize {
        match self {
            Tiles::Wide => 3 * 2 * 128 * (32 + 8) * 2,
            _ => 4 * (128 * (64 + 8) + 64 * (32 + 8)) * 2,
        }
    }
}

/// Blocks that a multiprocessor runs at a time.
const BLOCKS: usize = 2;

impl KernelOperation for GroupedGemm {
    const FILES: &'static [KernelFile] =
        &[kernel_file!(Experts, "experts/grouped_gemm.cu"), kernel_file!(ExpertsOnHopper, "experts/grouped_hopper.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        if hopper::is_for(self, queue.gpu()) { hopper::launch(self, queue) } else { plain(self, queue) }
    }

    fn fits(&self, gpu: &GpuProperties) -> Result<()> {
        if self.scales.is_some() {
            accept_on_hopper(Self::NAME, gpu, "products of experts in 8 bits", "bf16")?;
        }
        at_most(Self::NAME, self.experts(), 1)
    }
}

/// The kernel for every GPU.
fn plain(op: &GroupedGemm, queue: &Queue<'_>) -> Result<()> {
    let [rows, n, k] = op.sizes();
    let dtype = op.a.dtype;
    let name = match op.product {
        GroupedProduct::Forward => "grouped_forward",
        GroupedProduct::InputGradient => "grouped_input_gradient",
        GroupedProduct::WeightGradient => "grouped_weight_gradient",
    };
    let [first, second] = op.places();
    let (a, of_second) = (first.address(&op.a), |tensor| second.address(tensor));
    let (b, out, b_stride, out_stride) = match op.product {
        GroupedProduct::WeightGradient => (of_second(&op.b), op.out.address, second.stride, k),
        _ => (op.b.address, of_second(&op.out), k, second.stride),
    };
    let tensors = [(op.a, a), (op.b, b), (op.out, out)].map(|(tensor, address)| Tensor { address, ..tensor });
    let vector = [n, k, first.stride, second.stride]
        .into_iter()
        .all(|columns| LoadWidth::of(columns, tensors) == LoadWidth::Vector);
    let is_vector = dtype == DType::Bf16 && vector;
    let tiles = if is_vector { Tiles::of(op.product, n, k) } else { Tiles::Wide };
    let kernel = match (dtype, tiles) {
        (_, Tiles::ThinColumns) => format!("{name}_thin_columns"),
        (_, Tiles::ThinRows) => format!("{name}_thin_rows"),
        (DType::Bf16, _) if is_vector => format!("{name}_bf16"),
        (DType::Bf16, _) => format!("{name}_bf16_scalar"),
        _ => format!("{name}_f32"),
    };
    let [tile_rows, tile_columns] = tiles.sizes();
    // At most as many tiles of rows, whatever the numbers of rows of experts are.
    let row_tiles = rows / TILE + op.experts().min(rows);
    let at_once = queue.multiprocessors() * BLOCKS;
    let blocks = match op.product {
        GroupedProduct::Forward => (row_tiles * n.div_ceil(tile_columns)).min(at_once),
        GroupedProduct::InputGradient => (row_tiles * k.div_ceil(tile_columns)).min(at_once),
        // Tiles take different times: the GPU gives them to multiprocessors as these become free.
        GroupedProduct::WeightGradient => op.experts() * n.div_ceil(tile_rows) * k.div_ceil(tile_columns),
    };
    let block = fill! {
        GroupedGemmArgs: op.{offsets, alpha, accumulate}; a, b, out, rows, experts: op.experts(), n, k,
        a_stride: first.stride, b_stride, out_stride, reserved: 0u32
    };
    let shared = if dtype == DType::Bf16 { tiles.shared() } else { 0 };
    queue.launch_block(&kernel, Grid { shared, ..Grid::line(blocks, 256) }, &block)
}
