//! Low-rank adapters: their sizes, and the matrices that have them.

/// A matrix that has an adapter in each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LoraTarget {
    /// The projection to queries.
    Query,
    /// The projection to keys.
    Key,
    /// The projection to values.
    Value,
    /// The projection to queries, keys and values, as one matrix.
    QueryKeyValue,
    /// Of latent attention: the projection to the latent of queries.
    QueryLatent,
    /// Of latent attention: the projection to the latent of keys and values, and to the rotated channels of keys.
    KeyValueLatent,
    /// Of latent attention: the projection from the latent of queries to queries.
    QueryOfLatent,
    /// Of latent attention: the projection from their latent to keys and values.
    KeyValueOfLatent,
    /// The projection after attention.
    AttentionOutput,
    /// The gate of a gated feed-forward layer, and the matrix of the gated values, as one matrix.
    GateUp,
    /// The gate of a gated feed-forward layer.
    Gate,
    /// The feed-forward layer's first matrix; of a gated one the matrix of the gated values.
    Up,
    /// The feed-forward layer's last matrix.
    Down,
}

/// Whether a parameter of that name belongs to an adapter.
pub fn is_adapter(name: &str) -> bool {
    name.ends_with(".lora_A") || name.ends_with(".lora_B")
}

/// The adapters of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// The inner size of `B A`.
    pub rank: usize,
    /// The numerator of the factor `alpha / rank`, by which adapters' products are added.
    pub alpha: f64,
    /// Dropout of the adapters' input.
    pub dropout: f64,
    /// The matrices with adapters, each once.
    pub targets: Vec<LoraTarget>,
}

impl Lora {
    /// The factor of an adapter's product.
    pub fn scale(&self) -> f32 {
        (self.alpha / self.rank as f64) as f32
    }
}
