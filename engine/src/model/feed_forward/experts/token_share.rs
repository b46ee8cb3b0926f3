//! The tokens of a layer that a rank brings to experts.
//!
//! If the ranks that share a layer also share each expert, each of them brings all tokens, and computes its channels of
//! each. If experts are whole, each rank brings its own part of the tokens. With sequence parallelism these are its rows of
//! the residual stream, so nothing is gathered. The choice of experts is a matter of all tokens: ranks gather the logits of
//! routers, which are few.

use device::ops::{Collective, CollectiveKind};
use device::{DType, Tensor};
use graph_manager::Result;
use parallel::{Axis, Place};

use crate::model::buffers::all_rows;
use crate::model::tensor_parallel::TensorParallel;
use crate::step_policy::StepContext;

/// The tokens of this rank, among the tokens of the ranks that share a layer.
#[derive(Clone)]
pub(super) struct TokenShare {
    parallel: TensorParallel,
    /// This rank's part of the tokens; [`Place::ALONE`] if the rank brings all tokens.
    pub(super) place: Place,
}

impl TokenShare {
    /// The tokens of a rank, with experts that are divided as the rank's mesh says.
    ///
    /// # Panics
    /// If some of the ranks that share a layer share an expert, and not all.
    pub(super) fn new(parallel: &TensorParallel) -> TokenShare {
        let [layer, expert] = [Axis::Tensor, Axis::ExpertTensor].map(|axis| parallel.ranks.axes(axis));
        assert!(expert == layer || expert.is_empty(), "an expert is whole, or all ranks that share a layer share it");
        let place = parallel.ranks.place(layer - expert);
        TokenShare { parallel: parallel.clone(), place }
    }

    /// This rank's part of a tensor of all tokens, `(.., width)`.
    pub(super) fn of_all(&self, all: Tensor) -> Tensor {
        if !self.place.has_others() {
            return all;
        }
        let (rows, width) = (all.shape.rows() / self.place.count, all.shape.last());
        let start = self.place.index * rows * width;
        match all.shape.sizes().len() {
            2 => all.view(start, [rows, width]),
            _ => all.view(start, [1, rows, width]),
        }
    }

    /// The tokens that this rank brings, from this rank's rows of the residual stream.
    pub(super) fn take(&self, cx: &mut StepContext<'_>, name: &'static str, rows: Tensor) -> Result<Tensor> {
        match self.place.has_others() {
            false => self.parallel.gather_rows(cx, name, rows),
            true if self.parallel.splits_rows() => Ok(rows),
            true => Ok(self.of_all(rows)),
        }
    }

    /// The rows of the residual stream, from results for the tokens that this rank brought.
    pub(super) fn give_back(&self, cx: &mut StepContext<'_>, name: &'static str, results: Tensor) -> Result<Tensor> {
        match self.place.has_others() {
            false => self.parallel.reduce(cx, name, results),
            true if self.parallel.splits_rows() => Ok(results),
            true => {
                let all = all_rows(cx, name, results.shape.last(), results.dtype)?;
                self.gather(cx, results, all)
            }
        }
    }

    /// `(all tokens, width)`, f32, from `(tokens, width)` of each rank.
    pub(super) fn all_of(&self, cx: &mut StepContext<'_>, name: &'static str, own: Tensor) -> Result<Tensor> {
        if !self.place.has_others() {
            return Ok(own);
        }
        let all = cx.tensor(name, [own.shape.rows() * self.place.count, own.shape.last()], DType::F32)?;
        self.gather(cx, own, all)
    }

    fn gather(&self, cx: &mut StepContext<'_>, input: Tensor, output: Tensor) -> Result<Tensor> {
        let Some(communicator) = self.parallel.group().cloned() else {
            unreachable!("ranks that bring other tokens are connected")
        };
        cx.run(Collective { kind: CollectiveKind::AllGather, communicator, input, output })?;
        Ok(output)
    }
}
