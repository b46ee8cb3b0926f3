//! The sizes and choices of a decoder-only transformer.

use std::ops::Range;
use std::sync::Arc;

use common::choice;
use device::ops::{LatentHead, Mask, NormKind, Preference, Scores};
use device::{DType, bf16};

use crate::fp8::Fp8;
use crate::model::feed_forward::Experts;
use crate::model::linear::Lora;
use crate::model::own::{OwnLoss, OwnPart};
use crate::model::sequence::Position;
use crate::params::Init;
use crate::precision::Precision;

choice! {
    /// The kind of a block's feed-forward layer.
    pub enum FeedForward {
        /// Two matrices, with GELU in the tanh form between.
        Gelu = "gelu",
        /// Three matrices: SiLU of a gate, times a second product (Shazeer, 2020).
        SwiGlu = "swiglu",
        /// Three matrices: GELU in its tanh form of a gate, times a second product (Shazeer, 2020).
        GeGlu = "geglu",
        /// Three matrices: the SiLU of gpt-oss, with bounds of both values; see [`Gate::ClampedSilu`](device::ops::Gate).
        ClampedSwiGlu = "clamped_swiglu",
    }
}

choice! {
    /// The places of norms in blocks.
    pub enum NormPlacement {
        /// Before attention and feed-forward.
        Pre = "pre",
        /// After attention and after feed-forward, before the sum with the residual stream.
        Post = "post",
        /// Before and after.
        Sandwich = "sandwich",
    }
}

impl NormPlacement {
    /// Whether a part of a block has a norm before the part.
    pub(crate) fn is_before(self) -> bool {
        self != NormPlacement::Post
    }

    /// Whether a part of a block has a norm after the part.
    pub(crate) fn is_after(self) -> bool {
        self != NormPlacement::Pre
    }
}

choice! {
    /// How queries and keys are normalised, by RMSNorm, before the rotation.
    pub enum QkNorm {
        /// Head by head, with one weight for all query heads and one for all key heads. Heads have an even number of
        /// channels.
        EachHead = "each_head",
        /// All queries of a token together, and all keys of a token, with a weight for each channel. Goes with
        /// [`NormKind::Rms`].
        AllHeads = "all_heads",
    }
}

/// The kind of a block's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKind {
    /// No attention: a token sees no other token.
    None,
    /// Groups of query heads share a key and value head (Ainslie et al., 2023).
    Grouped {
        /// Each head has a learnt score that takes part in the softmax and has no value.
        sinks: bool,
    },
    /// Keys and values of all heads follow from a narrow vector (DeepSeek-V2, 2024). There is one key head in the sense of
    /// [`GptShape::kv_heads`], since all ranks compute that vector. It goes with rotary positions.
    Latent(Latent),
}

/// The sizes of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Width of the vector that queries follow from; `None`: they follow from the residual stream.
    pub query_rank: Option<usize>,
    /// Width of the vector that keys and values follow from.
    pub rank: usize,
    /// Channels of a head.
    pub head: LatentHead,
}

impl AttentionKind {
    /// Whether heads have sinks.
    pub(crate) fn has_sinks(self) -> bool {
        matches!(self, AttentionKind::Grouped { sinks: true })
    }
}

/// The blocks with a window: a token sees no more than a window of tokens there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// The most tokens that a token sees, that token included; above 0.
    pub tokens: usize,
    /// Whether a block has the window, repeated over all blocks; empty if all blocks have the window.
    pub pattern: Vec<bool>,
}

/// The layers of a model that predict tokens beyond the next one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FurtherTokens {
    /// The number of such layers, from 1 to [`FurtherTokens::MOST`]: the first predicts the token after the next.
    pub depths: usize,
    /// The factor of the mean of the further tokens' losses, which training minimises; f32 in kernels.
    pub factor: f64,
}

impl FurtherTokens {
    /// No model has more such layers.
    pub const MOST: usize = 4;

    /// The factor of the gradient of each layer's loss.
    pub(crate) fn weight(self) -> f32 {
        (self.factor / self.depths as f64) as f32
    }
}

