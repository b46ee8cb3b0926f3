//! Decoder-only transformers: an embedding, blocks with norms in front, and a head.
//!
//! GPT-2 (Radford et al., 2019) has learned positions, LayerNorm, GELU, biases and a tied head. Llama (Touvron et al.,
//! 2023) has rotary positions, RMSNorm, SwiGLU, grouped key and value heads and no biases. Qwen2 (Yang et al., 2024)
//! adds biases to queries, keys and values, and Qwen3 norms of heads. OLMo 2 (Team OLMo, 2024) has its norms after the
//! parts of blocks. Mixtral (Jiang et al., 2024), Qwen3-MoE and OLMoE (Muennighoff et al., 2024) have experts in place
//! of dense layers. Gemma (Gemma Team, 2024) has norms before and after them, GeGLU, scaled embeddings and bounds of
//! scores and logits. [`GptShape`] has each of these as a choice of its own.

mod block;
mod branch;
mod cost;
mod decoder;
mod embedding;
mod further;
mod head;
mod recompute;
mod shape;

use std::ops::Range;

use device::DType;
use parallel::{Axis, Ranks};

use super::architecture::{Architecture, Chunk, ExpertBlocks, Model, Residual, StepTensors};
use super::builder::{LayerBuilder, ShardedShape};
use super::feed_forward::{router_terms, selection_biases};
use super::layer::{Layer, LossHead};
use super::loss_term::LossTerm;
use super::tensor_parallel::TensorParallel;
use crate::graph_options::GraphModule;
use crate::layer_partition::StageLayers;
use crate::model::sequence::{Position, RotaryTable, RotaryTables, SampleRow};
use crate::params::{ParamSpec, Params, TiedCopy};
use block::{Block, block_modules, block_params};
pub use decoder::{Cursor, Decoder};
pub use embedding::is_embedding;
use embedding::{EmbeddingLayer, embedding_params};
use further::{further_params, further_terms};
pub(crate) use head::RegressionHead;
use head::{LanguageHead, head_params, head_terms};
use recompute::RecomputedBlocks;
pub use shape::{AttentionKind, FeedForward, FurtherTokens, GptShape, Latent, NormPlacement, QkNorm, Windows};

/// A transformer of that shape, whole on one rank. Layer 0 embeds, the last is the head, and those between are blocks.
pub fn gpt(shape: GptShape) -> Architecture {
    let layers = StageLayers::whole(shape.layers + 2);
    gpt_part(shape, TensorParallel::alone(), layers)
}

/// A rank's part of a transformer of that shape: its shard of each layer of its pipeline stage. The number of ranks
/// that share a layer divides the heads, the feed-forward width and the padded vocabulary; with sequence parallelism
/// also a microbatch's tokens. It divides the key and value heads, or is a multiple of them: then ranks store copies of
/// a head.
///
/// # Panics
/// If the mesh was made for another number of [copies of key heads](GptShape::key_head_copies).
pub fn gpt_part(shape: GptShape, tensor: TensorParallel, layers: StageLayers) -> Architecture {
    let copies = tensor.ranks.mesh().sizes().key_head_copies;
    assert_eq!(copies, shape.key_head_copies(tensor.size()), "ranks that store copies of a key head");
    let whole = params(&ShardedShape { shape: &shape, parallel: &tensor }, &layers);
    let shares_table = shape.table_is_shared();
    let (specs, elsewhere) = of_stage(whole, &layers, shares_table);
    let (modules, rotary, loss_terms) = (layer_modules(&shape, &layers), rotary_tables(&shape), loss_terms(&shape));
    let (experts, max_seq_len) = (expert_blocks(&shape, &tensor.ranks), shape.max_seq_len);
    let (parallel, here, preference) = (tensor.clone(), layers.clone(), shape.preference);
    let build = move |params: &Params, step: StepTensors| {
        let of = ShardedShape { shape: &shape, parallel: &parallel };
        build(&LayerBuilder { of, params, step }, &here)
    };
    Architecture {
        specs,
        elsewhere,
        layers,
        ranks: tensor.ranks,
        modules,
        shares_table,
        rotary,
        preference,
        loss_terms,
        experts,
        gradients_outlive_layers: false,
        sample: SampleRow::tokens(max_seq_len),
        max_seq_len,
        build: Box::new(build),
    }
}

/// The terms of the loss of the whole model.
fn loss_terms(shape: &GptShape) -> Vec<LossTerm> {
    let of_parts = shape.own_part.iter().flat_map(|own| own.terms());
    let further = further_terms(shape).iter().copied();
    head_terms(shape)
        .into_iter()
        .chain(further)
        .chain(shape.experts.iter().flat_map(router_terms))
        .chain(of_parts)
        .collect()
}

