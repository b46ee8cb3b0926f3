//! The section `precision`.

use common::choice;
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
        /// In 4 bits: see [`Nf4`](engine::params::Nf4).
        Nf4 = "nf4",
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
