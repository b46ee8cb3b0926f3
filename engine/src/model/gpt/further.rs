//! Layers that predict tokens beyond the next one, in training alone (DeepSeek-V3, 2024, section 2.2). Each is one block of
//! the model's kind. It joins the stream of the layer before, normed, with the embedding of a token further on. The model's
//! table embeds, and the model's head makes logits.

use device::Tensor;
use device::ops::{Columns, Epilogue, Gemm, GemmColumns};
use graph_manager::Result;

use super::block::{Block, block_cost, block_params};
use super::embedding::EmbeddingLayer;
use super::shape::{FurtherTokens, GptShape};
use crate::microbatch::adds_to_gradients;
use crate::model::buffers::tensor_like;
use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::layer::{Layer, Saved};
use crate::model::loss_term::LossTerm;
use crate::model::norm::{NormLayer, NormSpec, NormSums, Normed, SavedNorm};
use crate::model::sequence::Hidden;
use crate::model::token_cost::TokenCost;
use crate::params::{Param, ParamSpec};
use crate::step_policy::StepContext;

/// The losses by depth, without the losses' factor.
const TERMS: [LossTerm; FurtherTokens::MOST] = [
    LossTerm::minimised("mtp_1_loss"),
    LossTerm::minimised("mtp_2_loss"),
    LossTerm::minimised("mtp_3_loss"),
    LossTerm::minimised("mtp_4_loss"),
];

/// The terms of the loss, one for each layer that predicts further tokens.
pub(crate) fn further_terms(shape: &GptShape) -> &'static [LossTerm] {
    &TERMS[..shape.further_blocks().len()]
}

/// The norms of a layer: of the embedded token, of the stream before, and of the stream after its block.
const NORMS: [&str; 3] = ["enorm", "hnorm", "norm"];

fn norm<'s>(shape: &'s GptShape, block: usize, name: &str) -> NormSpec<'s> {
    NormSpec::new(format!("h.{block}.mtp.{name}"), shape)
}

fn projection(block: usize) -> String {
    format!("h.{block}.mtp.eh_proj.weight")
}

/// The parameters that this rank has of all layers for further tokens: of each its block, its norms, and the matrix
/// `(hidden, 2 hidden)` that joins an embedded token with the stream before. Every rank has the matrix whole. `layer`
/// is the layer of the model that they belong to.
pub(crate) fn further_params(shape: &ShardedShape<'_>, layer: usize) -> Vec<ParamSpec> {
    let of_block = |block: usize| {
        let hidden = shape.shape.hidden;
        let join = ParamSpec::new(projection(block), [hidden, 2 * hidden], shape.shape.matrix_init(), layer);
        let norms =
            NORMS.into_iter().flat_map(move |name| norm(shape.shape, block, name).params(shape.parallel, layer));
        block_params(shape, block, layer).into_iter().chain([shape.parallel.partial_of_rows(join)]).chain(norms)
    };
    shape.shape.further_blocks().flat_map(of_block).collect()
}

/// The cost of a token in all layers for further tokens, without the head's product.
pub(crate) fn further_cost(shape: &GptShape, tokens_per_sample: usize) -> TokenCost {
    let hidden = shape.hidden;
    let of_block = |block| {
        let join = TokenCost { weights: 2 * hidden * hidden, values: 3 * 4 * hidden, ..TokenCost::default() };
        let norms = NORMS.iter().map(|name| norm(shape, block, name).cost()).sum::<TokenCost>();
        block_cost(shape, block, tokens_per_sample) + join + norms
    };
    shape.further_blocks().map(of_block).sum()
}

/// A layer for further tokens, over the layer's parameters.
pub(crate) struct FurtherLayer {
    embedding: EmbeddingLayer,
    /// Of the embedded token, and of the stream before.
    norms: [NormLayer; 2],
    /// `(hidden, 2 hidden)`: the columns of the embedded token, then those of the stream.
    join: Param,
    block: Block,
    norm: NormLayer,
    /// The sum of the layer's losses.
    pub(crate) loss_sum: Tensor,
}

/// The values that a forward leaves.
pub(crate) struct SavedFurther {
    embedding: Saved,
    /// As [`FurtherLayer::norms`].
    joined: [SavedNorm; 2],
    block: Saved,
    norm: SavedNorm,
}

