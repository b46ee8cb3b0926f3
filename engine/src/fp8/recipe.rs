//! Recipes: the formats, and how scales are made.

use common::choice;
use device::DType;

choice! {
    /// How activations and gradients are scaled. The scales of weights always follow from their present values.
    pub enum Fp8Recipe {
        /// One scale, from the tensor just before the tensor is quantised. Needs one more pass over it.
        Tensorwise = "tensorwise",
        /// One scale, from the largest magnitudes of earlier steps. Needs no other pass over the tensor; the magnitudes
        /// are part of checkpoints.
        Delayed = "delayed",
        /// For outputs and input gradients a scale for each token, from the token's values, and one for each row of the
        /// weight's copies. Weight gradients sum over tokens, so their factors have one delayed scale each.
        Rowwise = "rowwise",
        /// Scales from blocks of 128 values, while the values are quantised: activations and gradients have a scale for
        /// 128 neighbours along the size that a product sums over, weights one for 128 x 128 values. Scales are powers
        /// of two. Needs no other pass over the tensor, and no values of other ranks or steps. All factors are E4M3,
        /// and all products accumulate precisely.
        ///
        /// This is DeepSeek-V3's recipe (2024), and Transformer Engine's `Float8BlockScaling`.
        Blockwise = "blockwise",
    }
}

/// The values that share a scale in the factors of a product. Both factors have the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaling {
    /// The whole tensor.
    Tensor,
    /// A row.
    Rows,
    /// 128 neighbours in a row, or 128 x 128 values of a weight.
    Blocks,
}

impl Fp8Recipe {
    /// Whether some scales follow from magnitudes of earlier steps. Such magnitudes are part of checkpoints.
    pub fn keeps_magnitudes(self) -> bool {
        match self {
            Fp8Recipe::Tensorwise | Fp8Recipe::Blockwise => false,
            Fp8Recipe::Delayed | Fp8Recipe::Rowwise => true,
        }
    }

    /// The scales of the factors of outputs and of input gradients.
    pub(crate) fn scaling(self) -> Scaling {
        match self {
            Fp8Recipe::Tensorwise | Fp8Recipe::Delayed => Scaling::Tensor,
            Fp8Recipe::Rowwise => Scaling::Rows,
            Fp8Recipe::Blockwise => Scaling::Blocks,
        }
    }

    /// The scales of the factors of weight gradients.
    pub(crate) fn weight_gradient_scaling(self) -> Scaling {
        match self {
            Fp8Recipe::Tensorwise | Fp8Recipe::Delayed | Fp8Recipe::Rowwise => Scaling::Tensor,
            Fp8Recipe::Blockwise => Scaling::Blocks,
        }
    }

    /// Whether a tensor has one scale in all products. Ranks that have rows of a tensor each can then quantise their
    /// own rows and gather bytes: the transposed copy is made of the same bytes.
    pub fn has_one_scale(self) -> bool {
        self.scaling() == Scaling::Tensor && self.weight_gradient_scaling() == Scaling::Tensor
    }

    /// Whether forward products accumulate fast, as in Transformer Engine's recipes. Others never do.
    pub(crate) fn is_fast_forward(self) -> bool {
        self != Fp8Recipe::Blockwise
    }
}

choice! {
    /// The types of the factors.
    pub enum Fp8Format {
        /// E4M3 for activations and weights, E5M2 for gradients: they have a wider range.
        Hybrid = "hybrid",
        /// E4M3 for all.
        E4m3 = "e4m3",
    }
}

/// How linear layers of blocks multiply in 8 bits. Attention, norms, embedding and head stay in 16 bits, residual stream and
/// outputs of products too. Weight gradients are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8 {
    /// How scales are made.
    pub recipe: Fp8Recipe,
    /// The types of the factors. Blockwise scaling has [`Fp8Format::E4m3`].
    pub format: Fp8Format,
    /// Delayed scales: how many steps' largest magnitudes count, this step's among them.
    pub amax_history: usize,
    /// Delayed scales: powers of two that are left free above the largest magnitude.
    pub margin: i32,
    /// The numbers of blocks at the start and at the end of the model that stay in 16 bits.
    pub bf16_blocks: [usize; 2],
    /// Whether, with a distributed optimizer, each rank quantises the weights that the rank updates, and bytes are
    /// gathered. Otherwise 16-bit weights are gathered, and each rank quantises all of them. The bits are the same.
    /// Only for recipes with one scale for each weight.
    pub gathers_weights: bool,
}

impl Default for Fp8 {
    /// Delayed scaling in the hybrid format, in all blocks: the fastest on an H200.
    fn default() -> Fp8 {
        Fp8 {
            recipe: Fp8Recipe::Delayed,
            format: Fp8Format::Hybrid,
            amax_history: 1,
            margin: 0,
            bf16_blocks: [0, 0],
            gathers_weights: false,
        }
    }
}

impl Fp8 {
    /// The type of activations and weights.
    pub fn input(self) -> DType {
        DType::F8E4M3
    }

    /// The type of output gradients.
    pub fn grad_output(self) -> DType {
        match self.format {
            Fp8Format::Hybrid => DType::F8E5M2,
            Fp8Format::E4m3 => DType::F8E4M3,
        }
    }

    /// Whether a block of `blocks` multiplies in 8 bits.
    pub fn covers(self, block: usize, blocks: usize) -> bool {
        let [first, last] = self.bf16_blocks;
        block >= first && block + last < blocks
    }
}

/// When the copies of a weight are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// When a frozen weight gets values. They serve all steps.
    Once,
    /// In the first microbatch's forward of each step. They serve all products of the step.
    OnceAStep,
    /// In each forward and backward of the weight's layer, in memory that layers share.
    ForEachUse,
}