/// The sizes and choices of a decoder-only transformer.
#[derive(Clone, Debug)]
pub struct GptShape {
    /// The number of blocks. (As layers of a model, embedding and head count too.)
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Channels of a head; `None` for `hidden / heads`; `heads` then divides `hidden`.
    pub head_dim: Option<usize>,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Rows of the table: `vocab` rounded up.
    pub padded_vocab: usize,
    /// A sample has no more tokens.
    pub max_seq_len: usize,
    /// Whether the head's matrix is the embedding's table.
    pub tied: bool,
    /// Embedded tokens are multiplied by the root of `hidden`, rounded to the type of activations.
    pub scaled_embedding: bool,
    /// The attention of blocks.
    pub attention: AttentionKind,
    /// The number whose root divides products of queries and keys; f32 in kernels. `None` for the channels of a head.
    pub query_pre_attn_scalar: Option<f64>,
    /// Attention scores `s` become `cap * tanh(s / cap)`; f32 in kernels. `None` for no cap.
    pub attention_soft_cap: Option<f64>,
    /// Likewise the head's logits.
    pub logit_soft_cap: Option<f64>,
    /// The blocks with a limited view of earlier tokens; `None` if a token always sees all earlier tokens.
    pub windows: Option<Windows>,
    /// The kind of all norms.
    pub norm: NormKind,
    /// The places of norms in blocks.
    pub norm_placement: NormPlacement,
    /// Added to the variance in norms; f32 in kernels.
    pub norm_eps: f64,
    /// The feed-forward layer of all blocks.
    pub feed_forward: FeedForward,
    /// The blocks with experts: their activation is that of `feed_forward`, which has a gate.
    pub experts: Option<Experts>,
    /// How blocks know positions.
    pub position: Position,
    /// Whether linear layers and LayerNorms have biases, routers and experts included.
    pub bias: bool,
    /// The layer that computes queries, keys and values has a bias, also without `bias`.
    pub qkv_bias: bool,
    /// How queries and keys are normalised; `None` if queries and keys are not.
    pub qk_norm: Option<QkNorm>,
    /// Standard deviation of the first values of matrices; f32 in the numbers drawn.
    pub init_std: f64,
    /// Whether matrices that write to the residual stream start smaller, by the root of the number of additions to the
    /// stream.
    pub scaled_residual_init: bool,
    /// Dropout of embeddings and of the values that blocks add to the residual stream.
    pub hidden_dropout: f64,
    /// Dropout of attention probabilities.
    pub attention_dropout: f64,
    /// Whether backward recomputes activations and normed values, which then are not kept.
    pub recompute: bool,
    /// The number of tiles of a microbatch's tokens that dense feed-forward layers go through, one in memory at a time;
    /// such layers save inputs alone. Not with factors of 8 bits or adapters of these layers.
    pub mlp_tiles: usize,
    /// The loss is computed in this many pieces of a microbatch's rows, one after the other, so that only one piece of
    /// the logits is in memory; divides the tokens of a microbatch.
    pub loss_pieces: usize,
    /// The z-loss is this times the square of each row's logsumexp; f32 in kernels. 0: there is no z-loss.
    pub z_loss_multiplier: f64,
    /// Training also predicts tokens beyond the next one. Goes without learned positions, `preference`, `own_loss` and `lora`.
    pub further_tokens: Option<FurtherTokens>,
    /// The loss of pairs of answers: training learns to prefer one of the two. A sample then has
    /// [pairs](crate::model::SampleRow::pairs), and a piece of the loss has whole samples. `None`: the loss is of targets.
    pub preference: Option<Preference>,
    /// Seed of dropout.
    pub seed: u64,
    /// The number formats of weights and activations.
    pub precision: Precision,
    /// How linear layers of blocks multiply in 8 bits; `None` for products in more bits. Goes with [`Precision::Bf16`].
    pub fp8: Option<Fp8>,
    /// Low-rank adapters of linear layers of blocks. Does not go with 8-bit factors.
    pub lora: Option<Lora>,
    /// A part in place of dense feed-forward layers. Goes without `mlp_tiles`.
    pub own_part: Option<Arc<dyn OwnPart>>,
    /// A loss in place of cross-entropy. Goes without `preference`, `z_loss_multiplier`, `logit_soft_cap` and ranks that
    /// divide the vocabulary.
    pub own_loss: Option<Arc<dyn OwnLoss>>,
}

