//! Decoder-only transformers with pre-norm blocks. GPT-2 (Radford et al., 2019) has learned positions, LayerNorm, GELU,
//! biases and a tied head; Llama (Touvron et al., 2023) has rotary positions, RMSNorm, SwiGLU, grouped key and value
//! heads and no biases. Every one of these is a choice of its own.

use device::DType;
use device::ops::NormKind;

use super::block::{AttentionHalf, Block, FeedForwardHalf, Linear, NormLayer};
use super::embedding::EmbeddingLayer;
use super::head::LanguageHead;
use super::{Architecture, Dropouts, Model, RotaryTable, Scaling, StepTensors};
use crate::params::{Init, ParamSpec, Params};

/// How a model knows the order of its tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Position {
    /// A learned vector a position, added to the embeddings.
    Learned,
    /// Queries and keys turn by their position.
    Rotary {
        /// See [`RotaryTable::base`].
        base: f64,
        /// See [`RotaryTable::scaling`].
        scaling: Option<Scaling>,
    },
    /// Nothing but the causal mask (Kazemnejad et al., 2023).
    None,
}

/// What lies between the two matrices of a feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// GELU in its tanh form.
    Gelu,
    /// SiLU of a gate, times a second product.
    SwiGlu,
}

/// The sizes and choices of a decoder-only transformer.
#[derive(Clone, Debug)]
pub struct GptShape {
    /// Blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Attention heads; divides `hidden`.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Tokens.
    pub vocab: usize,
    /// Rows of the table: `vocab` rounded up.
    pub padded_vocab: usize,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Sequences of a microbatch.
    pub batch: usize,
    /// The head uses the embedding's table.
    pub tied: bool,
    /// Blocks have attention.
    pub attention: bool,
    /// Which norm.
    pub norm: NormKind,
    /// Added to the variance in norms.
    pub norm_eps: f32,
    /// Which feed-forward layer.
    pub feed_forward: FeedForward,
    /// Which positions.
    pub position: Position,
    /// Linear layers and LayerNorms have biases.
    pub bias: bool,
    /// Standard deviation of matrices at the start.
    pub init_std: f32,
    /// Weights that write to the residual stream start smaller, by the root of the number of additions to it.
    pub scaled_residual_init: bool,
    /// Dropout of embeddings and of what blocks add to the residual stream.
    pub hidden_dropout: f32,
    /// Dropout of attention probabilities.
    pub attention_dropout: f32,
    /// Backward computes activations and normed values again instead of keeping them.
    pub recompute: bool,
    /// Seed of weights and dropout.
    pub seed: u64,
    /// Type of activations and weights in layers.
    pub dtype: DType,
}

impl GptShape {
    /// Channels of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// Channels of a packed row of queries, keys and values.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim()
    }

    /// Width of the first product of a feed-forward layer.
    pub fn up_width(&self) -> usize {
        match self.feed_forward {
            FeedForward::Gelu => self.ffn,
            FeedForward::SwiGlu => 2 * self.ffn,
        }
    }

    /// Whether norms have biases.
    pub fn norm_bias(&self) -> bool {
        self.bias && self.norm == NormKind::Layer
    }
}

/// A transformer of that shape. Layer 0 embeds, layers 1 to `layers` are blocks, the last is the head.
pub fn gpt(shape: GptShape) -> Architecture {
    let rotary = match shape.position {
        Position::Rotary { base, scaling } if shape.attention => {
            Some(RotaryTable { seq: shape.seq, head_dim: shape.head_dim(), base, scaling })
        }
        _ => None,
    };
    Architecture { specs: specs(&shape), rotary, build: Box::new(move |params, step| build(&shape, params, step)) }
}

