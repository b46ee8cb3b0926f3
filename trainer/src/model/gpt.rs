//! GPT-2 style models (Radford et al., 2019): learned positions, pre-norm blocks, GELU.

use device::DType;

use super::block::{AttentionHalf, Block, FeedForwardHalf, LayerNorm, Linear};
use super::embedding::EmbeddingLayer;
use super::head::LanguageHead;
use super::{Architecture, Dropouts, Model, StepTensors};
use crate::params::{Init, ParamSpec, Params};

/// The sizes of a GPT.
#[derive(Clone, Debug)]
pub struct GptShape {
    /// Blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Attention heads; divides `hidden`.
    pub heads: usize,
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
    /// Dropout of embeddings and of what blocks add to the residual stream.
    pub hidden_dropout: f32,
    /// Dropout of attention probabilities.
    pub attention_dropout: f32,
    /// Seed of weights and dropout.
    pub seed: u64,
    /// Type of activations and weights in layers.
    pub dtype: DType,
}

/// Variance epsilon of all norms, as in GPT-2.
const EPS: f32 = 1e-5;

/// A GPT of that shape. Layer 0 embeds, layers 1 to `layers` are blocks, the last is the head.
pub fn gpt(shape: GptShape) -> Architecture {
    Architecture { specs: specs(&shape), build: Box::new(move |params, step| build(&shape, params, step)) }
}

fn specs(shape: &GptShape) -> Vec<ParamSpec> {
    let GptShape { layers, hidden, ffn, .. } = *shape;
    let normal = Init::Normal(0.02);
    // Weights that write to the residual stream are scaled down by the number of their additions to it.
    let residual = Init::Normal(0.02 / (2.0 * layers as f32).sqrt());
    let mut specs = Vec::new();
    let table = |name: &str, layer| ParamSpec {
        rows: shape.vocab,
        ..ParamSpec::new(name, [shape.padded_vocab, hidden], normal, layer)
    };
    specs.push(ParamSpec { sparse: !shape.tied, ..table("wte.weight", 0) });
    specs.push(ParamSpec { sparse: true, ..ParamSpec::new("wpe.weight", [shape.seq, hidden], normal, 0) });
    for block in 0..layers {
        let layer = block + 1;
        let mut linear = |name: &str, out: usize, input: usize, init: Init| {
            specs.push(ParamSpec::new(format!("h.{block}.{name}.weight"), [out, input], init, layer));
            specs.push(ParamSpec::new(format!("h.{block}.{name}.bias"), [out], Init::Constant(0.0), layer));
        };
        if shape.attention {
            linear("attn.c_attn", 3 * hidden, hidden, normal);
            linear("attn.c_proj", hidden, hidden, residual);
        }
        linear("mlp.c_fc", ffn, hidden, normal);
        linear("mlp.c_proj", hidden, ffn, residual);
        for norm in ["ln_1", "ln_2"] {
            if shape.attention || norm == "ln_2" {
                specs.push(ParamSpec::new(format!("h.{block}.{norm}.weight"), [hidden], Init::Constant(1.0), layer));
                specs.push(ParamSpec::new(format!("h.{block}.{norm}.bias"), [hidden], Init::Constant(0.0), layer));
            }
        }
    }
    specs.push(ParamSpec::new("ln_f.weight", [hidden], Init::Constant(1.0), layers + 1));
    specs.push(ParamSpec::new("ln_f.bias", [hidden], Init::Constant(0.0), layers + 1));
    if !shape.tied {
        specs.push(table("lm_head.weight", layers + 1));
    }
    specs
}

fn build(shape: &GptShape, params: &Params, step: StepTensors) -> Model {
    let linear = |name: String| Linear {
        weight: params.get(&format!("{name}.weight")),
        bias: params.get(&format!("{name}.bias")),
    };
    let norm = |name: String| LayerNorm {
        weight: params.get(&format!("{name}.weight")),
        bias: params.get(&format!("{name}.bias")),
        eps: EPS,
    };
    let dropouts = |rate, layer: usize, site| Dropouts { rate, seed: shape.seed, layer: layer as u16, site };
    let table = params.get("wte.weight");
    let embedding = EmbeddingLayer {
        table,
        positions: params.get("wpe.weight"),
        dropout: dropouts(shape.hidden_dropout, 0, 0),
        dtype: shape.dtype,
    };
    let mut layers: Vec<Box<dyn graph_manager::Layer<super::Hidden>>> = vec![Box::new(embedding)];
    for block in 0..shape.layers {
        let layer = block + 1;
        let attention = shape.attention.then(|| AttentionHalf {
            norm: norm(format!("h.{block}.ln_1")),
            qkv: linear(format!("h.{block}.attn.c_attn")),
            projection: linear(format!("h.{block}.attn.c_proj")),
            heads: shape.heads,
            probabilities: dropouts(shape.attention_dropout, layer, 0),
            output: dropouts(shape.hidden_dropout, layer, 1),
        });
        let feed_forward = FeedForwardHalf {
            norm: norm(format!("h.{block}.ln_2")),
            up: linear(format!("h.{block}.mlp.c_fc")),
            down: linear(format!("h.{block}.mlp.c_proj")),
            output: dropouts(shape.hidden_dropout, layer, 2),
        };
        layers.push(Box::new(Block { attention, feed_forward }));
    }
    layers.push(Box::new(LanguageHead {
        norm: norm("ln_f".into()),
        table: if shape.tied { table } else { params.get("lm_head.weight") },
        vocab: shape.vocab,
        step,
    }));
    let tokens = ([shape.batch, shape.seq].into(), DType::I32);
    Model { layers, inputs: tokens, targets: tokens }
}
