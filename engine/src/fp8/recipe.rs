//! Recipes: which formats, and when scales are made.

use common::choice;
use device::DType;

choice! {
    /// When the scales of activations and gradients are made. Weights are always scaled by what they are now.
    pub enum Fp8Recipe {
        /// From the tensor itself, just before it is quantised. Needs one more pass over it.
        Tensorwise = "tensorwise",
        /// From the largest magnitudes of earlier steps. Needs no more pass; the magnitudes are part of checkpoints.
        Delayed = "delayed",
        /// From blocks of 128 values, while they are quantised: activations and gradients have a scale for 128 neighbours
        /// along the size that a product sums over, weights one for 128 x 128 values. Scales are powers of two. Needs no more
        /// pass, and nothing of other ranks or steps. All factors are E4M3, and all products accumulate precisely.
        ///
        /// This is DeepSeek-V3's recipe (2024), and Transformer Engine's `Float8BlockScaling`.
        Blockwise = "blockwise",
    }
}

impl Fp8Recipe {
    /// Whether a tensor has one scale, which is made before it is quantised.
    pub(crate) fn has_one_scale(self) -> bool {
        match self {
            Fp8Recipe::Tensorwise | Fp8Recipe::Delayed => true,
            Fp8Recipe::Blockwise => false,
        }
    }

    /// Whether forward products accumulate fast, as in Transformer Engine's recipes. Others never do.
    pub(crate) fn is_fast_forward(self) -> bool {
        self != Fp8Recipe::Blockwise
    }
}

choice! {
    /// The types of the factors.
    pub enum Fp8Format {
        /// E4M3 for activations and weights, E5M2 for gradients, which have a wider range.
        Hybrid = "hybrid",
        /// E4M3 for all.
        E4m3 = "e4m3",
    }
}

/// How linear layers of blocks multiply in 8 bits. Attention, norms, embedding and head stay in 16 bits, residual stream and
/// outputs of products too. Weight gradients are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8 {
    /// When scales are made.
    pub recipe: Fp8Recipe,
    /// The types of the factors. Blockwise scaling has [`Fp8Format::E4m3`].
    pub format: Fp8Format,
    /// Delayed scaling: how many steps' largest magnitudes count, this step's among them.
    pub amax_history: usize,
    /// Delayed scaling: powers of two that are left free above the largest magnitude.
    pub margin: i32,
    /// Blocks at the start and at the end of the model whose layers stay in 16 bits.
    pub bf16_blocks: [usize; 2],
}

impl Default for Fp8 {
    /// Tensorwise scaling in the hybrid format, in all blocks.
    fn default() -> Fp8 {
        Fp8 {
            recipe: Fp8Recipe::Tensorwise,
            format: Fp8Format::Hybrid,
            amax_history: 1,
            margin: 0,
            bf16_blocks: [0, 0],
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