fn specs(shape: &GptShape) -> Vec<ParamSpec> {
    let GptShape { layers, hidden, ffn, init_std, .. } = *shape;
    let normal = Init::Normal(init_std);
    let additions = 2.0 * layers as f32;
    let residual = if shape.scaled_residual_init { Init::Normal(init_std / additions.sqrt()) } else { normal };
    let mut specs = Vec::new();
    let table = |name: &str, layer| ParamSpec {
        rows: shape.vocab,
        ..ParamSpec::new(name, [shape.padded_vocab, hidden], normal, layer)
    };
    specs.push(ParamSpec { sparse: !shape.tied, ..table("wte.weight", 0) });
    if shape.position == Position::Learned {
        specs.push(ParamSpec { sparse: true, ..ParamSpec::new("wpe.weight", [shape.seq, hidden], normal, 0) });
    }
    for block in 0..layers {
        let layer = block + 1;
        let mut linear = |name: &str, out: usize, input: usize, init: Init| {
            specs.push(ParamSpec::new(format!("h.{block}.{name}.weight"), [out, input], init, layer));
            if shape.bias {
                specs.push(ParamSpec::new(format!("h.{block}.{name}.bias"), [out], Init::Constant(0.0), layer));
            }
        };
        if shape.attention {
            linear("attn.c_attn", shape.qkv_width(), hidden, normal);
            linear("attn.c_proj", hidden, hidden, residual);
        }
        linear("mlp.c_fc", shape.up_width(), hidden, normal);
        linear("mlp.c_proj", hidden, ffn, residual);
        for name in ["ln_1", "ln_2"] {
            if shape.attention || name == "ln_2" {
                specs.extend(norm_specs(shape, &format!("h.{block}.{name}"), layer));
            }
        }
    }
    specs.extend(norm_specs(shape, "ln_f", layers + 1));
    if !shape.tied {
        specs.push(table("lm_head.weight", layers + 1));
    }
    specs
}

fn norm_specs(shape: &GptShape, name: &str, layer: usize) -> Vec<ParamSpec> {
    let mut specs = vec![ParamSpec::new(format!("{name}.weight"), [shape.hidden], Init::Constant(1.0), layer)];
    if shape.norm_bias() {
        specs.push(ParamSpec::new(format!("{name}.bias"), [shape.hidden], Init::Constant(0.0), layer));
    }
    specs
}

/// The layers over their parameters.
pub(crate) struct Parts {
    pub(crate) embedding: EmbeddingLayer,
    pub(crate) blocks: Vec<Block>,
    pub(crate) head: LanguageHead,
}

fn build(shape: &GptShape, params: &Params, step: StepTensors) -> Model {
    let Parts { embedding, blocks, head } = parts(shape, params, step);
    let mut layers: Vec<Box<dyn graph_manager::Layer<super::Hidden>>> = vec![Box::new(embedding)];
    layers.extend(blocks.into_iter().map(|block| Box::new(block) as _));
    layers.push(Box::new(head));
    let tokens = ([shape.batch, shape.seq].into(), DType::I32);
    Model { layers, inputs: tokens, targets: tokens }
}

pub(crate) fn parts(shape: &GptShape, params: &Params, step: StepTensors) -> Parts {
    let linear = |name: String| Linear {
        weight: params.get(&format!("{name}.weight")),
        bias: shape.bias.then(|| params.get(&format!("{name}.bias"))),
    };
    let norm = |name: String| NormLayer {
        kind: shape.norm,
        weight: params.get(&format!("{name}.weight")),
        bias: shape.norm_bias().then(|| params.get(&format!("{name}.bias"))),
        eps: shape.norm_eps,
        recompute: shape.recompute,
    };
    let dropouts = |rate, layer: usize, site| Dropouts { rate, seed: shape.seed, layer: layer as u16, site };
    let table = params.get("wte.weight");
    let embedding = EmbeddingLayer {
        table,
        positions: (shape.position == Position::Learned).then(|| params.get("wpe.weight")),
        dropout: dropouts(shape.hidden_dropout, 0, 0),
        dtype: shape.dtype,
    };
    let mut blocks = Vec::with_capacity(shape.layers);
    for block in 0..shape.layers {
        let layer = block + 1;
        let attention = shape.attention.then(|| AttentionHalf {
            norm: norm(format!("h.{block}.ln_1")),
            qkv: linear(format!("h.{block}.attn.c_attn")),
            projection: linear(format!("h.{block}.attn.c_proj")),
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            rotary: step.rotary,
            probabilities: dropouts(shape.attention_dropout, layer, 0),
            output: dropouts(shape.hidden_dropout, layer, 1),
        });
        let feed_forward = FeedForwardHalf {
            norm: norm(format!("h.{block}.ln_2")),
            kind: shape.feed_forward,
            up: linear(format!("h.{block}.mlp.c_fc")),
            down: linear(format!("h.{block}.mlp.c_proj")),
            output: dropouts(shape.hidden_dropout, layer, 2),
            recompute: shape.recompute,
        };
        blocks.push(Block { attention, feed_forward });
    }
    let head = LanguageHead {
        norm: NormLayer { recompute: false, ..norm("ln_f".into()) },
        table: if shape.tied { table } else { params.get("lm_head.weight") },
        vocab: shape.vocab,
        step,
    };
    Parts { embedding, blocks, head }
}
