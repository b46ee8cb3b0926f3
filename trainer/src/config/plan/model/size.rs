//! The counts of a model.

use common::format::count;
use engine::params::ParamSpec;

use super::ModelPlan;

/// The counts of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelSize {
    /// Parameters, padding not counted.
    pub parameters: usize,
    /// The parameters that a token passes: of all experts the ones that it takes.
    pub active_parameters: usize,
    /// Losses of a sample: one for each token, or 1 for a row.
    pub losses_per_sample: usize,
    /// Training FLOPs for each loss: 6 per parameter that is multiplied, and causal attention.
    pub flops_per_token: f64,
}

impl ModelSize {
    /// The parameters in words, such as `8.1M parameters, 2.3M of them active`.
    pub fn words(&self) -> String {
        let active = match self.active_parameters {
            active if active == self.parameters => String::new(),
            active => format!(", {} of them active", count(active as f64)),
        };
        format!("{} parameters{active}", count(self.parameters as f64))
    }

    /// Counts a model.
    pub fn of(model: &ModelPlan) -> ModelSize {
        let specs = model.architecture().specs;
        let elements = |spec: &ParamSpec| spec.whole.iter().product::<usize>();
        let parameters = specs.iter().map(elements).sum();
        let active = specs.iter().map(|spec| spec.share_per_token * elements(spec) as f64).sum::<f64>();
        let (losses_per_sample, flops_per_token) = match model {
            ModelPlan::Gpt(shape) => (shape.max_seq_len, shape.flops_per_token(shape.max_seq_len)),
            ModelPlan::Mlp(shape) => (1, shape.flops_per_row()),
        };
        let active_parameters = active.round() as usize;
        ModelSize { parameters, active_parameters, losses_per_sample, flops_per_token }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model_plan;
    use super::*;
    use crate::config::ConfigSources;

    #[test]
    fn of_experts_those_are_active_that_a_token_takes() {
        let size = |experts: &str| {
            let mut sources = ConfigSources::default();
            let text = format!("[model]\npreset = \"tiny-llama\"\nlayers = 3\nffn = 80\n{experts}");
            sources.read_text(&text, "test").unwrap();
            ModelSize::of(&model_plan(&sources.resolve()).unwrap())
        };
        let dense = size("");
        assert_eq!((dense.active_parameters, dense.words().contains("active")), (dense.parameters, false));
        // Two of three blocks: three matrices of each expert, and the router.
        let mixture = size("experts = 6\nexperts_per_token = 2\nexpert_ffn = 40\nexpert_pattern = [0, 1, 1]");
        let (expert, router, feed_forward) = (3 * 40 * 64, 6 * 64, 3 * 80 * 64);
        assert_eq!(mixture.parameters, dense.parameters + 2 * (6 * expert + router) - 2 * feed_forward);
        assert_eq!(mixture.active_parameters, dense.parameters + 2 * (2 * expert + router) - 2 * feed_forward);
        assert_eq!(mixture.words().matches("active").count(), 1);
        // Six FLOPs for each parameter that is multiplied.
        let more = 6 * (2 * (2 * expert + router) - 2 * feed_forward) as i64;
        assert_eq!((mixture.flops_per_token - dense.flops_per_token) as i64, more);
    }
}
