//! The first layer: tokens to hidden states.

use device::ops::{Dropout, DropoutSite, Embedding, EmbeddingBackward};
use device::{DType, Tensor};
use graph_manager::Result;

use super::tensor_parallel::Share;
use super::{Dropouts, Hidden, Layer};
use crate::params::Param;
use crate::step_policy::StepContext;

pub(crate) struct EmbeddingLayer {
    /// `(padded vocab, hidden)`, or this rank's rows of it.
    pub(crate) table: Param,
    pub(crate) first_token: usize,
    /// `(seq, hidden)`, learned; absent where blocks see positions by themselves.
    pub(crate) positions: Option<Param>,
    pub(crate) dropout: Dropouts,
    pub(crate) dtype: DType,
    pub(crate) share: Share,
}

#[derive(Clone)]
struct Saved {
    tokens: Tensor,
    dropout: Option<DropoutSite>,
}

impl Layer for EmbeddingLayer {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let all = self.share.tensor(cx, "embedded", self.table.weight.shape.last(), self.dtype)?;
        let dropout = self.dropout.site(cx, input.record);
        cx.run(Embedding {
            tokens: input.x,
            table: self.table.weight,
            first_token: self.first_token,
            positions: self.share.parallel.once(self.positions.map(|positions| positions.weight)),
            output: all,
        })?;
        // A token is in one rank's table, so the sum is exact.
        let x = self.share.parallel.sum(cx, "embedded_here", all)?;
        if let Some(site) = dropout {
            cx.run(Dropout { input: x, output: x, site })?;
        }
        cx.save_for_backward(Saved { tokens: input.x, dropout })?;
        Ok(Hidden { x, delta: None, ..input })
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor) -> Result<Tensor> {
        let saved: Saved = cx.saved()?;
        let mut grad_output = grad;
        if let Some(site) = saved.dropout {
            grad_output = cx.tensor("grad_embedded", grad.shape, grad.dtype)?;
            cx.run(Dropout { input: grad, output: grad_output, site })?;
        }
        let grad_output = self.share.all_rows(cx, "all_grad_embedded", grad_output)?;
        cx.run(EmbeddingBackward {
            tokens: saved.tokens,
            grad_output,
            grad_table: self.table.grad,
            first_token: self.first_token,
            grad_positions: self.positions.map(|positions| positions.grad),
        })?;
        Ok(grad)
    }
}
