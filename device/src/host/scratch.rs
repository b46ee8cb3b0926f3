//! Memory that operations allocate while they run. It is in no memory plan, so it is estimated beforehand.

use super::Pool;
use super::gemm::TILE_ROWS;
use crate::ops::{CountQuantized, Epilogue, GroupedProduct, MakeScale, Quantize};
use crate::{DType, Op, Tensor};

/// Bytes that an operation allocates while it runs, small allocations aside. Matrix products and attention compute in
/// f32: they copy factors of other types. Attention collects the results of its heads before it stores them.
pub(crate) fn scratch_bytes(op: &Op, pool: &Pool) -> usize {
    let in_f32 = |tensor: &Tensor| tensor.shape.elements() * 4;
    let accesses = op.accesses();
    let small = accesses.reads.iter().filter(|tensor| tensor.dtype == DType::Bf16 || tensor.dtype.is_fp8());
    let copies: usize = small.map(in_f32).sum();
    match op {
        Op::Gemm(op) => {
            let (m, n) = (op.out.shape.rows(), op.out.shape.last());
            let tiled = op.out.dtype != DType::F32 || matches!(op.epilogue, Epilogue::BiasGelu { .. });
            // The values of 8-bit factors are scaled in a second copy.
            let copies = if op.fp8.is_some() { 2 * copies } else { copies };
            copies + if tiled { 4 * n * m.min(pool.threads() * TILE_ROWS) } else { 0 }
        }
        // Tiles of the result are collected before they are stored.
        Op::GroupedGemm(op) if op.product != GroupedProduct::WeightGradient => copies + in_f32(&op.out),
        Op::Attention(_) | Op::AttentionBackward(_) => copies + accesses.writes.iter().map(in_f32).sum::<usize>(),
        Op::Quantize(Quantize { source, .. })
        | Op::CountQuantized(CountQuantized { source, .. })
        | Op::MakeScale(MakeScale { source, .. }) => {
            let (rows, columns) = source.dimensions();
            4 * rows * columns
        }
        Op::When(when) => when.body.iter().map(|op| scratch_bytes(op, pool)).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Gemm;
    use crate::{Device, HostOptions};

    #[test]
    fn a_product_of_halves_needs_its_factors_in_f32_and_tiles_of_its_result() {
        let device = Device::host(HostOptions { dry: true, ..HostOptions::default() }).unwrap();
        let (rows, input, output) = (1000, 32, 64);
        let needed = |dtype, threads| {
            let tensor = |name, shape| device.virtual_tensor(name, shape, dtype);
            let (x, weight) = (tensor("x", [rows, input]), tensor("weight", [output, input]));
            let op = Gemm::linear(x, weight, tensor("out", [rows, output]), Epilogue::None);
            scratch_bytes(&op.into(), &Pool::new(threads).unwrap())
        };
        assert_eq!(needed(DType::F32, 2), 0);
        let factors = 4 * (rows * input + output * input);
        assert_eq!(needed(DType::Bf16, 1), factors + 4 * TILE_ROWS * output);
        assert_eq!(needed(DType::Bf16, 2), factors + 8 * TILE_ROWS * output);
        assert_eq!(needed(DType::Bf16, 64), factors + 4 * rows * output, "there are no more rows");
    }
}
