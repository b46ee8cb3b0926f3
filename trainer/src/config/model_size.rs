//! The counts of a model.

use crate::config::model_plan::ModelPlan;

/// The counts of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelSize {
    /// Parameters, padding not counted.
    pub parameters: usize,
    /// Losses of a sample: one for each token, or 1 for a row.
    pub losses_per_sample: usize,
    /// Training FLOPs for each loss: 6 per parameter that is multiplied, and causal attention.
    pub flops_per_token: f64,
}

impl ModelSize {
    /// Counts a model.
    pub fn of(model: &ModelPlan) -> ModelSize {
        let specs = model.architecture().specs;
        let parameters = specs.iter().map(|spec| spec.whole.iter().product::<usize>()).sum();
        let (losses_per_sample, flops_per_token) = match model {
            ModelPlan::Gpt(shape) => (shape.seq, shape.flops_per_token()),
            ModelPlan::Mlp(shape) => (1, shape.flops_per_row()),
        };
        ModelSize { parameters, losses_per_sample, flops_per_token }
    }
}
