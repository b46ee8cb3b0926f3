//! The sizes and choices of a decoder-only transformer.

use device::ops::NormKind;

use super::position::Position;
use crate::fp8::Fp8;
use crate::params::Init;
use crate::precision::Precision;

/// Which feed-forward layer blocks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// Two matrices, with GELU in its tanh form between them.
    Gelu,
    /// Three matrices: SiLU of a gate, times a second product (Shazeer, 2020).
    SwiGlu,
}

/// The sizes and choices of a decoder-only transformer.
#[derive(Clone, Debug)]
pub struct GptShape {
    /// Blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Channels of a head; `None` for `hidden / heads`, which `heads` then divides.
    pub head_dim: Option<usize>,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Rows of the table: `vocab` rounded up.
    pub padded_vocab: usize,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Sequences of a microbatch.
    pub batch: usize,
    /// The head uses the embedding's table as its matrix.
    pub tied: bool,
    /// Blocks have attention.
    pub attention: bool,
    /// The kind of all norms.
    pub norm: NormKind,
    /// Added to the variance in norms; f32 in kernels.
    pub norm_eps: f64,
    /// The feed-forward layer of all blocks.
    pub feed_forward: FeedForward,
    /// How blocks know positions.
    pub position: Position,
    /// Linear layers and LayerNorms have biases.
    pub bias: bool,
    /// The layer that computes queries, keys and values has a bias, also without `bias`.
    pub qkv_bias: bool,
    /// Queries and keys are normalised head by head, by RMSNorm, before they are rotated. Heads have an even number of
    /// channels then.
    pub qk_norm: bool,
    /// Standard deviation of the first values of matrices; f32 in the numbers drawn.
    pub init_std: f64,
    /// Matrices that write to the residual stream start smaller, by the root of the number of additions to it.
    pub scaled_residual_init: bool,
    /// Dropout of embeddings and of what blocks add to the residual stream.
    pub hidden_dropout: f64,
    /// Dropout of attention probabilities.
    pub attention_dropout: f64,
    /// Backward recomputes activations and normed values instead of keeping them.
    pub recompute: bool,
    /// The loss is computed in this many pieces of a microbatch's rows, one after the other, so that only one piece of the
    /// logits is in memory; divides `batch * seq`.
    pub loss_pieces: usize,
    /// What the z-loss multiplies the square of each row's logsumexp by; f32 in kernels. 0: there is no z-loss.
    pub z_loss_multiplier: f64,
    /// Seed of dropout.
    pub seed: u64,
    /// The number formats of weights and activations.
    pub precision: Precision,
    /// How linear layers of blocks multiply in 8 bits, where they do. Goes with [`Precision::Bf16`].
    pub fp8: Option<Fp8>,
}

impl Default for GptShape {
    /// GPT-2 with 124 million parameters, on one sequence at a time, without dropout.
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
            seq: 1024,
            batch: 1,
            tied: true,
            attention: true,
            norm: NormKind::Layer,
            norm_eps: 1e-5,
            feed_forward: FeedForward::Gelu,
            position: Position::Learned,
            bias: true,
            qkv_bias: false,
            qk_norm: false,
            init_std: 0.02,
            scaled_residual_init: true,
            hidden_dropout: 0.0,
            attention_dropout: 0.0,
            recompute: false,
            loss_pieces: 1,
            z_loss_multiplier: 0.0,
            seed: 0,
            precision: Precision::F32,
            fp8: None,
        }
    }
}

impl GptShape {
    /// Channels of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden / self.heads)
    }

    /// How the linear layers of a block multiply in 8 bits; `None` where they do not.
    pub(crate) fn block_fp8(&self, block: usize) -> Option<Fp8> {
        self.fp8.filter(|fp8| fp8.covers(block, self.layers))
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
