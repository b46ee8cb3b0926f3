//! RMSNorms over all queries of a token together, and over all keys of a token. Ranks share the heads: they add up sums
//! of squares.

use device::ops::{Collective, CollectiveKind, HeadSums, JointNorm, JointNormBackward, WeightedGradient};
use device::{DType, Tensor};
use graph_manager::Result;

use super::head_norms::names;
use crate::microbatch::adds_to_gradients;
use crate::model::builder::ShardedShape;
use crate::model::gpt::GptShape;
use crate::model::tensor_parallel::{Packed, TensorParallel};
use crate::model::token_cost::TokenCost;
use crate::params::{Init, Param, ParamSpec, Params};
use crate::step_policy::StepContext;

/// The weights of both norms: this rank's part of `(heads * head_dim)` and of `(kv_heads * head_dim)`.
pub(super) struct JointNorms {
    queries: Param,
    keys: Param,
    eps: f32,
    /// On this rank.
    heads: usize,
    kv_heads: usize,
    parallel: TensorParallel,
}

/// The parameters. A rank has the channels of its heads.
pub(super) fn params(shape: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec> {
    let GptShape { heads, kv_heads, .. } = *shape.shape;
    let param = |(name, heads): (String, usize)| {
        let packed = Packed::heads(heads, shape.shape.head_dim());
        let spec = ParamSpec::new(name, [packed.size()], Init::Constant(1.0), layer);
        shape.parallel.rows(spec, &[packed])
    };
    names(block).into_iter().zip([heads, kv_heads]).map(param).collect()
}

/// The cost of the norms, without the later rotation. Forward reads queries and keys, then reads and writes them with
/// the values. Backward reads both twice, and writes the gradient.
pub(super) fn cost(shape: &GptShape) -> TokenCost {
    let (queries_and_keys, values) = (shape.heads + shape.kv_heads, shape.kv_heads);
    let values = (queries_and_keys + 2 * (queries_and_keys + values) + 5 * queries_and_keys) * shape.head_dim();
    TokenCost { values, ..TokenCost::default() }
}

impl JointNorms {
    /// The norms of a block over their parameters.
    pub(super) fn build(shape: &ShardedShape<'_>, params: &Params, block: usize) -> JointNorms {
        let [queries, keys] = names(block).map(|name| params.get(&name));
        let (heads, kv_heads) = (shape.shape.heads / shape.parallel.size(), shape.own_kv_heads());
        let eps = shape.shape.norm_eps as f32;
        JointNorms { queries, keys, eps, heads, kv_heads, parallel: shape.parallel.clone() }
    }

    /// Normalises the queries and keys of `projected` `(batch, seq, (heads + 2 kv_heads) * head_dim)`. Returns a tensor
    /// of the same shape, and the sums of squares over all ranks. Backward needs them.
    pub(super) fn forward(&self, cx: &mut StepContext<'_>, projected: Tensor) -> Result<(Tensor, Tensor)> {
        let squares = self.sums(cx, "head_squares", projected, None)?;
        let output = cx.tensor("normed_qkv", projected.shape, projected.dtype)?;
        cx.run(JointNorm {
            input: projected,
            output,
            query_weight: self.queries.weight,
            key_weight: self.keys.weight,
            squares,
            heads: self.heads,
            kv_heads: self.kv_heads,
            ranks: self.parallel.size(),
            eps: self.eps,
        })?;
        Ok((output, squares))
    }

    /// Turns the gradient of the tensor that [`JointNorms::forward`] returned into that of `projected`, in place.
    pub(super) fn backward(
        &self,
        cx: &mut StepContext<'_>,
        projected: Tensor,
        squares: Tensor,
        grad: Tensor,
    ) -> Result<()> {
        let (query_weight, key_weight) = (self.queries.weight, self.keys.weight);
        let gradient = WeightedGradient { grad, query_weight, key_weight };
        let products = self.sums(cx, "head_products", projected, Some(gradient))?;
        cx.run(JointNormBackward {
            input: projected,
            grad,
            query_weight,
            key_weight,
            squares,
            products,
            grad_query_weight: self.queries.grad,
            grad_key_weight: self.keys.grad,
            heads: self.heads,
            kv_heads: self.kv_heads,
            ranks: self.parallel.size(),
            eps: self.eps,
            accumulate: adds_to_gradients(cx),
        })
    }

    /// Sums over the heads of all ranks, `(tokens, 2)`. A key head counts once for each rank that stores a copy of it.
    fn sums(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        input: Tensor,
        gradient: Option<WeightedGradient>,
    ) -> Result<Tensor> {
        let sums = cx.tensor(name, [input.shape.rows(), 2], DType::F32)?;
        cx.run(HeadSums { input, gradient, sums, heads: self.heads, kv_heads: self.kv_heads })?;
        if let Some(group) = self.parallel.group().cloned() {
            cx.run(Collective::in_place(CollectiveKind::AllReduceSum, group, sums))?;
        }
        Ok(sums)
    }
}
