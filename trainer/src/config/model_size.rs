//! The counts of a model.

use crate::config::model_plan::ModelPlan;

/// The counts of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelSize {
    /// Parameters.
    pub parameters: usize,
    /// Losses of a sample: one for each token, or 1 for a row.
    pub losses_per_sample: usize,
    /// Training FLOPs for each loss: 6 per parameter that is multiplied, and causal attention.
    pub flops_per_token: f64,
}

impl ModelSize {
    /// Counts a model.
    pub fn of(model: &ModelPlan) -> ModelSize {
        let architecture = model.architecture();
        let size = |name: &str| {
            let spec = architecture.specs.iter().find(|spec| spec.name == name);
            spec.map_or(0, |spec| spec.shape.elements() / spec.shape.sizes()[0] * spec.rows)
        };
        let parameters: usize = architecture.specs.iter().map(|spec| size(&spec.name)).sum();
        match model {
            ModelPlan::Gpt(shape) => {
                // A lookup multiplies nothing. A tied table is multiplied once, in the head.
                let lookups = size("wpe.weight") + if shape.tied { 0 } else { size("wte.weight") };
                let attention = if shape.attention { 6 * shape.layers * shape.hidden * shape.seq } else { 0 };
                let flops_per_token = (6 * (parameters - lookups) + attention) as f64;
                ModelSize { parameters, losses_per_sample: shape.seq, flops_per_token }
            }
            ModelPlan::Mlp(_) => {
                ModelSize { parameters, losses_per_sample: 1, flops_per_token: (6 * parameters) as f64 }
            }
        }
    }
}
