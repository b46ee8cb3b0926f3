//! The layers of experts of a configuration, checked.

use common::{Mistakes, UserError};
use device::ops::{ExpertGroups, GroupScore, Router, Score};
use engine::model::{BalanceLoss, Capacity, Experts};

use crate::config::checks::{at_least, at_most, fits_f32, holdable, require, within};
use crate::config::plan::ranks::tokens_here;
use crate::config::{
    BalanceGroup, ExpertGroupScore, FeedForward, Fp8Choice, ModelConfig, RouterScore, RunConfig, TrainConfig,
};

/// CUDA kernels choose at most this many experts for a token, of at most [`MOST_EXPERTS`].
const MOST_PER_TOKEN: usize = 32;
const MOST_EXPERTS: usize = 512;
/// CUDA kernels have a thread of a warp for each group of experts.
const MOST_GROUPS: usize = 32;

/// The experts of the model; `None` for a model of dense layers alone. `ffn` is the width of dense layers.
///
/// # Errors
/// The rules that are broken.
pub(super) fn experts_plan(config: &RunConfig, ffn: usize) -> Result<Option<Experts>, UserError> {
    let (model, train) = (&config.model, &config.train);
    if model.experts == 0 {
        return Ok(None);
    }
    let ffn = model.expert_ffn.unwrap_or(ffn);
    let mut mistakes = Mistakes::default();
    // Rows are multiplied by these numbers.
    let counted = mistakes.keep(check_counts(model));
    counted.and_then(|()| mistakes.keep(check_widths(config, ffn)));
    mistakes.keep(check_activation(model));
    mistakes.keep(check_pattern(model));
    mistakes.keep(check_8_bits(config, ffn));
    mistakes.keep(check_loads(config));
    mistakes.keep(check_row_budget(config));
    let router = mistakes.keep(router(config));
    let capacity = mistakes.keep(capacity(model));
    let bias_update_rate = mistakes.keep(bias_update_rate(config));
    let balance = mistakes.keep(balance(train));
    let z_loss = mistakes.keep(multiplier("train.router_z_loss_multiplier", train.router_z_loss_multiplier));
    mistakes.end()?;
    let (Some(router), Some(capacity), Some(bias_update_rate), Some(balance), Some(z_loss_multiplier)) =
        (router, capacity, bias_update_rate, balance, z_loss)
    else {
        unreachable!("without a mistake all are there")
    };
    let experts = Experts {
        count: model.experts,
        per_token: model.experts_per_token,
        ffn,
        shared_ffn: model.shared_expert_ffn,
        pattern: model.expert_pattern.iter().map(|&has| has == 1).collect(),
        router,
        capacity,
        row_budget: None,
        bias_update_rate,
        balance,
        z_loss_multiplier,
    };
    // Gathered tokens have no rows that ranks exchange.
    let budget = config.parallel.expert_row_budget.filter(|_| !experts.gather_tokens(config.parallel.expert));
    Ok(Some(Experts { row_budget: budget, ..experts }))
}

fn check_counts(model: &ModelConfig) -> Result<(), UserError> {
    let (count, per_token) = (model.experts, model.experts_per_token);
    at_most("model.experts", count, MOST_EXPERTS)?;
    at_least("model.experts_per_token", per_token, 1)?;
    at_most("model.experts_per_token", per_token, MOST_PER_TOKEN)?;
    require(per_token <= count, || {
        UserError::new(
            format!("model.experts_per_token = {per_token} with model.experts = {count}"),
            "a token passes each expert at most once",
            format!("set model.experts_per_token = {count}, or more experts"),
        )
    })?;
    require(per_token > 1 || !model.router_normalise, || {
        UserError::new(
            "model.experts_per_token = 1 with model.router_normalise = true",
            "the weight of an expert, divided by itself, is always 1, and its router learns nothing from the loss",
            "set model.router_normalise = false (--router-normalise=false)",
        )
    })
}

