//! The load of experts: how many pairs each has.

mod host;

use super::kernels::{PlacesArgs, at_most};
use super::route::{SampleTokens, check_documents};
use crate::cuda::{GpuProperties, Grid, KernelFile, KernelOperation, Queue, fill, kernel_file, kernel_struct};
use crate::ops::{Operation, ensure, ensure_dtype, ensure_shape, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// `load[group, e] (+)= pairs of the group's tokens with expert e`. The groups are of equal size, one after the other, or
/// documents. With one column more than there are experts, the last counts dropped pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct CountLoad {
    /// `(tokens, k)`, i32: the expert of each pair.
    pub chosen: Tensor,
    /// The tokens.
    pub tokens: SampleTokens,
    /// `(samples)`, i32: the tokens that each whole sample begins with and that count. `None` if all do.
    pub real: Option<Tensor>,
    /// `(tokens)`, i32: the position of each token in its document, if groups are documents. `load` then has a row for
    /// each token. That of a document's first token is the document's, the others are 0.
    pub position_ids: Option<Tensor>,
    /// `(groups, experts)`, f32: whole numbers.
    pub load: Tensor,
    /// Adds to `load` instead of overwriting it.
    pub accumulate: bool,
}

impl Operation for CountLoad {
    const NAME: &'static str = "count_load";

    fn check(&self) -> Result<()> {
        ensure_dtype(Self::NAME, "chosen", &self.chosen, DType::I32)?;
        ensure_dtype(Self::NAME, "load", &self.load, DType::F32)?;
        let (tokens, groups) = (self.chosen.shape.rows(), self.load.shape.rows());
        self.tokens.check(Self::NAME, tokens, self.real.as_ref())?;
        ensure_shape(Self::NAME, "load", &self.load, &[groups, self.load.shape.last()])?;
        ensure(Self::NAME, groups > 0 && tokens.is_multiple_of(groups), || {
            format!("{tokens} tokens cannot be in {groups} groups of equal size")
        })?;
        check_documents(Self::NAME, self.position_ids.as_ref(), tokens, groups)?;
        ensure(Self::NAME, self.position_ids.is_none() || !self.accumulate, || {
            "loads of documents are not added to others".into()
        })
    }

    tensors! { read chosen, real, position_ids; add[accumulate] load }
}

/// Moves the selection bias of experts towards an equal load (Wang et al., 2024):
/// `bias[i] += rate * sign(mean of load over the layer's experts - load[i])`. An expert with the mean load keeps its bias.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateSelectionBias {
    /// `(layers, experts)`, f32: the load of a whole step.
    pub load: Tensor,
    /// The step of each update.
    pub rate: f32,
    /// `(layers, experts)`, f32, updated.
    pub bias: Tensor,
    /// u8, a [`Status`](crate::ops::Status): nothing is written if the step does not update weights.
    pub status: Tensor,
}

impl Operation for UpdateSelectionBias {
    const NAME: &'static str = "update_selection_bias";

    fn check(&self) -> Result<()> {
        ensure_dtype(Self::NAME, "load", &self.load, DType::F32)?;
        ensure_dtype(Self::NAME, "bias", &self.bias, DType::F32)?;
        ensure_shape(Self::NAME, "bias", &self.bias, self.load.shape.sizes())?;
        ensure_values(Self::NAME, "status", &self.status, DType::U8, size_of::<crate::ops::Status>())
    }

    tensors! { read load; update bias; read status }

    fn follows_status(&self) -> Option<Tensor> {
        Some(self.status)
    }
}

/// Pairs that a block counts; `PART` in `kernels/experts/expert_load.cu`.
const PART: usize = 4096;

const THREADS: usize = 256;

kernel_struct! {
    /// `CountLoad` of `kernels/experts/expert_load.cu`.
    CountLoadArgs {
        u64: chosen, load, counts, real, position_ids;
        u32: pairs, experts, parts, accumulate, k;
        PlacesArgs: places;
    }
}

/// Pairs of a group, and their parts.
fn sizes(op: &CountLoad) -> (usize, usize) {
    let pairs = op.chosen.elements() / op.load.shape.rows();
    (pairs, pairs.div_ceil(PART).max(1))
}

impl KernelOperation for CountLoad {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_load.cu")];

    /// Whole numbers are counted, so no order matters.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (groups, experts) = (self.load.shape.rows(), self.load.shape.last());
        let (pairs, parts) = sizes(self);
        let block = fill! {
            CountLoadArgs: self.{chosen, load, real, position_ids, accumulate}; counts: queue.scratch, pairs, experts,
            parts, k: self.chosen.shape.last(), places: PlacesArgs::new(self.tokens, self.chosen.shape.rows())
        };
        if self.position_ids.is_some() {
            return queue.launch_block("count_load_of_documents", Grid::line(groups, THREADS), &block);
        }
        let grid = Grid::plane(groups, parts, THREADS);
        queue.launch_block("count_load", grid, &block)?;
        if parts == 1 { Ok(()) } else { queue.launch_block("add_loads", Grid::line(groups, THREADS), &block) }
    }

    /// The counts of each part, if there are several.
    fn scratch_bytes(&self, _gpu: &GpuProperties) -> usize {
        let (_, parts) = sizes(self);
        if parts > 1 { self.load.elements() * parts * DType::I32.size() } else { 0 }
    }

    fn fits(&self, _gpu: &GpuProperties) -> Result<()> {
        // A column may be for dropped pairs.
        at_most(Self::NAME, self.load.shape.last().saturating_sub(1), 1)
    }
}

kernel_struct! {
    /// `UpdateSelectionBias` of `kernels/experts/expert_load.cu`.
    UpdateSelectionBiasArgs {
        u64: load, bias, status;
        u32: experts;
        f32: rate;
    }
}

impl KernelOperation for UpdateSelectionBias {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_load.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let block = fill! { UpdateSelectionBiasArgs: self.{load, bias, status, rate}; experts: self.load.shape.last() };
        queue.launch_block("update_selection_bias", Grid::line(self.load.shape.rows(), THREADS), &block)
    }
}
