//! The optimizer of a run, checked.

mod learning_rate;

use common::{Mistakes, UserError};
use device::DType;
use engine::optimizer::{MomentTypes, ParamGroup, SkipStep};

use crate::config::checks::{at_least, at_most, fits_f32, require, within};
use crate::config::optimizers::groups;
use crate::config::plan::parameters::NamedGroup;
use crate::config::{DecayStyle, MomentDtype, OptimizerConfig, RunConfig};
pub use learning_rate::{Decay, LearningRate};

/// Share of the steps that warm up, in a configuration without a number of warm-up steps.
const WARMUP_PERCENT: usize = 3;

/// The optimizer and the learning rates.
#[derive(Clone, Debug)]
pub struct OptimizerPlan {
    /// The parameter groups, with an update rule for each.
    pub groups: Vec<ParamGroup>,
    /// The groups that the user named, for the plan box.
    pub named: Vec<NamedGroup>,
    /// Largest gradient norm; 0 for no clipping.
    pub clip: f32,
    /// The types of moments.
    pub moments: MomentTypes,
    /// The rule for spikes; a step that is a spike makes no update.
    pub skip_step: Option<SkipStep>,
    /// Learning rate by step.
    pub learning_rate: LearningRate,
}

impl OptimizerPlan {
    /// The plan of a configuration.
    ///
    /// # Errors
    /// The values out of their range.
    pub fn new(config: &RunConfig) -> Result<OptimizerPlan, UserError> {
        let (optimizer, products, steps) =
            (&config.optimizer, config.precision.compute.activations(), config.train.steps);
        let mut mistakes = Mistakes::default();
        mistakes.keep(require(optimizer.weight_decay >= 0.0 && optimizer.clip >= 0.0, || {
            UserError::new(
                format!("optimizer.weight_decay = {}, clip = {}", optimizer.weight_decay, optimizer.clip),
                "neither is negative",
                "set them to 0 to turn them off",
            )
        }));
        for (key, value) in [
            ("optimizer.lr", optimizer.lr),
            ("optimizer.min_lr", optimizer.min_lr.unwrap_or(0.0)),
            ("optimizer.eps", optimizer.eps),
            ("optimizer.momentum", optimizer.momentum),
            ("optimizer.weight_decay", optimizer.weight_decay),
            ("optimizer.clip", optimizer.clip),
        ] {
            mistakes.keep(fits_f32(key, value));
        }
        let groups = mistakes.keep(groups(config, products));
        let moments = groups.as_ref().and_then(|_| mistakes.keep(moments(optimizer)));
        let skip_step = mistakes.keep(skip_step(optimizer));
        let learning_rate = mistakes.keep(learning_rate(optimizer, steps));
        mistakes.end()?;
        match (groups, moments, skip_step, learning_rate) {
            (Some(groups), Some(moments), Some(skip_step), Some(learning_rate)) => {
                let clip = optimizer.clip as f32;
                Ok(OptimizerPlan { groups, named: Vec::new(), clip, moments, skip_step, learning_rate })
            }
            _ => unreachable!("each part is made, or there is a mistake"),
        }
    }

    /// The same plan, with the given groups before all others.
    pub fn with_named(self, named: Vec<NamedGroup>) -> OptimizerPlan {
        OptimizerPlan { groups: NamedGroup::before(&named, self.groups), named, ..self }
    }
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

fn learning_rate(optimizer: &OptimizerConfig, steps: usize) -> Result<LearningRate, UserError> {
    let (peak, floor) = (optimizer.lr, floor(optimizer));
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
    let warmup = optimizer.warmup_steps.unwrap_or_else(|| (WARMUP_PERCENT * steps).div_ceil(100));
    Ok(LearningRate { peak, floor, warmup, decay, steps })
}

/// The rate at the end of a decay.
fn floor(optimizer: &OptimizerConfig) -> f64 {
    optimizer.min_lr.unwrap_or_else(|| tenth(optimizer.lr))
}

/// A tenth of a number, by decimal digits: that of 3e-3 is 3e-4. Division would give another number beside it.
fn tenth(number: f64) -> f64 {
    let text = format!("{number:e}");
    let shifted = text.split_once('e').and_then(|(digits, exponent)| {
        let exponent = exponent.parse::<i32>().ok()? - 1;
        format!("{digits}e{exponent}").parse().ok()
    });
    shifted.unwrap_or(number / 10.0)
}

#[cfg(test)]
mod tests {
    use engine::params::{Init, ParamSpec};

    use super::*;
    use crate::config::ConfigSources;

    #[test]
    fn a_decay_ends_at_a_tenth_and_fine_tuning_has_rates_and_a_warm_up_of_its_own() {
        let rates = |text: &str, steps: usize| {
            let sources = ConfigSources::of_pairs(text).unwrap();
            let LearningRate { peak, floor, warmup, decay, .. } =
                learning_rate(&sources.resolve().optimizer, steps).unwrap();
            assert_eq!(decay, Decay::Cosine, "{text}");
            (peak, floor, warmup)
        };
        for (text, expected) in [
            ("", (3e-3, 3e-4, 100)),
            ("optimizer.lr=6e-4", (6e-4, 6e-5, 100)),
            ("optimizer.lr=1.5 optimizer.min_lr=0.5", (1.5, 0.5, 100)),
            ("model.preset=gpt2-124m", (6e-4, 6e-5, 700)),
            ("model.preset=gpt2-124m optimizer.lr=1e-3", (1e-3, 1e-4, 700)),
            ("data.sft=true", (2e-5, 2e-6, 15)),
            ("model.init_from=x", (2e-5, 2e-6, 15)),
            ("model.init_from=x model.preset=gpt2-124m", (2e-5, 2e-6, 15)),
            ("model.init_from=x model.lora_rank=8", (2e-4, 2e-5, 15)),
            ("data.sft=true optimizer.lr=1e-4 optimizer.warmup_steps=7", (1e-4, 1e-5, 7)),
        ] {
            assert_eq!(rates(text, 500), expected, "{text}");
        }
        assert_eq!(rates("data.sft=true", 1).2, 1);
        assert_eq!(rates("data.sft=true", 334).2, 11);
    }

    #[test]
    fn embeddings_decay_unless_the_user_says_otherwise() {
        let decays = |settings: &[(&str, &str)]| {
            let mut sources = ConfigSources::default();
            settings.iter().for_each(|(key, value)| sources.set(key, value, "test").unwrap());
            let groups = OptimizerPlan::new(&sources.resolve()).unwrap().groups;
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