fn check_activation(model: &ModelConfig) -> Result<(), UserError> {
    require(model.activation != FeedForward::Gelu, || {
        UserError::new(
            format!("model.activation = \"{}\" with model.experts = {}", model.activation, model.experts),
            "experts have a gate",
            "set model.activation = \"swiglu\"",
        )
    })
}

/// Fails on 8-bit settings that products of experts do not have.
fn check_8_bits(config: &RunConfig, ffn: usize) -> Result<(), UserError> {
    let (model, precision) = (&config.model, &config.precision);
    if precision.fp8 == Fp8Choice::None {
        return Ok(());
    }
    let asked = format!("precision.fp8 = \"{}\" with model.experts = {}", precision.fp8, model.experts);
    require(precision.fp8_recipe.has_one_scale(), || {
        UserError::new(
            format!("{asked} and precision.fp8_recipe = \"{}\"", precision.fp8_recipe),
            "8-bit factors of experts have one scale a tensor",
            "set precision.fp8_recipe = \"delayed\" or \"tensorwise\"",
        )
    })?;
    require(model.expert_capacity_factor.is_none(), || {
        UserError::new(
            format!("{asked} and model.expert_capacity_factor"),
            "a scale is that of all rows, and those of dropped choices have no values",
            "leave the capacity out, or set precision.fp8 = \"none\"",
        )
    })?;
    let share = ffn / config.parallel.ranks_of_an_expert().max(1);
    require(share.is_multiple_of(16), || {
        UserError::new(
            format!("{asked} and model.expert_ffn of a rank = {share}"),
            "sizes of 8-bit products are multiples of 16",
            "choose another model.expert_ffn, or set precision.fp8 = \"none\"",
        )
    })
}

fn check_pattern(model: &ModelConfig) -> Result<(), UserError> {
    let pattern = &model.expert_pattern;
    require(pattern.iter().all(|&has| has <= 1) && (pattern.is_empty() || pattern.contains(&1)), || {
        UserError::new(
            format!("model.expert_pattern = {pattern:?}"),
            "it has 1 for a block with experts and 0 for a dense one, and at least one 1",
            "set model.expert_pattern = [0, 1] for every other block, or [] for all",
        )
    })?;
    require((0..model.layers).any(|block| pattern.is_empty() || pattern[block % pattern.len()] == 1), || {
        UserError::new(
            format!("model.expert_pattern = {pattern:?} with model.layers = {}", model.layers),
            "at least one block has experts",
            "set model.expert_pattern = [1, 0] for every other block from the first, or more layers",
        )
    })
}

fn check_widths(config: &RunConfig, ffn: usize) -> Result<(), UserError> {
    let (model, count) = (&config.model, config.model.experts);
    at_least("model.expert_ffn", ffn, 1)?;
    let (tensor, within) = (config.parallel.tensor.max(1), config.parallel.ranks_of_an_expert().max(1));
    for (key, width, ranks) in
        [("model.expert_ffn", ffn, within), ("model.shared_expert_ffn", model.shared_expert_ffn, tensor)]
    {
        at_most(key, width, 1 << 30)?;
        require(width.is_multiple_of(ranks), || {
            UserError::new(
                format!("{key} = {width} with parallel.tensor = {tensor}"),
                "tensor-parallel ranks share the channels of each expert equally",
                format!("set {key} to a multiple of {ranks}"),
            )
        })?;
    }
    holdable("model.experts x expert_ffn x hidden", &[count, 2 * ffn, model.hidden])?;
    // Each rank that divides experts may have the rows of all of them.
    let (tokens, ranks) = (tokens_here(config) * within / tensor, config.parallel.expert.max(1));
    let rows = ranks * tokens * model.experts_per_token.min((count / ranks).max(1));
    holdable("the rows of experts x expert_ffn", &[rows, 2 * ffn.max(model.hidden)])?;
    require(i32::try_from(rows).is_ok(), || {
        UserError::new(
            format!("{rows} rows of experts in a microbatch"),
            "a rank's tokens (train.micro_batch_size x model.seq_length / parallel.context) x model.experts_per_token, and the same \
             of each rank that divides experts with it, are below 2^31",
            "set a smaller train.micro_batch_size",
        )
    })
}

