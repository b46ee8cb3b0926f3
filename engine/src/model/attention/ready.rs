//! The way from projected queries and keys to the queries and keys that attention reads: normalised and rotated, as far
//! as the model does.

use device::Tensor;
use device::ops::Rotary;
use graph_manager::Result;

use super::CausalAttention;
use super::head_norms::{self, HeadNorms};
use super::joint_norms::{self, JointNorms};
use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::gpt::{GptShape, QkNorm};
use crate::model::token_cost::TokenCost;
use crate::params::ParamSpec;
use crate::step_policy::StepContext;

/// The norms of queries and keys.
pub(super) enum QkNorms {
    None,
    EachHead(HeadNorms),
    AllHeads(JointNorms),
}

/// The parameters of the norms of a block.
pub(super) fn norm_params(shape: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec> {
    match shape.shape.qk_norm {
        None => Vec::new(),
        Some(QkNorm::EachHead) => head_norms::params(shape, block, layer),
        Some(QkNorm::AllHeads) => joint_norms::params(shape, block, layer),
    }
}

/// The cost of the norms.
pub(super) fn norm_cost(shape: &GptShape) -> TokenCost {
    match shape.qk_norm {
        None => TokenCost::default(),
        Some(QkNorm::EachHead) => head_norms::cost(shape),
        Some(QkNorm::AllHeads) => joint_norms::cost(shape),
    }
}

impl QkNorms {
    /// The norms of a block over their parameters.
    pub(super) fn build(builder: &LayerBuilder<'_>, block: usize) -> QkNorms {
        match builder.of.shape.qk_norm {
            None => QkNorms::None,
            Some(QkNorm::EachHead) => QkNorms::EachHead(HeadNorms::build(&builder.of, builder.params, block)),
            Some(QkNorm::AllHeads) => QkNorms::AllHeads(JointNorms::build(&builder.of, builder.params, block)),
        }
    }

    pub(super) fn is_none(&self) -> bool {
        matches!(self, QkNorms::None)
    }
}

/// The queries, keys and values that attention reads.
#[derive(Clone, Copy)]
pub(super) struct ReadyQkv {
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`. Without norms the projected tensor, since rotation is in place.
    pub(super) qkv: Tensor,
    /// `(tokens, 2)`, f32: of norms over all heads.
    squares: Option<Tensor>,
}

impl CausalAttention {
    /// Makes `projected` ready for attention. It is overwritten unless there are norms.
    pub(super) fn make_ready(
        &self,
        cx: &mut StepContext<'_>,
        projected: Tensor,
        angles: Option<Tensor>,
    ) -> Result<ReadyQkv> {
        match &self.norms {
            QkNorms::None => {
                self.rotate(cx, projected, angles, false)?;
                Ok(ReadyQkv { qkv: projected, squares: None })
            }
            QkNorms::EachHead(norms) => Ok(ReadyQkv { qkv: norms.forward(cx, projected, angles)?, squares: None }),
            QkNorms::AllHeads(norms) => {
                let (qkv, squares) = norms.forward(cx, projected)?;
                self.rotate(cx, qkv, angles, false)?;
                Ok(ReadyQkv { qkv, squares: Some(squares) })
            }
        }
    }

    /// Turns the gradient of `ready` queries and keys into the gradient of `projected` queries and keys, in place.
    pub(super) fn make_ready_backward(
        &self,
        cx: &mut StepContext<'_>,
        projected: Tensor,
        ready: ReadyQkv,
        grad: Tensor,
    ) -> Result<()> {
        let angles = self.angles(cx);
        match (&self.norms, ready.squares) {
            (QkNorms::EachHead(norms), _) => norms.backward(cx, projected, grad, angles),
            (QkNorms::AllHeads(norms), Some(squares)) => {
                self.rotate(cx, grad, angles, true)?;
                norms.backward(cx, projected, squares, grad)
            }
            _ => self.rotate(cx, grad, angles, true),
        }
    }

    /// Rotates queries and keys by the table's angles, in place; `inverse` rotates gradients back.
    fn rotate(&self, cx: &StepContext<'_>, qkv: Tensor, table: Option<Tensor>, inverse: bool) -> Result<()> {
        let Some(table) = table else { return Ok(()) };
        cx.run(Rotary { qkv, table, heads: self.core.heads, kv_heads: self.core.kv_heads, inverse })
    }
}
