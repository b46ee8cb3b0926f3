//! The optimizer of a run, checked.

use std::sync::Arc;

use common::UserError;
use device::DType;
use engine::model::is_embedding;
use engine::optimizer::{AdamW, Lion, MomentTypes, Muon, ParamGroup, Sgd, SkipStep, UpdateRule};

use crate::config::checks::{at_least, at_most, fits_f32, require, within};
use crate::config::learning_rate::{Decay, LearningRate};
use crate::config::param_groups::NamedGroup;
use crate::config::{DecayStyle, MomentDtype, OptimizerChoice, OptimizerConfig};

/// What updates the weights, and at which rate.
#[derive(Clone, Debug)]
pub struct OptimizerPlan {
    /// Which parameters are updated how.
    pub groups: Vec<ParamGroup>,
    /// Those of them that the user named, for the plan box.
    pub named: Vec<NamedGroup>,
    /// Largest gradient norm; 0 for no clipping.
    pub clip: f32,
    /// The types of moments.
    pub moments: MomentTypes,
    /// Which steps make no update because they are spikes.
    pub skip_step: Option<SkipStep>,
    /// Learning rate by step.
    pub learning_rate: LearningRate,
}

impl OptimizerPlan {
    /// The plan of a configuration for a run of `steps` steps. Muon computes its products in `products`.
    ///
    /// # Errors
    /// A value out of its range.
    pub fn new(optimizer: &OptimizerConfig, products: DType, steps: usize) -> Result<OptimizerPlan, UserError> {
        require(optimizer.weight_decay >= 0.0 && optimizer.clip >= 0.0, || {
            UserError::new(
                format!("optimizer.weight_decay = {}, clip = {}", optimizer.weight_decay, optimizer.clip),
                "neither is negative",
                "set them to 0 to turn them off",
            )
        })?;
        for (key, value) in [
            ("optimizer.lr", optimizer.lr),
            ("optimizer.min_lr", optimizer.min_lr),
            ("optimizer.eps", optimizer.eps),
            ("optimizer.momentum", optimizer.momentum),
            ("optimizer.weight_decay", optimizer.weight_decay),
            ("optimizer.clip", optimizer.clip),
        ] {
            fits_f32(key, value)?;
        }
        Ok(OptimizerPlan {
            groups: groups(optimizer, products)?,
            named: Vec::new(),
            clip: optimizer.clip as f32,
            moments: moments(optimizer)?,
            skip_step: skip_step(optimizer)?,
            learning_rate: learning_rate(optimizer, steps)?,
        })
    }

    /// The same, with these groups before all others.
    pub fn with_named(self, named: Vec<NamedGroup>) -> OptimizerPlan {
        OptimizerPlan { groups: NamedGroup::before(&named, self.groups), named, ..self }
    }
}

fn groups(optimizer: &OptimizerConfig, products: DType) -> Result<Vec<ParamGroup>, UserError> {
    let decay = |key: &str, value: f64| {
        let is_decay = (0.0..1.0).contains(&value) && (value as f32) < 1.0;
        within(key, value, is_decay, "a decay is in [0, 1), also as f32", "see `trainer options` for defaults")
    };
    if optimizer.kind == OptimizerChoice::Sgd {
        decay("optimizer.momentum", optimizer.momentum)?;
        return Ok(grouped(Sgd { momentum: optimizer.momentum as f32 }, optimizer));
    }
    let [beta1, beta2] = optimizer.betas[..] else {
        return Err(UserError::new(
            format!("optimizer.betas = {:?}", optimizer.betas),
            "AdamW, Lion and Muon have two betas",
            "set optimizer.betas = [0.9, 0.95]",
        ));
    };
    decay("optimizer.betas", beta1)?;
    decay("optimizer.betas", beta2)?;
    let (beta1, beta2) = (beta1 as f32, beta2 as f32);
    if optimizer.kind == OptimizerChoice::Lion {
        return Ok(grouped(Lion { beta1, beta2 }, optimizer));
    }
    within("optimizer.eps", optimizer.eps, optimizer.eps > 0.0, "eps is above 0", "set optimizer.eps = 1e-8")?;
    let adamw = AdamW { beta1, beta2, eps: optimizer.eps as f32 };
    if optimizer.kind != OptimizerChoice::Muon {
        return Ok(grouped(adamw, optimizer));
    }
    decay("optimizer.muon_momentum", optimizer.muon_momentum)?;
    let (key, steps) = ("optimizer.muon_num_ns_steps", optimizer.muon_num_ns_steps);
    within(key, steps as f64, (1..=20).contains(&steps), "1 to 20 iterations are made", "set it to 5")?;
    let muon = Muon { momentum: optimizer.muon_momentum as f32, steps, products };
    let matrices = ParamGroup::new(Muon::takes, Arc::new(muon), optimizer.weight_decay as f32);
    Ok([vec![matrices], grouped(adamw, optimizer)].concat())
}

