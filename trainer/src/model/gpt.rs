//! Decoder-only transformers with pre-norm blocks. GPT-2 (Radford et al., 2019) has learned positions, LayerNorm, GELU,
//! biases and a tied head; Llama (Touvron et al., 2023) has rotary positions, RMSNorm, SwiGLU, grouped key and value
//! heads and no biases. Every one of these is a choice of its own.

use device::DType;
use device::ops::{DropoutPart, NormKind, VocabPart};

use super::block::{AttentionHalf, Block, FeedForwardHalf, Linear, NormLayer, Share};
use super::embedding::EmbeddingLayer;
use super::head::LanguageHead;
use super::{Architecture, Dropouts, Model, RotaryTable, Scaling, StepTensors, TensorParallel};
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
    /// Pieces of a microbatch's rows whose logits are in memory one after the other; divides `batch * seq`.
    pub loss_pieces: usize,
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
    gpt_part(shape, TensorParallel::alone())
}

/// What a rank has of a transformer of that shape. Heads, key and value heads, the feed-forward width and the padded
/// vocabulary are multiples of the ranks that share a layer, with sequence parallelism also a microbatch's tokens.
pub fn gpt_part(shape: GptShape, tensor: TensorParallel) -> Architecture {
    let rotary = match shape.position {
        Position::Rotary { base, scaling } if shape.attention => {
            Some(RotaryTable { seq: shape.seq, head_dim: shape.head_dim(), base, scaling })
        }
        _ => None,
    };
    let specs = specs(&shape, &tensor);
    let parallel = tensor.clone();
    Architecture { specs, tensor, rotary, build: Box::new(move |params, step| build(&shape, &parallel, params, step)) }
}

fn specs(shape: &GptShape, tensor: &TensorParallel) -> Vec<ParamSpec> {
    let GptShape { layers, hidden, ffn, init_std, .. } = *shape;
    let normal = Init::Normal(init_std);
    let additions = 2.0 * layers as f32;
    let residual = if shape.scaled_residual_init { Init::Normal(init_std / additions.sqrt()) } else { normal };
    let mut specs = Vec::new();
    // The part of a parameter that is here, of which groups along an axis are cut.
    let part = |spec: ParamSpec, axis: usize, groups: &[usize]| match tensor.cut(axis, groups) {
        Some(cut) => spec.cut(cut),
        None => spec,
    };
    let table = |name: &str, layer| {
        let whole = ParamSpec::new(name, [shape.padded_vocab, hidden], normal, layer).with_rows(shape.vocab);
        part(whole, 0, &[shape.padded_vocab])
    };
    let (queries, keys) = (shape.heads * shape.head_dim(), shape.kv_heads * shape.head_dim());
    let up_groups = vec![ffn; shape.up_width() / ffn];
    specs.push(ParamSpec { sparse: !shape.tied, ..table("wte.weight", 0) });
    if shape.position == Position::Learned {
        specs.push(ParamSpec { sparse: true, ..ParamSpec::new("wpe.weight", [shape.seq, hidden], normal, 0) });
    }
    for block in 0..layers {
        let layer = block + 1;
        // By its outputs a layer is cut in groups, bias and all; by its inputs it has one group, and a bias whole.
        let mut linear = |name: &str, [out, input]: [usize; 2], init: Init, axis: usize, groups: &[usize]| {
            let weight = ParamSpec::new(format!("h.{block}.{name}.weight"), [out, input], init, layer);
            specs.push(part(weight, axis, groups));
            if shape.bias {
                let bias = ParamSpec::new(format!("h.{block}.{name}.bias"), [out], Init::Constant(0.0), layer);
                specs.push(if axis == 0 { part(bias, 0, groups) } else { bias });
            }
        };
        if shape.attention {
            linear("attn.c_attn", [shape.qkv_width(), hidden], normal, 0, &[queries, keys, keys]);
            linear("attn.c_proj", [hidden, queries], residual, 1, &[queries]);
        }
        linear("mlp.c_fc", [shape.up_width(), hidden], normal, 0, &up_groups);
        linear("mlp.c_proj", [hidden, ffn], residual, 1, &[ffn]);
        for name in ["ln_1", "ln_2"] {
            if shape.attention || name == "ln_2" {
                specs.extend(norm_specs(shape, tensor, &format!("h.{block}.{name}"), layer));
            }
        }
    }
    specs.extend(norm_specs(shape, tensor, "ln_f", layers + 1));
    if !shape.tied {
        specs.push(table("lm_head.weight", layers + 1));
    }
    specs
}