/// Fails if loads are needed both with the choices that are dropped and without.
fn check_loads(config: &RunConfig) -> Result<(), UserError> {
    let (factor, train) = (config.model.expert_capacity_factor, &config.train);
    let is_global = train.balance_loss_over == BalanceGroup::GlobalBatch && train.balance_loss_multiplier > 0.0;
    require(factor.is_none() || !is_global, || {
        UserError::new(
            "train.balance_loss_over = \"global_batch\" with model.expert_capacity_factor",
            "the loads of a step are counted without dropped choices, and the balance loss is about all",
            "set train.balance_loss_over = \"microbatch\", or leave the capacity out",
        )
    })
}

fn check_row_budget(config: &RunConfig) -> Result<(), UserError> {
    let Some(factor) = config.parallel.expert_row_budget else { return Ok(()) };
    let rule = "it is above 0, and at 1 there is room for balanced loads";
    let fix = "set parallel.expert_row_budget = 1.5, or leave it out, and every step has room for all rows";
    within("parallel.expert_row_budget", factor, factor > 0.0 && factor.is_finite(), rule, fix)?;
    require(config.parallel.expert > 1, || {
        UserError::new(
            format!("parallel.expert_row_budget = {factor} with parallel.expert = {}", config.parallel.expert),
            "a budget is for rows that ranks exchange, and these divide experts",
            "leave it out, or set a parallel.expert of 2 or more",
        )
    })
}

fn router(config: &RunConfig) -> Result<Router, UserError> {
    let model = &config.model;
    let scale = model.router_scale;
    within("model.router_scale", scale, scale > 0.0, "it is above 0", "set model.router_scale = 1")?;
    fits_f32("model.router_scale", scale)?;
    Ok(Router {
        score: match model.router_score {
            RouterScore::Softmax => Score::Softmax,
            RouterScore::Sigmoid => Score::Sigmoid,
        },
        groups: groups(model)?,
        normalise: model.router_normalise,
        scale: scale as f32,
        forces_balance: config.train.force_expert_balance,
    })
}

fn groups(model: &ModelConfig) -> Result<Option<ExpertGroups>, UserError> {
    let (count, per_token, experts) = (model.expert_groups, model.expert_groups_per_token, model.experts);
    at_least("model.expert_groups", count, 1)?;
    at_most("model.expert_groups", count, MOST_GROUPS)?;
    if count == 1 {
        return Ok(None);
    }
    let size = experts / count;
    require(experts.is_multiple_of(count) && size > 1, || {
        UserError::new(
            format!("model.expert_groups = {count} with model.experts = {experts}"),
            "groups have equally many experts, two or more",
            "set a model.expert_groups that divides half of the experts, or 1 for no groups",
        )
    })?;
    require((1..=count).contains(&per_token) && model.experts_per_token <= per_token * size, || {
        UserError::new(
            format!("model.expert_groups_per_token = {per_token} with {count} groups of {size} experts"),
            format!("a token's {} experts are in that many groups", model.experts_per_token),
            format!("set model.expert_groups_per_token from {} to {count}", model.experts_per_token.div_ceil(size)),
        )
    })?;
    let score = match model.expert_group_score {
        ExpertGroupScore::Highest => GroupScore::Highest,
        ExpertGroupScore::TwoHighest => GroupScore::TwoHighest,
    };
    Ok(Some(ExpertGroups { count, per_token, score }))
}

fn capacity(model: &ModelConfig) -> Result<Option<Capacity>, UserError> {
    let Some(factor) = model.expert_capacity_factor else { return Ok(None) };
    let (rule, fix) = ("a capacity factor is above 0", "set it to 1.25, or leave it out: then nothing is dropped");
    within("model.expert_capacity_factor", factor, factor > 0.0 && factor.is_finite(), rule, fix)?;
    Ok(Some(Capacity { factor, keeps: model.token_drop_policy }))
}

