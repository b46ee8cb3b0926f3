//! Decoder-only transformers with pre-norm blocks. GPT-2 (Radford et al., 2019) has learned positions, LayerNorm, GELU,
//! biases and a tied head; Llama (Touvron et al., 2023) has rotary positions, RMSNorm, SwiGLU, grouped key and value
//! heads and no biases. Every one of these is a choice of its own.

use std::ops::Range;

use device::DType;
use device::ops::{DropoutPart, NormKind, VocabPart};

use super::block::{AttentionHalf, Block, FeedForwardHalf};
use super::embedding::EmbeddingLayer;
use super::head::LanguageHead;
use super::linear::Linear;
use super::norm::NormLayer;
use super::recompute::Recomputed;
use super::tensor_parallel::Share;
use super::{
    Architecture, Chunk, Dropouts, Layer, Model, RotaryTable, SampleRow, Scaling, StepTensors, TensorParallel,
};
use crate::layer_partition::StageLayers;
use crate::params::{Init, ParamSpec, Params, TiedCopy};

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

/// A transformer of that shape. Layer 0 embeds, the last is the head, and those between are blocks.
pub fn gpt(shape: GptShape) -> Architecture {
    let layers = StageLayers::whole(shape.layers + 2);
    gpt_part(shape, TensorParallel::alone(), layers)
}

/// What a rank has of a transformer of that shape: a part of each layer, of some of the layers. Heads, key and value heads,
/// the feed-forward width and the padded vocabulary are multiples of the ranks that share a layer, with sequence
/// parallelism also a microbatch's tokens.
pub fn gpt_part(shape: GptShape, tensor: TensorParallel, layers: StageLayers) -> Architecture {
    let rotary = match shape.position {
        Position::Rotary { base, scaling } if shape.attention => {
            Some(RotaryTable { seq: shape.seq, head_dim: shape.head_dim(), base, scaling })
        }
        _ => None,
    };
    let (specs, elsewhere) = of_stage(specs(&shape, &tensor, &layers), &layers, shape.tied);
    let (parallel, here) = (tensor.clone(), layers.clone());
    let build = move |params: &Params, step| build(&shape, &parallel, &here, params, step);
    Architecture { specs, elsewhere, layers, tensor, rotary, build: Box::new(build) }
}

/// A stage's parameters, and the names of the others'. A tied table is on the first stage, which looks tokens up in it, and
/// again on the last, whose head it is.
fn of_stage(all: Vec<ParamSpec>, layers: &StageLayers, tied: bool) -> (Vec<ParamSpec>, Vec<String>) {
    if !layers.is_part() {
        return (all, Vec::new());
    }
    let table = all[0].clone();
    let (mut here, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|spec| layers.has(spec.layer));
    let mut elsewhere: Vec<String> = others.into_iter().map(|spec| spec.name).collect();
    if tied && layers.has_first() {
        here[0] = ParamSpec { sparse: true, tied: Some(TiedCopy::Primary), ..table };
    } else if tied && layers.has_last() {
        elsewhere.retain(|name| *name != table.name);
        here.push(ParamSpec { layer: layers.total - 1, tied: Some(TiedCopy::Replica), ..table });
    }
    (here, elsewhere)
}

fn specs(shape: &GptShape, tensor: &TensorParallel, stage: &StageLayers) -> Vec<ParamSpec> {
    let GptShape { layers, hidden, ffn, init_std, .. } = *shape;
    let normal = Init::Normal(init_std);
    let additions = 2.0 * layers as f32;
    let residual = if shape.scaled_residual_init { Init::Normal(init_std / additions.sqrt()) } else { normal };
    let mut specs = Vec::new();
    // The part of a parameter that is here, of which groups along an axis are cut.
    let part = |spec: ParamSpec, axis: usize, groups: &[usize]| match tensor.shard(axis, groups) {
        Some(shard) => spec.sharded(shard),
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
        let layer = stage.of_block(block);
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
    specs.extend(norm_specs(shape, tensor, "ln_f", stage.total - 1));
    if !shape.tied {
        specs.push(table("lm_head.weight", stage.total - 1));
    }
    specs.iter_mut().for_each(|spec| spec.dtype = shape.dtype);
    specs
}

fn norm_specs(shape: &GptShape, tensor: &TensorParallel, name: &str, layer: usize) -> Vec<ParamSpec> {
    let mut specs = vec![ParamSpec::new(format!("{name}.weight"), [shape.hidden], Init::Constant(1.0), layer)];
    if shape.norm_bias() {
        specs.push(ParamSpec::new(format!("{name}.bias"), [shape.hidden], Init::Constant(0.0), layer));
    }
    specs.iter_mut().for_each(|spec| spec.sequence_parallel = tensor.cuts_rows());
    specs
}

/// Makes layers over their parameters.
pub(crate) struct LayerMaker<'m> {
    pub(crate) shape: &'m GptShape,
    pub(crate) tensor: &'m TensorParallel,
    pub(crate) params: &'m Params,
    pub(crate) step: StepTensors,
}