impl Default for GptShape {
    /// GPT-2 with 124 million parameters, without dropout.
    fn default() -> GptShape {
        GptShape {
            layers: 12,
            hidden: 768,
            heads: 12,
            kv_heads: 12,
            head_dim: None,
            ffn: 3072,
            vocab: 50_257,
            padded_vocab: 50_304,
            max_seq_len: 1024,
            tied: true,
            scaled_embedding: false,
            attention: AttentionKind::Grouped { sinks: false },
            query_pre_attn_scalar: None,
            attention_soft_cap: None,
            logit_soft_cap: None,
            windows: None,
            norm: NormKind::Layer,
            norm_placement: NormPlacement::Pre,
            norm_eps: 1e-5,
            feed_forward: FeedForward::Gelu,
            experts: None,
            position: Position::Learned { positions: 1024 },
            bias: true,
            qkv_bias: false,
            qk_norm: None,
            init_std: 0.02,
            scaled_residual_init: true,
            hidden_dropout: 0.0,
            attention_dropout: 0.0,
            recompute: false,
            mlp_tiles: 1,
            loss_pieces: 1,
            z_loss_multiplier: 0.0,
            further_tokens: None,
            preference: None,
            seed: 0,
            precision: Precision::F32,
            fp8: None,
            lora: None,
            own_part: None,
            own_loss: None,
        }
    }
}

impl GptShape {
    /// The number of ranks that store the same key heads, among the ranks that share a layer: 1 unless there are fewer
    /// key heads than ranks.
    pub fn key_head_copies(&self, tensor_ranks: usize) -> usize {
        (tensor_ranks / self.kv_heads.max(1)).max(1)
    }

    /// Whether the last layer reads the embedding's table too.
    pub fn table_is_shared(&self) -> bool {
        self.tied || self.further_tokens.is_some()
    }

    /// Channels of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden / self.heads)
    }

    /// The tokens that a token sees in the attention of a block.
    pub fn mask(&self, block: usize) -> Mask {
        let windows = self.windows.as_ref().filter(|windows| {
            let pattern = &windows.pattern;
            pattern.is_empty() || pattern[self.of_model(block) % pattern.len()]
        });
        Mask { window: windows.map(|windows| windows.tokens) }
    }

    /// The experts of a block; `None` if the block's feed-forward layer is dense.
    pub fn block_experts(&self, block: usize) -> Option<&Experts> {
        let block = self.of_model(block);
        self.experts.as_ref().filter(|Experts { pattern, .. }| pattern.is_empty() || pattern[block % pattern.len()])
    }

    /// The numbers of the blocks that predict [further tokens](GptShape::further_tokens): they come after the model's own.
    pub fn further_blocks(&self) -> Range<usize> {
        self.layers..self.layers + self.further_tokens.map_or(0, |further| further.depths)
    }

    /// The block of the model that a block is alike: itself, or the last one if it predicts further tokens.
    fn of_model(&self, block: usize) -> usize {
        block.min(self.layers.saturating_sub(1))
    }

    /// Whether training drops any values.
    pub(crate) fn drops(&self) -> bool {
        let of_adapters = self.lora.as_ref().map_or(0.0, |lora| lora.dropout);
        self.hidden_dropout > 0.0 || self.attention_dropout > 0.0 || of_adapters > 0.0
    }

    /// Channels of a head that rotate.
    pub(crate) fn rotated_channels(&self) -> usize {
        match self.attention {
            AttentionKind::Latent(latent) => latent.head.rotated,
            AttentionKind::None | AttentionKind::Grouped { .. } => self.head_dim(),
        }
    }

    /// How attention makes scores of products.
    pub(crate) fn scores(&self) -> Scores {
        let of_latent = match self.attention {
            AttentionKind::Latent(latent) => Some(latent.head.query() as f64),
            AttentionKind::None | AttentionKind::Grouped { .. } => None,
        };
        let scale = self.query_pre_attn_scalar.or(of_latent).map(|scalar| (1.0 / scalar.sqrt()) as f32);
        Scores { scale, soft_cap: self.attention_soft_cap.map(|cap| cap as f32) }
    }

    /// The factor of embedded tokens.
    pub(crate) fn embedding_scale(&self) -> f32 {
        let root = (self.hidden as f64).sqrt() as f32;
        match self.precision.activations() {
            _ if !self.scaled_embedding => 1.0,
            DType::Bf16 => bf16::from_f32(root).to_f32(),
            _ => root,
        }
    }

    /// How the linear layers of a block multiply in 8 bits; `None` for products in more bits.
    pub(crate) fn block_fp8(&self, block: usize) -> Option<Fp8> {
        self.fp8.filter(|fp8| fp8.covers(self.of_model(block), self.layers))
    }

    /// First values of matrices.
    pub(crate) fn matrix_init(&self) -> Init {
        Init::Normal(self.init_std as f32)
    }

    /// First values of matrices that write to the residual stream: each of the blocks adds to it twice.
    pub(crate) fn residual_init(&self) -> Init {
        let additions = 2.0 * self.layers as f32;
        let std = self.init_std as f32;
        Init::Normal(if self.scaled_residual_init { std / additions.sqrt() } else { std })
    }
}
