//! The section `precision`.

use common::choice;
use device::ops::CodeForm;
use engine::fp8::Fp8Recipe;
use engine::precision::Precision;
use serde::{Deserialize, Serialize};

section!(PrecisionConfig {
    compute: Precision,
    fp8: Fp8Choice,
    fp8_recipe: Fp8Recipe,
    fp8_amax_history: usize,
    fp8_amax_algo: AmaxAlgo,
    fp8_margin: usize,
    fp8_param_gather: bool,
    bf16_blocks: Vec<usize>,
    fp8_metrics_interval: usize,
    frozen_weights: FrozenWeights,
});

choice! {
    /// The memory of frozen weights of linear layers in blocks.
    pub enum FrozenWeights {
        /// In the type that layers compute in.
        Compute = "compute",
        /// As codes of 4 bits: see [`CodeForm::Nf4`].
        Nf4 = "nf4",
        /// As codes of 8 bits: see [`CodeForm::Int8`].
        Int8 = "int8",
    }
}

impl FrozenWeights {
    /// The form of codes; `None` if they are no codes.
    pub fn codes(self) -> Option<CodeForm> {
        match self {
            FrozenWeights::Compute => None,
            FrozenWeights::Nf4 => Some(CodeForm::Nf4),
            FrozenWeights::Int8 => Some(CodeForm::Int8),
        }
    }
}

choice! {
    /// The types of the factors of 8-bit products.
    pub enum Fp8Choice {
        /// There are no 8-bit products.
        None = "none",
        /// See [`Fp8Format::Hybrid`](engine::fp8::Fp8Format::Hybrid).
        Hybrid = "hybrid",
        /// See [`Fp8Format::E4m3`](engine::fp8::Fp8Format::E4m3).
        E4m3 = "e4m3",
    }
}

choice! {
    /// The magnitude in the history that determines a delayed scale.
    pub enum AmaxAlgo {
        /// The largest.
        Max = "max",
        /// The newest.
        MostRecent = "most_recent",
    }
}