fn build(shape: &GptShape, tensor: &TensorParallel, layers: &StageLayers, params: &Params, step: StepTensors) -> Model {
    let make = LayerMaker { shape, tensor, params, step };
    let layer = |number: usize| -> Box<dyn Layer> {
        match number {
            0 => Box::new(make.embedding()),
            head if head + 1 == layers.total => Box::new(make.head()),
            others => {
                let mut blocks = layers.blocks[others - 1].clone().map(|block| make.block(block));
                match blocks.next() {
                    Some(block) if !layers.recomputed => Box::new(block),
                    first => Box::new(Recomputed { blocks: first.into_iter().chain(blocks).collect() }),
                }
            }
        }
    };
    let chunk = |range: &Range<usize>| Chunk { first: range.start, layers: range.clone().map(layer).collect() };
    let tokens = ([shape.batch, shape.seq].into(), DType::I32);
    let rows = shape.batch * shape.seq;
    let residual = match tensor.cuts_rows() {
        true => [1, rows / tensor.size(), shape.hidden],
        false => [shape.batch, shape.seq, shape.hidden],
    };
    Model {
        chunks: layers.chunks.iter().map(chunk).collect(),
        residual: Some((residual.into(), shape.dtype)),
        sample: SampleRow::tokens(shape.seq),
        inputs: tokens,
        targets: tokens,
        losses: rows,
    }
}

impl LayerMaker<'_> {
    fn share(&self) -> Share {
        Share { parallel: self.tensor.clone(), tokens: (self.shape.batch, self.shape.seq) }
    }

    fn linear(&self, name: &str) -> Linear {
        Linear {
            weight: self.params.get(&format!("{name}.weight")),
            bias: self.shape.bias.then(|| self.params.get(&format!("{name}.bias"))),
        }
    }

    fn norm(&self, name: &str) -> NormLayer {
        NormLayer {
            kind: self.shape.norm,
            weight: self.params.get(&format!("{name}.weight")),
            bias: self.shape.norm_bias().then(|| self.params.get(&format!("{name}.bias"))),
            eps: self.shape.norm_eps,
            recompute: self.shape.recompute,
        }
    }

    fn dropouts(&self, rate: f32, layer: usize, site: u16, part: DropoutPart) -> Dropouts {
        Dropouts { rate, seed: self.shape.seed, layer: layer as u16, site, part }
    }

    /// Of what is computed on the residual stream's rows that are here.
    fn hidden_dropout(&self, layer: usize, site: u16) -> Dropouts {
        let rows = self.tensor.rows(self.shape.batch, self.shape.seq);
        self.dropouts(self.shape.hidden_dropout, layer, site, rows)
    }

    fn first_token(&self) -> usize {
        self.tensor.rank() * (self.shape.padded_vocab / self.tensor.size())
    }

    /// Layer 0.
    pub(crate) fn embedding(&self) -> EmbeddingLayer {
        EmbeddingLayer {
            table: self.params.get("wte.weight"),
            positions: (self.shape.position == Position::Learned).then(|| self.params.get("wpe.weight")),
            dropout: self.hidden_dropout(0, 0),
            first_token: self.first_token(),
            dtype: self.shape.dtype,
            share: self.share(),
        }
    }

    /// One of the layers between embedding and head, or a part of one.
    pub(crate) fn block(&self, block: usize) -> Block {
        let (shape, layer) = (self.shape, block + 1);
        let (heads, kv_heads) = (shape.heads / self.tensor.size(), shape.kv_heads / self.tensor.size());
        let own_heads = DropoutPart { first_head: self.tensor.rank() * heads, ..DropoutPart::default() };
        let attention = shape.attention.then(|| AttentionHalf {
            norm: self.norm(&format!("h.{block}.ln_1")),
            qkv: self.linear(&format!("h.{block}.attn.c_attn")),
            projection: self.linear(&format!("h.{block}.attn.c_proj")),
            heads,
            kv_heads,
            rotary: self.step.rotary,
            probabilities: self.dropouts(shape.attention_dropout, layer, 0, own_heads),
            output: self.hidden_dropout(layer, 1),
            share: self.share(),
        });
        let feed_forward = FeedForwardHalf {
            norm: self.norm(&format!("h.{block}.ln_2")),
            kind: shape.feed_forward,
            up: self.linear(&format!("h.{block}.mlp.c_fc")),
            down: self.linear(&format!("h.{block}.mlp.c_proj")),
            output: self.hidden_dropout(layer, 2),
            share: self.share(),
            recompute: shape.recompute,
        };
        Block { attention, feed_forward }
    }

    /// The last layer.
    pub(crate) fn head(&self) -> LanguageHead {
        LanguageHead {
            norm: NormLayer { recompute: false, ..self.norm("ln_f") },
            table: self.params.get(if self.shape.tied { "wte.weight" } else { "lm_head.weight" }),
            vocab: VocabPart { first_token: self.first_token(), vocab: self.shape.vocab },
            pieces: self.shape.loss_pieces,
            share: self.share(),
            step: self.step,
        }
    }
}
