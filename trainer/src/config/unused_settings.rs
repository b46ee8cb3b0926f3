//! Settings that have no effect beside others. The user is told. They are no errors, because they do no harm and may stand in
//! a file that several runs share.

use std::collections::BTreeMap;

use common::format::counted;
use engine::params::Sharding;
use engine::precision::Precision;
use parallel::Axis;
use toml::Value;

use crate::config::options::find;
use crate::config::plan::RunPlan;
use crate::config::{ConfigSources, DecayStyle, ModelKind, OwnSettings, PositionEmbedding, RunConfig};

use When::{Is, Not, Off, Unread};

/// When settings have no effect.
enum When {
    /// This option is off: false, 0, none, empty or unset.
    Off(&'static str),
    /// This option has another value than this word.
    Not(&'static str, &'static str),
    /// The optimizer does not read the setting.
    Unread,
    Is(fn(&RunPlan) -> bool),
}

const NO_DATA_RANKS: &str = "with one data-parallel rank there is nothing to divide or sum";
const NO_TENSOR_RANKS: When = Is(|run| run.config.parallel.tensor == 1);
const IS_MLP: When = Is(|run| run.config.model.kind == ModelKind::Mlp);

/// Settings, when they have no effect, and why. They are told in this order, where they differ from their defaults. Of a
/// setting's reasons the first counts.
#[rustfmt::skip]
const RULES: &[(&[&str], When, &str)] = &[
    (&["parallel.sequence_parallel"], NO_TENSOR_RANKS, "with parallel.tensor = 1 no ranks share a layer and its tokens"),
    (&["parallel.context_transfers"], Is(|run| run.config.parallel.context == 1),
     "with parallel.context = 1 no ranks divide sequences"),
    (&["parallel.tensor_transfers"], NO_TENSOR_RANKS, "with parallel.tensor = 1 no ranks share a layer"),
    (&["cuda_graph.scope", "cuda_graph.modules", "cuda_graph.layers", "cuda_graph.warmup_steps",
       "cuda_graph.share_io_buffers", "cuda_graph.capture_optimizer", "cuda_graph.overlap_microbatches",
       "cuda_graph.verify"], Off("cuda_graph.enable"), "nothing is captured"),
    (&["cuda_graph.overlap_microbatches"], Is(|run| run.batch.microbatches() == 1),
     "a step has one microbatch on each rank, which nothing overlaps with"),
    (&["cuda_graph.verify_memory"], Is(|run| run.config.cuda_graph.verify == 0),
     "with cuda_graph.verify = 0 (--verify-cuda-graph) no step is verified"),
    (&["model.lora_alpha", "model.lora_dropout", "model.lora_target_modules"], Off("model.lora_rank"),
     "there are no adapters"),
    (&["optimizer.decay_steps"], Not("optimizer.schedule", "wsd"), "; other decays end with the run"),
    (&["optimizer.momentum"], Unread, "it is for optimizer.kind = \"sgd\""),
    (&["recompute.layers", "recompute.blocks", "recompute.keep_attention"], Not("recompute.granularity", "full"), ""),
    (&["offload.optimizer_fraction"], Off("offload.optimizer"), "the optimizer's state stays on the device"),
    (&["offload.activation_layers", "offload.optimizer"], Is(|run| run.frozen.are_all()), "nothing is trained, so nothing waits for a backward"),
    (&["precision.fp8_recipe", "precision.bf16_blocks", "precision.fp8_metrics_interval", "precision.fp8_param_gather",
       "precision.fp8_amax_history", "precision.fp8_amax_algo", "precision.fp8_margin"], Off("precision.fp8"),
     "no layer multiplies in 8 bits"),
    (&["precision.fp8_amax_history", "precision.fp8_amax_algo", "precision.fp8_margin"],
     Is(|run| !run.config.precision.fp8_recipe.keeps_magnitudes()),
     "it is for precision.fp8_recipe = \"delayed\" or \"rowwise\""),
    (&["optimizer.min_lr"], Is(|run| run.config.optimizer.schedule == DecayStyle::Constant),
     "with optimizer.schedule = \"constant\" there is no decay"),
    (&["model.max_position_embeddings"], Not("model.position", "learned"), ""),
    (&["model.window_pattern"], Off("model.sliding_window"), "no block has a window"),
    (&["model.rope_scaling_type"], Off("model.rope_scaling"), "frequencies are not scaled"),
    (&["model.rope_scaling", "model.rope_base"], Not("model.position", "rotary"), ""),
    (&["model.qk_norm_over"], Off("model.qk_norm"), "queries and keys are not normalised"),
    (&["model.rope_window_base"], Is(|run| run.config.model.sliding_window.is_none()),
     "it is for blocks with a model.sliding_window"),
    (&["model.qkv_bias"], Is(|run| run.config.model.bias), "with model.bias = true all linear layers have biases"),
    (&["parallel.distributed_optimizer", "parallel.data_parallel_sharding", "parallel.optimizer_instances", "parallel.grad_reduce"], Is(has_one_data_rank), NO_DATA_RANKS),
    (&["parallel.expert_tensor"], Off("model.experts"), "layers are dense"),
    (&["optimizer.main_grads_dtype"], Is(|run| run.config.model.lora_rank > 0),
     "the weights of blocks are frozen, and adapters have gradients in f32"),
    (&["parallel.expert_row_budget"], Is(|run| run.config.parallel.expert == 1), "each rank has all experts, and room for their rows"),
    (&["parallel.expert_row_budget"], Is(|run| run.config.parallel.expert > 1 && run.model.row_budget().is_none()),
     "a token chooses as many experts as there are ranks, or more: ranks gather the tokens of all, and exchange no rows"),
    (&["precision.fp8_param_gather"], Is(|run| has_one_data_rank(run) || run.config.parallel.sharding() == Sharding::Nothing),
     "only data-parallel ranks with a distributed optimizer gather weights"),
    (&["checkpoint.interval", "checkpoint.memory_interval", "checkpoint.keep", "checkpoint.save_best",
       "checkpoint.async_save"], Off("checkpoint.dir"), "no checkpoint is written"),
    (&["logging.sample_interval"], Off("logging.sample_prompts"), "the model writes nothing while it trains"),
    (&["logging.trace_after"], Off("logging.trace"), "there is no timeline"),
    (&["dpo.beta", "dpo.references"], Is(|run| !run.config.data.kind().is_judged()),
     "the run learns from no pairs of answers, and from no answers with a label"),
    (&["dpo.loss_type", "dpo.label_smoothing"], Off("data.dpo"), "the run learns from no pairs of answers"),
    (&["dpo.desirable_weight", "dpo.undesirable_weight"], Off("data.kto"), "the run learns from no answers with a label"),
    (&["data.split"], Off("data.path"), "the trainer generates data"),
    (&["data.split"], Is(|run| run.config.data.validation_path.is_some()),
     "data.validation_path is for validation, and all of data.path for training"),
    (&["data.group_by_length"], Is(|run| run.buckets.shorter().is_empty()),
     "without data.seq_length_buckets (--seq-length-buckets) all steps have the same length"),
    (&["data.seq_length_buckets"],
     Is(|run| run.buckets.shorter().is_empty() && run.config.data.seq_length_buckets.len() == 1),
     "its one length is that of the model"),
    (&["model.query_latent", "model.rotary_head_dim", "model.value_head_dim"], Off("model.kv_latent"), "attention is grouped"),
    (&["data.reset_attention_mask", "model.attention_sinks", "model.kv_latent"], Is(|run| !run.config.model.attention), "without attention a token sees itself alone"),
    (&["data.documents_per_sample"],
     Is(|run| !run.config.data.reset_attention_mask && !run.config.data.reset_position_ids),
     "without data.reset_attention_mask or data.reset_position_ids a sample is one document"),
    (&["data.reset_position_ids"], Is(|run| run.config.model.position != PositionEmbedding::Learned),
     "the model has no learned positions, and attention within documents depends on distances alone"),
    (&["data.raw_tokens"], Is(|run| data::forms(&run.config.data) == (true, false)),
     "it is for token files, and the data are text"),
    (&["data.end_of_text"],
     Is(|run| data::forms(&run.config.data) == (false, true) && run.config.data.divides().is_none()),
     "token files mark where documents end; only `trainer sample` uses it"),
    (&["optimizer.betas", "optimizer.eps", "optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype"], Unread,
     "it is for optimizer.kind = \"adamw\""),
    (&["optimizer.store_param_remainders"], Is(|run| run.config.precision.compute != Precision::Bf16),
     "without precision.compute = \"bf16\" weights are their own masters"),
    (&["optimizer.skip_step_interval"], Off("optimizer.skip_step_sigma_factor"), "no step is skipped"),
    (&["optimizer.muon_momentum", "optimizer.muon_num_ns_steps"], Unread, "it is for optimizer.kind = \"muon\""),
    (&["train.mtp_loss_factor"], Off("model.mtp_layers"), "the model predicts the next token alone"),
    (&["train.z_loss_multiplier", "train.balance_loss_multiplier", "train.balance_loss_over",
       "train.router_z_loss_multiplier", "train.router_bias_update_rate", "train.force_expert_balance", "recompute.mlp_tiles"], IS_MLP,
     "it is for model.kind = \"gpt\""),
    (&["model.experts_per_token", "model.expert_groups", "model.expert_groups_per_token", "model.expert_group_score", "model.expert_ffn", "model.shared_expert_ffn", "model.expert_pattern",
       "model.expert_capacity_factor", "model.token_drop_policy", "model.router_score", "model.router_normalise",
       "model.router_scale", "model.router_bias", "train.balance_loss_multiplier", "train.balance_loss_over",
       "train.router_z_loss_multiplier", "train.router_bias_update_rate", "train.force_expert_balance"],
     Off("model.experts"), "layers are dense"),
    (&["model.expert_groups_per_token", "model.expert_group_score"], Is(|run| run.config.model.expert_groups == 1), "with model.expert_groups = 1 a token chooses from all experts"),
    (&["model.token_drop_policy"], Off("model.expert_capacity_factor"), "nothing is dropped"),
    (&["train.router_bias_update_rate"], Off("model.router_bias"), "routers have no bias"),
    (&["train.balance_loss_over"], Off("train.balance_loss_multiplier"), "there is no balance loss"),
];

/// Settings that are told without their values.
const WITHOUT_VALUE: &[&str] = &["model.rope_window_base", "optimizer.muon_momentum", "optimizer.muon_num_ns_steps"];

fn has_one_data_rank(run: &RunPlan) -> bool {
    run.parallel.mesh.size(Axis::Tokens) == 1
}

impl When {
    /// Why a setting of this key has no effect, if so; `why` is the end of the reason.
    fn reason(&self, key: &str, why: &str, plan: &RunPlan, values: &BTreeMap<String, Value>) -> Option<String> {
        match self {
            Off(other) => {
                let option = find(other).filter(|_| values.get(*other).is_none_or(is_off))?;
                let flag = option.aliases.first().unwrap_or(&option.flag);
                Some(format!("without {other} (--{flag}) {why}"))
            }
            Not(other, word) => {
                let has = values.get(*other).is_some_and(|value| value.as_str() == Some(word));
                (!has).then(|| format!("it is for {other} = \"{word}\"{why}"))
            }
            Unread => {
                let read = plan.config.optimizer.kind.settings();
                (!read.iter().any(|name| key.strip_prefix("optimizer.") == Some(name))).then(|| why.into())
            }
            Is(so) => so(plan).then(|| why.into()),
        }
    }
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Boolean(on) => !on,
        Value::Integer(number) => *number == 0,
        Value::Float(number) => *number == 0.0,
        Value::String(word) => word == "none",
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// One line for each setting without effect. For a benchmark (`is_bench`) settings about files and the run's length do not
/// count, because it has its own.
pub fn notices(plan: &RunPlan, is_bench: bool) -> Vec<String> {
    let (config, values) = (&plan.config, plan.config.by_key());
    let mut changed = changed(config, &ConfigSources::default());
    changed.retain(|key, _| !is_bench || !(key.starts_with("checkpoint.") || key.starts_with("data.")));
    let other_kind = if config.model.kind == ModelKind::Mlp { ModelKind::Gpt } else { ModelKind::Mlp };
    let of_other_kind = set_for_kind(config, other_kind);
    changed.retain(|key, _| !of_other_kind.contains_key(key));
    let mut notices = Vec::new();
    for (keys, when, why) in RULES {
        for key in *keys {
            let Some(value) = changed.get(*key) else { continue };
            let Some(reason) = when.reason(key, why, plan, &values) else { continue };
            let value = if WITHOUT_VALUE.contains(key) { String::new() } else { format!(" = {}", shown(value)) };
            notices.push(format!("{key}{value} has no effect: {reason}"));
            changed.remove(*key);
        }
    }
    for (key, value) in of_other_kind {
        notices.push(format!("{key} = {value} has no effect: it is for model.kind = \"{other_kind}\""));
    }
    if !is_bench {
        // Receivers of metrics are made later, and may read some.
        notices.extend(unread_own(config).filter(|_| config.own.texts("metrics").is_empty()));
        notices.extend(short_runs(plan));
    }
    notices
}

/// One line for each option of the program's that is set, and that nothing which the run has chosen reads.
pub fn unread_own(config: &RunConfig) -> impl Iterator<Item = String> {
    let is_read = |name: &str| name == "metrics" || OwnSettings::is_read(name);
    let unread = changed(config, &ConfigSources::default()).into_iter();
    unread.filter(move |(key, _)| key.strip_prefix("own.").is_some_and(|name| !is_read(name))).map(|(key, value)| {
        format!("{key} = {} has no effect: nothing of the program's that the run has reads it", shown(&value))
    })
}

/// One line for each part of a schedule that the run is too short for.
fn short_runs(plan: &RunPlan) -> impl Iterator<Item = String> {
    let (steps, optimizer, graph) = (plan.steps, &plan.config.optimizer, &plan.config.cuda_graph);
    let (warmup, decay, eager) = (plan.optimizer.learning_rate.warmup, optimizer.decay_steps, graph.warmup_steps);
    let left = steps.saturating_sub(warmup);
    let cut = (optimizer.schedule == DecayStyle::Wsd && decay > left).then(|| {
        let left = counted(left, "step");
        format!(
            "optimizer.decay_steps = {decay} is cut to {left}: train.steps = {steps} less optimizer.warmup_steps = {warmup}"
        )
    });
    let rises = (warmup > steps).then(|| {
        format!(
            "the learning rate never reaches optimizer.lr: train.steps = {steps} is below optimizer.warmup_steps = {warmup}"
        )
    });
    let is_eager = (graph.enable && eager >= steps)
        .then(|| format!("no training step is captured: train.steps = {steps} with cuda_graph.warmup_steps = {eager}"));
    [cut, rises, is_eager].into_iter().flatten()
}

/// The settings that only models of `kind` use, if they differ from those of the preset.
fn set_for_kind(config: &RunConfig, kind: ModelKind) -> BTreeMap<String, Value> {
    let mut preset = ConfigSources::default();
    if preset.set("model.preset", &config.model.preset.to_string(), "preset").is_err() {
        return BTreeMap::new();
    }
    let used_by = |name: &str| match name {
        "preset" | "kind" | "init_from" => None,
        "layer_sizes" | "dropouts" => Some(ModelKind::Mlp),
        _ => Some(ModelKind::Gpt),
    };
    let mut changed = changed(config, &preset);
    changed.retain(|key, _| key.strip_prefix("model.").and_then(used_by) == Some(kind));
    changed
}

/// The settings that differ from those of `sources`.
fn changed(config: &RunConfig, sources: &ConfigSources) -> BTreeMap<String, Value> {
    let others = sources.resolve().by_key();
    config.by_key().into_iter().filter(|(key, value)| others.get(key) != Some(value)).collect()
}

/// A value in a notice.
fn shown(value: &Value) -> String {
    match value {
        Value::Float(number) => number.to_string(),
        Value::String(text) => format!("{text:?}"),
        Value::Array(items) => {
            let item = |item: &Value| item.as_float().map_or_else(|| shown(item), |number| format!("{number:?}"));
            format!("[{}]", items.iter().map(item).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use common::Choice;

    use super::*;
    use crate::config::options::{Kind, options};
    use crate::config::recipes::RECIPES;
    use crate::families::Preset;

    /// Names that the cases have for models.
    const MODELS: [(&str, &str); 5] = [
        ("BIASED", "MIXTURE model.router_bias=true"),
        ("BALANCED", "MIXTURE train.balance_loss_multiplier=0.01"),
        ("GROUPED", "MIXTURE model.expert_groups=2"),
        ("LIMITED", "MIXTURE model.expert_capacity_factor=1.5"),
        ("MIXTURE", "model.kind=gpt model.experts=4 model.activation=swiglu model.bias=false"),
    ];

    /// The notices for `key=value` pairs.
    fn told(text: &str) -> Vec<String> {
        let sources = ConfigSources::of_pairs(text).unwrap();
        notices(&RunPlan::new(sources.resolve(), 1).unwrap(), false)
    }

    #[test]
    fn a_setting_without_effect_is_one_line_and_none_where_it_has_an_effect() {
        for line in include_str!("unused_settings.txt").lines().skip(1) {
            let line = MODELS.iter().fold(line.to_string(), |line, (name, model)| line.replace(name, model));
            let [setting, beside, says] = line.split(" | ").collect::<Vec<_>>()[..] else { panic!("{line}") };
            let lines = told(setting);
            assert!(lines.len() == 1 && lines[0].contains(says), "{setting}: {lines:?}");
            if !beside.is_empty() {
                assert_eq!(told(&format!("{setting} {beside}")), [""; 0], "{setting} {beside}");
            }
        }
    }

    /// The sections and options that the run reads as they are: the plan has no part that follows from them. Options of data
    /// without data are refused when these are opened.
    const READ_BY_THE_RUN: &[&str] = &[
        "logging.",
        "checkpoint.",
        "data.",
        "train.device",
        "train.threads",
        "train.epochs",
        "train.deterministic",
        "train.sync_debug",
        "train.early_stop_patience",
        "train.exit_interval",
        "train.exit_duration_minutes",
    ];

    #[test]
    fn every_option_changes_the_plan_or_is_refused_or_told_or_is_read_by_the_run() {
        // What follows from a configuration.
        let derived =
            |plan: &RunPlan| format!("{:?}", RunPlan { config: ConfigSources::default().resolve(), ..plan.clone() });
        let bases = ["tiny", "tiny-llama"].map(|preset| {
            let mut base = ConfigSources::default();
            base.set("model.preset", preset, "test").unwrap();
            base
        });
        let mut without_effect = Vec::new();
        for option in options().iter().filter(|option| !READ_BY_THE_RUN.iter().any(|read| option.key.starts_with(read)))
        {
            let values: Vec<String> = match option.kind {
                Kind::Bool => ["true", "false"].map(str::to_string).to_vec(),
                Kind::Integer => ["0", "1", "2", "12"].map(str::to_string).to_vec(),
                Kind::Float => ["0.37", "37.0"].map(str::to_string).to_vec(),
                Kind::Integers | Kind::Floats => ["[1]", "[2, 1]", "[1, 0]"].map(str::to_string).to_vec(),
                Kind::Choice(words) => words.iter().map(|word| word.to_string()).collect(),
                Kind::Choices(words) => words.iter().map(|word| format!("[{word:?}]")).collect(),
                Kind::Text | Kind::Texts | Kind::Paths => vec!["[\"c_fc\"]".into(), "\"c_fc\"".into()],
            };
            for before in &bases {
                let plan = RunPlan::new(before.resolve(), 1).unwrap();
                // A value may be the one that the plan has without it.
                let mut accepted = values.iter().filter_map(|value| {
                    let mut changed = before.clone();
                    changed.set(option.key, value, "test").ok()?;
                    let is_same = changed.resolve().by_key() == before.resolve().by_key();
                    let now = RunPlan::new(changed.resolve(), 1).ok().filter(|_| !is_same)?;
                    let is_told = || notices(&now, false).iter().any(|notice| notice.contains(option.key));
                    Some(derived(&plan) != derived(&now) || is_told())
                });
                let first = accepted.next();
                if !first.is_none_or(|first| first || accepted.any(|is_seen| is_seen)) {
                    without_effect.push(option.key);
                }
            }
        }
        assert_eq!(without_effect, [""; 0]);
    }

    #[test]
    fn settings_for_text_have_no_effect_on_token_files_and_the_other_way_round() {
        let folder = std::env::temp_dir().join(format!("unused-settings-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [text, tokens] = ["a.txt", "a.bin"].map(|name| folder.join(name));
        [&text, &tokens].into_iter().for_each(|path| std::fs::write(path, "text").unwrap());
        let [text, tokens] = [text, tokens].map(|path| path.display().to_string());
        let (raw, end) = ("data.raw_tokens=u16", "data.end_of_text=<|end|>");
        for (path, setting, says) in [
            (format!("{text:?}"), raw, "the data are text"),
            (format!("{tokens:?}"), raw, ""),
            (format!("{text:?}"), end, ""),
            (format!("{tokens:?}"), end, "where documents end"),
            (format!("[{text:?},{tokens:?}]"), raw, ""),
            (format!("[{text:?},{tokens:?}]"), end, ""),
        ] {
            let lines = told(&format!("data.path={path} {setting}"));
            assert_eq!(lines.len(), usize::from(!says.is_empty()), "{path} {setting}: {lines:?}");
            assert!(lines.iter().all(|line| line.contains(says)), "{lines:?}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn presets_and_recipes_have_no_unused_settings() {
        for preset in Preset::ALL {
            for graphs in ["", "cuda_graph.enable=true"] {
                assert_eq!(told(&format!("model.preset={preset} {graphs}")), [""; 0], "{preset}");
            }
        }
        for (name, text) in RECIPES {
            let mut sources = ConfigSources::default();
            sources.read_text(text, name).unwrap();
            sources.set("checkpoint.dir", "checkpoints", "their first lines").unwrap();
            let ranks = if name.contains("-8x") { 8 } else { 1 };
            assert_eq!(notices(&RunPlan::new(sources.resolve(), ranks).unwrap(), false), [""; 0], "{name}");
        }
    }

    #[test]
    fn rules_name_options_that_exist() {
        let others = RULES.iter().filter_map(|(_, when, _)| match when {
            Off(key) | Not(key, _) => Some(key),
            Unread | Is(_) => None,
        });
        let keys = RULES.iter().flat_map(|(keys, ..)| *keys).chain(WITHOUT_VALUE).chain(others);
        keys.for_each(|key| assert!(find(key).is_some(), "{key}"));
    }
}
