//! The optimizers: the word of each, the settings that it reads, and the groups that it updates. To add one: a line in
//! each of the lists here. A program may add others: see [`OwnOptimizer`].

use std::sync::{Arc, OnceLock};

use common::{Choice, UserError, choice_as_word};
use device::DType;
use device::ops::Rule;
use engine::model::is_embedding;
use engine::optimizer::{Muon, ParamGroup, UpdateRule};
use engine::params::ParamSpec;

use crate::config::checks::within;
use crate::config::{OptimizerConfig, RunConfig};

/// The kinds of optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizerChoice {
    /// AdamW.
    AdamW,
    /// Lion.
    Lion,
    /// Muon for matrices in blocks, AdamW for the rest.
    Muon,
    /// Stochastic gradient descent, with or without momentum.
    Sgd,
    /// That of this name, which the program adds.
    Own(&'static str),
}

impl Choice for OptimizerChoice {
    const ALL: &'static [OptimizerChoice] =
        &[OptimizerChoice::AdamW, OptimizerChoice::Lion, OptimizerChoice::Muon, OptimizerChoice::Sgd];
    const WORDS: &'static [&'static str] = &["adamw", "lion", "muon", "sgd"];

    fn word(self) -> &'static str {
        match self {
            OptimizerChoice::AdamW => "adamw",
            OptimizerChoice::Lion => "lion",
            OptimizerChoice::Muon => "muon",
            OptimizerChoice::Sgd => "sgd",
            OptimizerChoice::Own(name) => name,
        }
    }

    fn from_word(word: &str) -> Option<OptimizerChoice> {
        let known = OptimizerChoice::ALL.iter().copied().find(|choice| choice.word() == word);
        known.or_else(|| own(word).map(|own| OptimizerChoice::Own(own.name)))
    }
}

/// An optimizer that a program adds: see [`Extensions`](crate::extensions::Extensions).
pub struct OwnOptimizer {
    /// The word of `optimizer.kind`.
    pub name: &'static str,
    /// The settings of `optimizer` that the optimizer reads, beside the settings of all optimizers; such as `betas`.
    pub reads: &'static [&'static str],
    /// The parameters that the optimizer updates; `None` for all. AdamW updates the others.
    pub takes: Option<fn(&ParamSpec) -> bool>,
    /// The rule for a run.
    pub rule: fn(&RunConfig) -> Result<Arc<dyn UpdateRule>, UserError>,
}

static ADDED: OnceLock<&'static [OwnOptimizer]> = OnceLock::new();

/// Adds optimizers. Called once.
pub(crate) fn add(optimizers: &'static [OwnOptimizer]) {
    assert!(ADDED.set(optimizers).is_ok(), "optimizers are added once");
}

/// The optimizer of that name which the program adds.
fn own(name: &str) -> Option<&'static OwnOptimizer> {
    ADDED.get()?.iter().find(|own| own.name == name)
}

choice_as_word!(OptimizerChoice);

impl OptimizerChoice {
    /// The settings that the optimizer reads, beside the settings of all optimizers.
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
            OptimizerChoice::Own(name) => own(name).map_or(&[], |own| own.reads),
        }
    }
}

/// The groups of parameters, with an update rule for each group. Muon computes its products in `products`.
///
/// # Errors
/// A value out of its range.
pub(super) fn groups(config: &RunConfig, products: DType) -> Result<Vec<ParamGroup>, UserError> {
    let optimizer = &config.optimizer;
    match optimizer.kind {
        OptimizerChoice::AdamW => Ok(grouped(Arc::new(adamw(optimizer)?), optimizer)),
        OptimizerChoice::Lion => {
            let [beta1, beta2] = betas(optimizer)?;
            Ok(grouped(Arc::new(Rule::Lion { beta1, beta2 }), optimizer))
        }
        OptimizerChoice::Muon => {
            let adamw = adamw(optimizer)?;
            let momentum = decay("optimizer.muon_momentum", optimizer.muon_momentum)?;
            let (key, steps) = ("optimizer.muon_num_ns_steps", optimizer.muon_num_ns_steps);
            within(key, steps as f64, (1..=20).contains(&steps), "1 to 20 iterations are made", "set it to 5")?;
            let muon = Arc::new(Muon { momentum, steps, products });
            let matrices = ParamGroup::new(Muon::takes, muon, optimizer.weight_decay as f32);
            Ok([vec![matrices], grouped(Arc::new(adamw), optimizer)].concat())
        }
        OptimizerChoice::Sgd => {
            let momentum = decay("optimizer.momentum", optimizer.momentum)?;
            Ok(grouped(Arc::new(Rule::Sgd { momentum }), optimizer))
        }
        OptimizerChoice::Own(name) => {
            let Some(own) = own(name) else { unreachable!("a choice is one of the program's") };
            let rule = (own.rule)(config)?;
            let Some(takes) = own.takes else { return Ok(grouped(rule, optimizer)) };
            let taken = ParamGroup::new(takes, rule, optimizer.weight_decay as f32);
            Ok([vec![taken], grouped(Arc::new(adamw(optimizer)?), optimizer)].concat())
        }
    }
}

/// Whether all rules take master weights that are kept as remainders, and gradients in bf16. Settings that make no rule are
/// refused elsewhere.
pub(super) fn take_16_bits(config: &RunConfig) -> bool {
    let groups = groups(config, DType::F32);
    groups.map_or(true, |groups| groups.iter().all(|group| group.rule.takes_16_bits()))
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
fn grouped(rule: Arc<dyn UpdateRule>, optimizer: &OptimizerConfig) -> Vec<ParamGroup> {
    let usual = ParamGroup::decay_matrices_by(rule.clone(), optimizer.weight_decay as f32);
    let without = (!optimizer.decay_embeddings).then(|| ParamGroup::new(is_embedding, rule, 0.0));
    without.into_iter().chain(usual).collect()
}