impl FurtherLayer {
    /// All layers, in order. None in a model that does not train.
    pub(crate) fn build(builder: &LayerBuilder<'_>) -> Vec<FurtherLayer> {
        let LayerBuilder { of, params, step } = builder;
        let terms = further_terms(of.shape);
        let layer = |(block, term): (usize, &LossTerm)| {
            let loss_sum = step.losses.of(*term)?;
            // The normed values are read again by products.
            let norm = |name| NormLayer { recompute: false, ..norm(of.shape, block, name).build(params) };
            let [embedded, stream, last] = NORMS.map(norm);
            let dropout = of.hidden_dropout(block + 1, u16::MAX);
            Some(FurtherLayer {
                embedding: EmbeddingLayer { positions: None, dropout, ..EmbeddingLayer::build(builder) },
                norms: [embedded, stream],
                join: params.get(&projection(block)),
                block: Block::build(builder, block),
                norm: last,
                loss_sum,
            })
        };
        of.shape.further_blocks().zip(terms).filter_map(layer).collect()
    }

    /// The normed stream after the block, of this rank's rows, from the normed stream before the block and the embedded
    /// tokens `(batch, seq)`. `like` has the facts about the microbatch's samples.
    pub(crate) fn forward(
        &self,
        cx: &mut StepContext<'_>,
        before: Tensor,
        tokens: Tensor,
        like: Hidden,
    ) -> Result<(Tensor, SavedFurther)> {
        let (embedded, embedding) = self.embedding.forward(cx, Hidden { x: tokens, delta: None, ..like })?;
        let mut products = Vec::new();
        let mut joined = Vec::new();
        let inputs = [("of_embedded", embedded.x), ("of_stream", before)];
        for (((name, input), norm), columns) in inputs.into_iter().zip(&self.norms).zip(self.halves()) {
            let (_, normed, saved) = norm.forward(cx, input, None)?;
            let product = tensor_like(cx, name, &normed, input.shape.last())?;
            let columns = GemmColumns { b: columns, ..GemmColumns::ALL };
            cx.run(Gemm { columns, ..Gemm::linear(normed, self.join.weight, product, Epilogue::None) })?;
            products.push(product);
            joined.push(saved);
        }
        // The first norm of the block adds the two.
        let input = Hidden { x: products[0], delta: Some(products[1]), ..like };
        let (after, block) = self.block.forward_again(cx, input, None)?;
        let (_, normed, norm) = self.norm.forward(cx, after.x, after.delta)?;
        Ok((normed, SavedFurther { embedding, joined: [joined[0], joined[1]], block, norm }))
    }

    /// The gradient of the normed stream before the block, plus `residual`, the gradient that this stream has besides.
    /// `grad` is the gradient of the normed stream after the block. All are of this rank's rows.
    pub(crate) fn backward(
        &self,
        cx: &mut StepContext<'_>,
        saved: &SavedFurther,
        grad: Tensor,
        residual: Option<Tensor>,
    ) -> Result<Tensor> {
        let mut sums = NormSums::default();
        let grad = self.norm.backward(cx, &saved.norm, grad, None, None, &mut sums)?;
        let grad = self.block.backward(cx, &saved.block, grad)?;
        let mut grads = Vec::new();
        let residuals = [None, residual];
        for (((norm, saved), columns), residual) in
            self.norms.iter().zip(&saved.joined).zip(self.halves()).zip(residuals)
        {
            if let (Some(output), Normed::Stored(normed)) = (self.join.grad, norm.output(cx, saved)?) {
                let columns = GemmColumns { out: columns, ..GemmColumns::ALL };
                let accumulate = adds_to_gradients(cx);
                cx.run(Gemm { columns, ..Gemm::wgrad(grad, normed, output, accumulate) })?;
            }
            let grad_normed = tensor_like(cx, "grad_joined", &grad, grad.shape.last())?;
            let columns = GemmColumns { b: columns, ..GemmColumns::ALL };
            cx.run(Gemm { columns, ..Gemm::dgrad(grad, self.join.weight, grad_normed, Epilogue::None) })?;
            grads.push(norm.backward(cx, saved, grad_normed, residual, None, &mut sums)?);
        }
        sums.add_up(cx)?;
        self.embedding.backward(cx, &saved.embedding, grads[0])?;
        Ok(grads[1])
    }

    /// The columns of the joining matrix for each of the matrix's two factors.
    fn halves(&self) -> [Option<Columns>; 2] {
        let count = self.join.weight.shape.last() / 2;
        [0, count].map(|first| Some(Columns { first, count }))
    }
}
