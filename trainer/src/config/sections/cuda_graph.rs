//! The section `cuda_graph`.

use common::choice;
use serde::{Deserialize, Serialize};

section!(CudaGraphConfig {
    enable: bool,
    scope: GraphScope,
    modules: Vec<String>,
    layers: Vec<usize>,
    warmup_steps: usize,
    mempool: GraphMempool,
    share_io_buffers: bool,
    capture_optimizer: bool,
    overlap_microbatches: bool,
    verify: usize,
    verify_memory: VerifyMemory,
});

choice! {
    /// The extent of one graph.
    pub enum GraphScope {
        /// Each layer's forward and backward.
        PerLayer = "per_layer",
        /// The forward and the backward of each chunk of layers.
        PerChunk = "per_chunk",
        /// All microbatches of a step.
        FullIteration = "full_iteration",
        /// The fastest of them, measured at the run's start.
        Auto = "auto",
    }
}

choice! {
    /// How microbatches share memory.
    pub enum GraphMempool {
        /// Each microbatch in flight has a slot of its own.
        PerMicrobatch = "per_microbatch",
        /// One plan over the whole step.
        Single = "single",
    }
}

choice! {
    /// The memory of the eager step of a verification.
    pub enum VerifyMemory {
        /// In memory of its own.
        Apart = "apart",
        /// The memory of the graphs.
        Shared = "shared",
    }
}