/// See [`Architecture::experts`].
fn expert_blocks(shape: &GptShape, ranks: &Ranks) -> Option<ExpertBlocks> {
    let blocks = (0..shape.further_blocks().end).filter(|&block| shape.block_experts(block).is_some()).collect();
    shape.experts.as_ref().map(|of| ExpertBlocks {
        blocks,
        experts: of.count,
        drops: of.capacity.is_some(),
        loads_over: of.loads_over(),
        has_row_budget: of.row_budget.is_some() && ranks.at(Axis::Expert).has_others(),
    })
}

/// The modules of each layer of the whole model.
pub fn layer_modules(shape: &GptShape, layers: &StageLayers) -> Vec<Vec<GraphModule>> {
    let of_layer = |blocks: &Range<usize>| blocks.clone().flat_map(|block| block_modules(shape, block)).collect();
    let of_blocks = layers.blocks.iter().map(of_layer);
    [vec![GraphModule::EMBEDDING]].into_iter().chain(of_blocks).chain([vec![GraphModule::HEAD]]).collect()
}

/// The angles that attention reads, if positions are rotary.
pub(crate) fn rotary_tables(shape: &GptShape) -> RotaryTables<RotaryTable> {
    let Position::Rotary { base, scaling, window_base } = shape.position else { return RotaryTables::NONE };
    if shape.attention == AttentionKind::None {
        return RotaryTables::NONE;
    }
    let positions = shape.max_seq_len;
    let table = |base, scaling| RotaryTable { positions, head_dim: shape.rotated_channels(), base, scaling };
    let window_base = window_base.filter(|_| shape.windows.is_some());
    RotaryTables { full: Some(table(base, scaling)), window: window_base.map(|base| table(base, None)) }
}

/// The parameters of all layers, in the order of a forward.
fn params(shape: &ShardedShape<'_>, stage: &StageLayers) -> Vec<ParamSpec> {
    let blocks = (0..shape.shape.layers).flat_map(|block| block_params(shape, block, stage.of_block(block)));
    let further = further_params(shape, stage.total - 1);
    let all = embedding_params(shape).into_iter().chain(blocks).chain(further);
    let all = all.chain(head_params(shape, stage.total - 1));
    shape.shape.precision.apply(all)
}

/// A stage's parameters, and the names of the parameters that other stages have. A table that is `shared` is on the
/// first stage, and again on the last, for the product of a tied head or for layers that predict further tokens.
fn of_stage(all: Vec<ParamSpec>, layers: &StageLayers, shared: bool) -> (Vec<ParamSpec>, Vec<String>) {
    if !layers.is_part() {
        return (all, Vec::new());
    }
    let table = all[0].clone();
    let (mut here, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|spec| layers.has(spec.layer));
    let mut elsewhere: Vec<String> = others.into_iter().map(|spec| spec.name).collect();
    if shared && layers.has_first() {
        here[0] = ParamSpec { sparse: true, tied: Some(TiedCopy::Primary), ..table };
    } else if shared && layers.has_last() {
        elsewhere.retain(|name| *name != table.name);
        here.push(ParamSpec { layer: layers.total - 1, tied: Some(TiedCopy::Replica), ..table });
    }
    (here, elsewhere)
}

/// A stage's layers over the layers' parameters.
fn build(builder: &LayerBuilder<'_>, layers: &StageLayers) -> Model {
    let layer = |number: usize| -> Box<dyn Layer> {
        match number {
            0 => Box::new(EmbeddingLayer::build(builder)),
            others => match layers.recomputed[others - 1] {
                None => Box::new(Block::build(builder, layers.blocks[others - 1].start)),
                Some(how) => Box::new(RecomputedBlocks {
                    blocks: layers.blocks[others - 1].clone().map(|block| Block::build(builder, block)).collect(),
                    keeps_attention: how.keeps_attention,
                }),
            },
        }
    };
    let chunk = |range: &Range<usize>| {
        let mut head: Option<Box<dyn LossHead>> = None;
        let mut end = range.end;
        if end == layers.total {
            head = Some(Box::new(LanguageHead::build(builder)));
            end -= 1;
        }
        Chunk { first: range.start, layers: (range.start..end).map(layer).collect(), head }
    };
    let ShardedShape { shape, parallel } = builder.of;
    let (width, dtype, rows) = (shape.hidden, shape.precision.activations(), parallel.row_share());
    Model {
        chunks: layers.chunks.iter().map(chunk).collect(),
        residual: Some(Residual { width, dtype, rows }),
        values: DType::I32,
        drops: shape.drops(),
        asks_padding: shape.experts.is_some(),
        further_tokens: shape.further_blocks().len(),
        selection_biases: selection_biases(builder, layers),
    }
}
