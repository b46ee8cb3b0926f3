//! A bound of the load of experts.

mod host;

use super::kernels::at_most;
use super::route::check_real;
use crate::cuda::{GpuProperties, Grid, KernelFile, KernelOperation, Queue, fill, kernel_file, kernel_struct};
use crate::ops::{Operation, ensure, ensure_dtype, ensure_shape, tensors};
use crate::{DType, Result, Tensor};

/// Leaves each expert at most `capacity` pairs, and drops the others (Lepikhin et al., 2020). Of an expert with more it keeps
/// those with the highest weights, of equal weights the first ones. A weight that is NaN counts as 0. Pairs of padding are
/// dropped too, and take no other's place.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitLoad {
    /// `(tokens, k)`, i32: the expert of each pair.
    pub chosen: Tensor,
    /// `(tokens, k)`, f32: the weight of each pair. `None`: an expert keeps its first pairs.
    pub weights: Option<Tensor>,
    /// `(sequences)`, i32: the tokens that each sequence begins with and that are no padding. `None` if there is no padding.
    pub real: Option<Tensor>,
    /// Experts.
    pub experts: usize,
    /// Pairs that an expert keeps; at least 1.
    pub capacity: usize,
    /// `(tokens, k)`, i32, written: the expert of each pair, `experts` for a dropped one.
    pub kept: Tensor,
}

impl Operation for LimitLoad {
    const NAME: &'static str = "limit_load";

    fn check(&self) -> Result<()> {
        let (tokens, k) = (self.chosen.shape.rows(), self.chosen.shape.last());
        ensure_dtype(Self::NAME, "chosen", &self.chosen, DType::I32)?;
        ensure_dtype(Self::NAME, "kept", &self.kept, DType::I32)?;
        ensure_shape(Self::NAME, "kept", &self.kept, &[tokens, k])?;
        check_real(Self::NAME, self.real.as_ref(), tokens)?;
        ensure(Self::NAME, self.experts > 0, || "there is no expert".into())?;
        ensure(Self::NAME, self.capacity > 0, || "experts keep no pair: the capacity is 0".into())?;
        let Some(weights) = &self.weights else { return Ok(()) };
        ensure_dtype(Self::NAME, "weights", weights, DType::F32)?;
        ensure_shape(Self::NAME, "weights", weights, &[tokens, k])
    }

    tensors! { read chosen, weights, real; write kept }
}

/// Threads of a block; `SCAN_THREADS` in `kernels/headers/scan.cuh`.
const THREADS: usize = 256;

kernel_struct! {
    /// `LimitLoad` of `kernels/experts/expert_limit.cu`; 0 is the null pointer.
    LimitLoadArgs {
        u64: chosen, weights, real, kept;
        u32: count, experts, capacity, length, k, reserved;
    }
}

impl KernelOperation for LimitLoad {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_limit.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let count = self.chosen.elements();
        // No expert has more pairs than there are.
        let capacity = self.capacity.min(count);
        let block = fill! {
            LimitLoadArgs: self.{chosen, weights, real, kept, experts}; count, capacity,
            length: count / self.real.map_or(1, |real| real.elements()), k: self.chosen.shape.last(), reserved: 0u32
        };
        queue.launch_block("limit_load", Grid::line(self.experts, THREADS), &block)
    }

    fn fits(&self, _gpu: &GpuProperties) -> Result<()> {
        at_most(Self::NAME, self.experts, 1)
    }
}
