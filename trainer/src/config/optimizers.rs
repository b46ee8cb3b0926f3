//! The optimizers: the word of each, the settings that it reads, and the groups that it updates. To add one: a line in each of
//! the three lists here.

use std::sync::Arc;

use common::{UserError, choice};
use device::DType;
use device::ops::Rule;
use engine::model::is_embedding;
use engine::optimizer::{Muon, ParamGroup};

use crate::config::OptimizerConfig;
use crate::config::checks::within;

choice! {
    /// The kinds of optimizer.
    pub enum OptimizerChoice {
        /// AdamW.
        AdamW = "adamw",
        /// Lion.
        Lion = "lion",
        /// Muon for matrices in blocks, AdamW for the rest.
        Muon = "muon",
        /// Stochastic gradient descent, with or without momentum.
        Sgd = "sgd",
    }
}

impl OptimizerChoice {
    /// The settings that it reads, beside those that all optimizers have.
    pub(super) fn settings(self) -> &'static [&'static str] {
        match self {
            OptimizerChoice::AdamW => {
                &["betas", "eps", "exp_avg_dtype", "exp_avg_sq_dtype", "store_param_remainders", "main_grads_dtype"]
            }
            OptimizerChoice::Lion => &["betas", "exp_avg_dtype", "store_param_remainders", "main_grads_dtype"],
            OptimizerChoice::Muon => {
                &["betas", "eps", "exp_avg_dtype", "exp_avg_sq_dtype", "muon_momentum", "muon_num_ns_steps"]
            }
            OptimizerChoice::Sgd => &["momentum", "store_param_remainders", "main_grads_dtype"],
        }
    }
}

/// The groups of parameters, each with its rule. Muon computes its products in `products`.
///
/// # Errors
/// A value out of its range.
pub(super) fn groups(optimizer: &OptimizerConfig, products: DType) -> Result<Vec<ParamGroup>, UserError> {
    match optimizer.kind {
        OptimizerChoice::AdamW => Ok(grouped(adamw(optimizer)?, optimizer)),
        OptimizerChoice::Lion => {
            let [beta1, beta2] = betas(optimizer)?;
            Ok(grouped(Rule::Lion { beta1, beta2 }, optimizer))
        }
        OptimizerChoice::Muon => {
            let adamw = adamw(optimizer)?;
            let momentum = decay("optimizer.muon_momentum", optimizer.muon_momentum)?;
            let (key, steps) = ("optimizer.muon_num_ns_steps", optimizer.muon_num_ns_steps);
            within(key, steps as f64, (1..=20).contains(&steps), "1 to 20 iterations are made", "set it to 5")?;
            let muon = Arc::new(Muon { momentum, steps, products });
            let matrices = ParamGroup::new(Muon::takes, muon, optimizer.weight_decay as f32);
            Ok([vec![matrices], grouped(adamw, optimizer)].concat())
        }
        OptimizerChoice::Sgd => {
            let momentum = decay("optimizer.momentum", optimizer.momentum)?;
            Ok(grouped(Rule::Sgd { momentum }, optimizer))
        }
    }
}

fn decay(key: &str, value: f64) -> Result<f32, UserError> {
    let is_decay = (0.0..1.0).contains(&value) && (value as f32) < 1.0;
    within(key, value, is_decay, "a decay is in [0, 1), also as f32", "see `trainer options` for defaults")?;
    Ok(value as f32)
}

fn betas(optimizer: &OptimizerConfig) -> Result<[f32; 2], UserError> {
    let [beta1, beta2] = optimizer.betas[..] else {
        return Err(UserError::new(
            format!("optimizer.betas = {:?}", optimizer.betas),
            "AdamW, Lion and Muon have two betas",
            "set optimizer.betas = [0.9, 0.95]",
        ));
    };
    Ok([decay("optimizer.betas", beta1)?, decay("optimizer.betas", beta2)?])
}

fn adamw(optimizer: &OptimizerConfig) -> Result<Rule, UserError> {
    let [beta1, beta2] = betas(optimizer)?;
    within("optimizer.eps", optimizer.eps, optimizer.eps > 0.0, "eps is above 0", "set optimizer.eps = 1e-8")?;
    Ok(Rule::AdamW { beta1, beta2, eps: optimizer.eps as f32 })
}

/// The groups of a rule: matrices decay, apart from embeddings if the user says so.
fn grouped(rule: Rule, optimizer: &OptimizerConfig) -> Vec<ParamGroup> {
    let usual = ParamGroup::decay_matrices(rule, optimizer.weight_decay as f32);
    let without = (!optimizer.decay_embeddings).then(|| ParamGroup::new(is_embedding, usual[0].rule.clone(), 0.0));
    without.into_iter().chain(usual).collect()
}