fn bias_update_rate(config: &RunConfig) -> Result<Option<f64>, UserError> {
    let (key, rate) = ("train.router_bias_update_rate", config.train.router_bias_update_rate);
    within(key, rate, rate >= 0.0, "a rate is not negative", "set it to 0.001, or 0 for biases that stay as they are")?;
    fits_f32(key, rate)?;
    Ok(config.model.router_bias.then_some(rate))
}

fn balance(train: &TrainConfig) -> Result<Option<BalanceLoss>, UserError> {
    let multiplier = multiplier("train.balance_loss_multiplier", train.balance_loss_multiplier)?;
    Ok((multiplier > 0.0).then_some(BalanceLoss { multiplier, over: train.balance_loss_over }))
}

/// The multiplier of a loss.
fn multiplier(key: &str, value: f64) -> Result<f64, UserError> {
    within(key, value, value >= 0.0, "a multiplier is not negative", "set it to 0.001, or 0 for no such loss")?;
    fits_f32(key, value)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigSources, Keeps};

    /// The experts of a model of two blocks with the given settings, or the error.
    fn plan(settings: &str) -> Result<Option<Experts>, String> {
        let model = "model.experts=4 model.activation=swiglu model.bias=false";
        let sources = ConfigSources::of_pairs(&format!("{model} {settings}")).unwrap();
        experts_plan(&sources.resolve(), 96).map_err(|error| error.to_string())
    }

    #[test]
    fn every_rule_is_told_with_the_value_and_the_fix() {
        for (settings, words) in [
            ("model.experts=513", ["model.experts = 513", "at most 512", "smaller"]),
            ("model.experts_per_token=0", ["model.experts_per_token = 0", "at least 1", "= 1"]),
            ("model.experts_per_token=33 model.experts=64", ["= 33", "at most 32", "smaller"]),
            ("model.experts_per_token=5", ["= 5 with model.experts = 4", "at most once", "= 4"]),
            ("model.experts_per_token=1", ["= 1 with model.router_normalise", "always 1", "= false"]),
            ("model.activation=gelu", ["\"gelu\" with model.experts = 4", "have a gate", "\"swiglu\""]),
            (
                "precision.fp8=hybrid precision.fp8_recipe=rowwise",
                ["precision.fp8_recipe = \"rowwise\"", "one scale a tensor", "\"delayed\""],
            ),
            (
                "precision.fp8=hybrid model.expert_capacity_factor=1.5",
                ["model.expert_capacity_factor", "dropped choices", "leave the capacity out"],
            ),
            (
                "precision.fp8=hybrid model.expert_ffn=40",
                ["model.expert_ffn of a rank = 40", "multiples of 16", "another model.expert_ffn"],
            ),
            ("model.expert_pattern=[0,2]", ["model.expert_pattern = [0, 2]", "0 for a dense one", "[0, 1]"]),
            ("model.expert_pattern=[0,0]", ["model.expert_pattern = [0, 0]", "at least one 1", "[0, 1]"]),
            ("model.expert_pattern=[0,0,1]", ["with model.layers = 2", "at least one block", "more layers"]),
            ("model.expert_groups=33", ["model.expert_groups = 33", "at most 32", "smaller"]),
            ("model.expert_groups=3", ["= 3 with model.experts = 4", "equally many", "or 1 for no groups"]),
            ("model.expert_groups=4", ["= 4 with model.experts = 4", "two or more", "divides half"]),
            (
                "model.expert_groups=2 model.expert_groups_per_token=3",
                ["= 3 with 2 groups of 2", "2 experts are in", "from 1 to 2"],
            ),
            (
                "model.expert_groups=2 model.experts_per_token=3",
                ["= 1 with 2 groups of 2", "3 experts are in", "from 2 to 2"],
            ),
            ("model.expert_ffn=0", ["model.expert_ffn = 0", "at least 1", "= 1"]),
            ("model.expert_ffn=9 parallel.tensor=2", ["expert_ffn = 9", "equally", "multiple of 2"]),
            ("model.shared_expert_ffn=7 parallel.tensor=2", ["shared_expert_ffn = 7", "equally", "of 2"]),
            ("model.hidden=100000000000", ["x hidden = 4 x 192", "2^44", "smaller"]),
            (
                "model.seq_length=1000000000 model.expert_ffn=8 model.hidden=8",
                ["4000000000 rows of experts", "below 2^31", "train.micro_batch_size"],
            ),
            (
                "model.expert_capacity_factor=0",
                ["model.expert_capacity_factor = 0", "above 0", "then nothing is dropped"],
            ),
            (
                "model.expert_capacity_factor=-1",
                ["model.expert_capacity_factor = -1", "above 0", "then nothing is dropped"],
            ),
            (
                "model.expert_capacity_factor=2 train.balance_loss_over=global_batch train.balance_loss_multiplier=0.01",
                ["\"global_batch\" with model.expert_capacity_factor", "without dropped choices", "\"microbatch\""],
            ),
            ("model.router_scale=0", ["model.router_scale = 0", "above 0", "= 1"]),
            (
                "train.balance_loss_multiplier=-1",
                ["train.balance_loss_multiplier = -1", "not negative", "0 for no such loss"],
            ),
            (
                "train.router_z_loss_multiplier=-1",
                ["train.router_z_loss_multiplier = -1", "not negative", "0 for no such loss"],
            ),
            (
                "train.router_bias_update_rate=-1",
                ["train.router_bias_update_rate = -1", "not negative", "0 for biases that stay"],
            ),
        ] {
            let error = plan(settings).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{settings}: {error}");
        }
    }

    #[test]
    fn all_rules_that_are_broken_are_told_at_once() {
        let settings = "model.activation=gelu model.experts_per_token=9 model.router_scale=0 model.expert_pattern=[2] \
                        train.balance_loss_multiplier=-1";
        let error = plan(settings).unwrap_err();
        assert!(error.starts_with("5 mistakes"), "{error}");
        for (key, _) in settings.split(' ').filter_map(|pair| pair.split_once('=')) {
            assert!(error.contains(key), "{key} is missing from: {error}");
        }
    }

    #[test]
    fn settings_become_the_sizes_and_choices_of_the_engine() {
        let of = |settings: &str| plan(settings).unwrap();
        assert_eq!(of("model.experts=0 model.expert_pattern=[3]"), None);
        let plain = of("").unwrap();
        assert_eq!((plain.count, plain.per_token, plain.ffn, plain.shared_ffn), (4, 2, 96, 0));
        assert_eq!((plain.balance, plain.z_loss_multiplier, plain.capacity), (None, 0.0, None));
        assert!(plain.pattern.is_empty() && plain.router.normalise && plain.router.scale == 1.0);
        let other = of(
            "model.expert_ffn=24 model.shared_expert_ffn=8 model.expert_pattern=[0,1] model.expert_capacity_factor=1.5 model.token_drop_policy=position model.router_score=sigmoid model.expert_groups=2 train.balance_loss_multiplier=0.5 train.balance_loss_over=sequence train.router_z_loss_multiplier=0.25",
        );
        let other = other.unwrap();
        assert_eq!((other.ffn, other.shared_ffn, other.z_loss_multiplier), (24, 8, 0.25));
        assert_eq!((other.pattern, other.router.score), (vec![false, true], Score::Sigmoid));
        assert_eq!(
            (plain.router.groups, other.router.groups),
            (None, Some(ExpertGroups { count: 2, per_token: 1, score: GroupScore::TwoHighest }))
        );
        assert_eq!(other.capacity, Some(Capacity { factor: 1.5, keeps: Keeps::FirstTokens }));
        assert_eq!(other.balance, Some(BalanceLoss { multiplier: 0.5, over: BalanceGroup::Sequence }));
    }
}