fn norm_specs(shape: &GptShape, tensor: &TensorParallel, name: &str, layer: usize) -> Vec<ParamSpec> {
    let mut specs = vec![ParamSpec::new(format!("{name}.weight"), [shape.hidden], Init::Constant(1.0), layer)];
    if shape.norm_bias() {
        specs.push(ParamSpec::new(format!("{name}.bias"), [shape.hidden], Init::Constant(0.0), layer));
    }
    specs.iter_mut().for_each(|spec| spec.partial = tensor.cuts_rows());
    specs
}

/// The layers over their parameters.
pub(crate) struct Parts {
    pub(crate) embedding: EmbeddingLayer,
    pub(crate) blocks: Vec<Block>,
    pub(crate) head: LanguageHead,
}

fn build(shape: &GptShape, tensor: &TensorParallel, params: &Params, step: StepTensors) -> Model {
    let Parts { embedding, blocks, head } = parts(shape, tensor, params, step);
    let mut layers: Vec<Box<dyn graph_manager::Layer<super::Hidden>>> = vec![Box::new(embedding)];
    layers.extend(blocks.into_iter().map(|block| Box::new(block) as _));
    layers.push(Box::new(head));
    let tokens = ([shape.batch, shape.seq].into(), DType::I32);
    Model { layers, inputs: tokens, targets: tokens }
}

pub(crate) fn parts(shape: &GptShape, tensor: &TensorParallel, params: &Params, step: StepTensors) -> Parts {
    let share = Share { parallel: tensor.clone(), tokens: (shape.batch, shape.seq) };
    let (heads, kv_heads) = (shape.heads / tensor.size(), shape.kv_heads / tensor.size());
    let first_token = tensor.rank() * (shape.padded_vocab / tensor.size());
    let rows = tensor.rows(shape.batch, shape.seq);
    let own_heads = DropoutPart { first_head: tensor.rank() * heads, ..DropoutPart::default() };
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
    let dropouts =
        |rate, layer: usize, site, part| Dropouts { rate, seed: shape.seed, layer: layer as u16, site, part };
    let table = params.get("wte.weight");
    let embedding = EmbeddingLayer {
        table,
        positions: (shape.position == Position::Learned).then(|| params.get("wpe.weight")),
        dropout: dropouts(shape.hidden_dropout, 0, 0, rows),
        first_token,
        dtype: shape.dtype,
        share: share.clone(),
    };
    let mut blocks = Vec::with_capacity(shape.layers);
    for block in 0..shape.layers {
        let layer = block + 1;
        let attention = shape.attention.then(|| AttentionHalf {
            norm: norm(format!("h.{block}.ln_1")),
            qkv: linear(format!("h.{block}.attn.c_attn")),
            projection: linear(format!("h.{block}.attn.c_proj")),
            heads,
            kv_heads,
            rotary: step.rotary,
            probabilities: dropouts(shape.attention_dropout, layer, 0, own_heads),
            output: dropouts(shape.hidden_dropout, layer, 1, rows),
            share: share.clone(),
        });
        let feed_forward = FeedForwardHalf {
            norm: norm(format!("h.{block}.ln_2")),
            kind: shape.feed_forward,
            up: linear(format!("h.{block}.mlp.c_fc")),
            down: linear(format!("h.{block}.mlp.c_proj")),
            output: dropouts(shape.hidden_dropout, layer, 2, rows),
            share: share.clone(),
            recompute: shape.recompute,
        };
        blocks.push(Block { attention, feed_forward });
    }
    let head = LanguageHead {
        norm: NormLayer { recompute: false, ..norm("ln_f".into()) },
        table: if shape.tied { table } else { params.get("lm_head.weight") },
        vocab: VocabPart { first_token, vocab: shape.vocab },
        pieces: shape.loss_pieces,
        share,
        step,
    };
    Parts { embedding, blocks, head }
}
