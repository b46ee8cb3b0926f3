//! RMSNorms of queries and keys, head by head.

use device::Tensor;
use device::ops::{HeadNorm, HeadNormBackward};
use graph_manager::Result;

use crate::microbatch::adds_to_gradients;
use crate::model::builder::ShardedShape;
use crate::model::gpt::GptShape;
use crate::model::token_cost::TokenCost;
use crate::params::{Init, Param, ParamSpec, Params};
use crate::step_policy::StepContext;

/// The weights of both norms, `(head_dim)` each: all query heads share one, all key heads the other.
#[derive(Clone, Copy)]
pub(super) struct HeadNorms {
    queries: Param,
    keys: Param,
    /// Added to the weights.
    weight_offset: f32,
    eps: f32,
    /// On this rank.
    heads: usize,
    kv_heads: usize,
}

/// The names of the weights of queries and of keys in a block.
pub(super) fn names(block: usize) -> [String; 2] {
    ["q_norm", "k_norm"].map(|norm| format!("h.{block}.attn.{norm}.weight"))
}

/// The parameters. Every rank has them whole, and computes the gradients from its own heads.
pub(super) fn params(shape: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec> {
    let param = |name| {
        let spec = ParamSpec::new(
            name,
            [shape.shape.head_dim()],
            Init::Constant(1.0 - shape.shape.norm.weight_offset()),
            layer,
        );
        shape.parallel.partial(spec)
    };
    names(block).map(param).into()
}

/// The cost of the norms and of the later rotation. Forward reads and writes queries, keys and values. Backward reads
/// two tensors of queries and keys, and writes one.
pub(super) fn cost(shape: &GptShape) -> TokenCost {
    let (queries_and_keys, values) = (shape.heads + shape.kv_heads, shape.kv_heads);
    let values = (2 * (queries_and_keys + values) + 3 * queries_and_keys) * shape.head_dim();
    TokenCost { values, ..TokenCost::default() }
}

impl HeadNorms {
    /// The norms of a block over their parameters.
    pub(super) fn build(shape: &ShardedShape<'_>, params: &Params, block: usize) -> HeadNorms {
        let [queries, keys] = names(block).map(|name| params.get(&name));
        let (heads, kv_heads) = (shape.shape.heads / shape.parallel.size(), shape.own_kv_heads());
        let (weight_offset, eps) = (shape.shape.norm.weight_offset(), shape.shape.norm_eps as f32);
        HeadNorms { queries, keys, weight_offset, eps, heads, kv_heads }
    }

    /// Normalises the queries and keys of `projected` `(batch, seq, (heads + 2 kv_heads) * head_dim)`, then rotates
    /// both by the table's angles, if there is a table. Returns a tensor of the same shape.
    pub(super) fn forward(&self, cx: &mut StepContext<'_>, projected: Tensor, table: Option<Tensor>) -> Result<Tensor> {
        let HeadNorms { heads, kv_heads, weight_offset, eps, .. } = *self;
        let qkv = cx.tensor("normed_qkv", projected.shape, projected.dtype)?;
        let (query_weight, key_weight) = (self.queries.weight, self.keys.weight);
        cx.run(HeadNorm {
            input: projected,
            output: qkv,
            query_weight,
            key_weight,
            weight_offset,
            table,
            heads,
            kv_heads,
            eps,
        })?;
        Ok(qkv)
    }

    /// Turns the gradient of [`HeadNorms::forward`]'s result into that of `projected`, in place.
    pub(super) fn backward(
        &self,
        cx: &StepContext<'_>,
        projected: Tensor,
        grad: Tensor,
        table: Option<Tensor>,
    ) -> Result<()> {
        cx.run(HeadNormBackward {
            input: projected,
            grad,
            query_weight: self.queries.weight,
            key_weight: self.keys.weight,
            weight_offset: self.weight_offset,
            table,
            grad_query_weight: self.queries.grad,
            grad_key_weight: self.keys.grad,
            heads: self.heads,
            kv_heads: self.kv_heads,
            eps: self.eps,
            accumulate: adds_to_gradients(cx),
        })
    }
}
