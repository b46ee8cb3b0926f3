//! Matrix products of each expert's rows.

use super::at_most;
use super::grouped_hopper;
use crate::cuda::kernels::{Grid, KernelFile, kernel_file, kernel_struct};
use crate::cuda::ops::capability::accept_on_hopper;
use crate::cuda::ops::shape::LoadWidth;
use crate::cuda::{KernelOperation, Queue};
use crate::gpu::GpuProperties;
use crate::ops::{GroupedGemm, GroupedProduct};
use crate::{DType, Operation, Result, Tensor};

kernel_struct! {
    /// `GroupedGemm` of `kernels/grouped_gemm.cu`.
    GroupedGemmArgs {
        u64: offsets, a, b, out;
        u32: rows, experts, n, k, a_stride, b_stride, out_stride;
        f32: alpha;
        u32: accumulate, reserved;
    }
}

/// Rows and columns of a tile; `TILE` in `kernels/grouped_gemm.cu`.
const TILE: usize = 128;

/// Bytes of shared memory for bf16: three stages of two parts, each at most 128 rows of 32 values and padding of 8.
const SHARED: u32 = 3 * 2 * 128 * (32 + 8) * 2;

/// Blocks that a multiprocessor runs at a time.
const BLOCKS: usize = 2;

impl KernelOperation for GroupedGemm {
    const FILES: &'static [KernelFile] =
        &[kernel_file!(Experts, "grouped_gemm.cu"), kernel_file!(ExpertsOnHopper, "grouped_hopper.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        if grouped_hopper::is_for(self, queue.gpu()) { grouped_hopper::launch(self, queue) } else { plain(self, queue) }
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
    let kernel = match dtype {
        DType::Bf16 if vector => format!("{name}_bf16"),
        DType::Bf16 => format!("{name}_bf16_scalar"),
        _ => format!("{name}_f32"),
    };
    let [n_tiles, k_tiles] = [n, k].map(|size| size.div_ceil(TILE));
    // At most as many tiles of rows, whatever the numbers of rows of experts are.
    let row_tiles = rows / TILE + op.experts().min(rows);
    let at_once = queue.multiprocessors() * BLOCKS;
    let blocks = match op.product {
        GroupedProduct::Forward => (row_tiles * n_tiles).min(at_once),
        GroupedProduct::InputGradient => (row_tiles * k_tiles).min(at_once),
        // Tiles take different times: the GPU gives them to multiprocessors as these become free.
        GroupedProduct::WeightGradient => op.experts() * n_tiles * k_tiles,
    };
    let block = GroupedGemmArgs {
        offsets: op.offsets.address,
        a,
        b,
        out,
        rows: rows as u32,
        experts: op.experts() as u32,
        n: n as u32,
        k: k as u32,
        a_stride: first.stride as u32,
        b_stride: b_stride as u32,
        out_stride: out_stride as u32,
        alpha: op.alpha,
        accumulate: op.accumulate.into(),
        reserved: 0,
    };
    let shared = if dtype == DType::Bf16 { SHARED } else { 0 };
    queue.launch_block(&kernel, Grid { shared, ..Grid::line(blocks, 256) }, &block)
}