fn moments(optimizer: &OptimizerConfig) -> Result<MomentTypes, UserError> {
    let dtype = |of: MomentDtype| if of == MomentDtype::Bf16 { DType::Bf16 } else { DType::F32 };
    let types = MomentTypes { exp_avg: dtype(optimizer.exp_avg_dtype), exp_avg_sq: dtype(optimizer.exp_avg_sq_dtype) };
    let decay = optimizer.betas.get(1).copied().unwrap_or(0.0);
    require(types.exp_avg_sq == DType::F32 || decay <= 0.99, || {
        UserError::new(
            format!("optimizer.exp_avg_sq_dtype = \"bf16\" with optimizer.betas = {:?}", optimizer.betas),
            "a second moment in bf16 decays by at least 1 % a step: rounding to nearest would undo less",
            "set optimizer.betas = [0.9, 0.95], or optimizer.exp_avg_sq_dtype = \"fp32\"",
        )
    })?;
    Ok(types)
}

fn skip_step(optimizer: &OptimizerConfig) -> Result<Option<SkipStep>, UserError> {
    let (key, sigma_factor) = ("optimizer.skip_step_sigma_factor", optimizer.skip_step_sigma_factor);
    within(key, sigma_factor, sigma_factor >= 0.0, "it is not negative", "set it to 6, or 0 to skip no step")?;
    fits_f32(key, sigma_factor)?;
    let interval = optimizer.skip_step_interval;
    at_least("optimizer.skip_step_interval", interval, 2)?;
    at_most("optimizer.skip_step_interval", interval, 1 << 16)?;
    Ok((sigma_factor > 0.0).then_some(SkipStep { sigma_factor: sigma_factor as f32, interval }))
}

/// The groups of a rule: matrices decay, apart from embeddings if the user says so.
fn grouped(rule: impl UpdateRule + 'static, optimizer: &OptimizerConfig) -> Vec<ParamGroup> {
    let usual = ParamGroup::decay_matrices(rule, optimizer.weight_decay as f32);
    let without = (!optimizer.decay_embeddings).then(|| {
        let rule = usual[0].rule.clone();
        ParamGroup::new(is_embedding, rule, 0.0)
    });
    without.into_iter().chain(usual).collect()
}

fn learning_rate(optimizer: &OptimizerConfig, steps: usize) -> Result<LearningRate, UserError> {
    let (peak, floor) = (optimizer.lr, optimizer.min_lr);
    within("optimizer.lr", peak, peak > 0.0, "a learning rate is above 0", "set optimizer.lr = 3e-4")?;
    let decay = match optimizer.schedule {
        DecayStyle::Constant => Decay::None,
        DecayStyle::Cosine => Decay::Cosine,
        DecayStyle::Linear => Decay::Linear,
        DecayStyle::InverseSqrt => Decay::InverseSqrt,
        DecayStyle::Wsd => Decay::StableThenLinear { steps: optimizer.decay_steps },
    };
    if decay != Decay::None {
        within(
            "optimizer.min_lr",
            floor,
            (0.0..=peak).contains(&floor),
            "a decay ends at or below optimizer.lr, and not below 0",
            "set optimizer.min_lr = optimizer.lr / 10",
        )?;
    }
    Ok(LearningRate { peak, floor, warmup: optimizer.warmup_steps, decay, steps })
}

#[cfg(test)]
mod tests {
    use engine::params::{Init, ParamSpec};

    use super::*;
    use crate::config::Layers;

    #[test]
    fn embeddings_decay_unless_the_user_says_otherwise() {
        let decays = |settings: &[(&str, &str)]| {
            let mut layers = Layers::default();
            settings.iter().for_each(|(key, value)| layers.set(key, value, "test").unwrap());
            let groups = OptimizerPlan::new(&layers.resolve().optimizer, DType::F32, 10).unwrap().groups;
            [
                ("wte.weight", 2),
                ("wpe.weight", 2),
                ("lm_head.weight", 2),
                ("h.0.mlp.c_fc.weight", 2),
                ("ln_f.weight", 1),
            ]
            .map(|(name, axes)| {
                let spec = match axes {
                    1 => ParamSpec::new(name, [4], Init::Constant(0.0), 0),
                    _ => ParamSpec::new(name, [4, 4], Init::Constant(0.0), 0),
                };
                groups.iter().find(|group| group.has(&spec)).unwrap().weight_decay
            })
        };
        assert_eq!(decays(&[]), [0.1, 0.1, 0.1, 0.1, 0.0]);
        for kind in ["adamw", "lion", "muon", "sgd"] {
            let settings = [("optimizer.decay_embeddings", "false"), ("optimizer.kind", kind)];
            assert_eq!(decays(&settings), [0.0, 0.0, 0.1, 0.1, 0.0]);
        }
    }
}
