//! Settings that have no effect beside others. The user is told. They are no errors, because they do no harm and may stand in
//! a file that several runs share.

use std::collections::BTreeMap;

use common::format::counted;
use engine::params::Sharding;
use parallel::Axis;
use toml::Value;

use crate::config::options::find;
use crate::config::plan::RunPlan;
use crate::config::{ConfigSources, DecayStyle, ModelKind, OwnSettings, RunConfig, groups};

/// What has no effect when: `unused_settings.txt`.
fn rules() -> Vec<(&'static str, Vec<&'static str>)> {
    groups(include_str!("unused_settings.txt"))
}

/// Settings that notices name without values.
const WITHOUT_VALUE: &[&str] = &["model.rope_window_base", "optimizer.muon_momentum", "optimizer.muon_num_ns_steps"];

fn has_one_data_rank(run: &RunPlan) -> bool {
    run.parallel.mesh.size(Axis::Tokens) == 1
}

/// Why a setting has no effect, if so, by a rule `WHEN | WHY`.
fn reason(key: &str, rule: &str, plan: &RunPlan, values: &BTreeMap<String, Value>) -> Option<String> {
    let (when, why) = rule.split_once(" | ")?;
    let has = |key: &str, value: &str| values.get(key).is_some_and(|has| has.to_string() == value);
    let is_so = match when.split(' ').collect::<Vec<_>>()[..] {
        ["without", other] => {
            let option = find(other).filter(|_| values.get(other).is_none_or(is_off))?;
            let flag = option.aliases.first().unwrap_or(&option.flag);
            return Some(format!("without {other} (--{flag}) {why}"));
        }
        [other, "=", value] => has(other, value),
        [other, "!=", value] => !has(other, value),
        _ => is(when, key, plan),
    };
    is_so.then(|| why.into())
}

/// Whether a run is what a rule says in words.
fn is(when: &str, key: &str, run: &RunPlan) -> bool {
    let (model, data, is_one_length) = (&run.config.model, &run.config.data, run.buckets.shorter().is_empty());
    match when {
        "adapters" => model.lora_rank > 0,
        "no exchanged rows" => run.model.row_budget().is_none(),
        "no judged data" => !data.kind().is_judged(),
        "no kept magnitudes" => !run.config.precision.fp8_recipe.keeps_magnitudes(),
        "no window" => model.sliding_window.is_none(),
        "nothing trained" => run.frozen.are_all(),
        "one data rank" => has_one_data_rank(run),
        "one length" => is_one_length,
        "one microbatch" => run.batch.microbatches() == 1,
        "text alone" => data::forms(data) == (true, false),
        "the model's length alone" => is_one_length && data.seq_length_buckets.len() == 1,
        "token files alone" => data::forms(data) == (false, true) && data.divides().is_none(),
        // The optimizer does not read the setting.
        "unread" => {
            !run.config.optimizer.kind.settings().iter().any(|name| key.strip_prefix("optimizer.") == Some(name))
        }
        "validation data" => data.validation_path.is_some(),
        "whole samples" => !data.reset_attention_mask && !data.reset_position_ids,
        "whole weights" => has_one_data_rank(run) || run.config.parallel.sharding() == Sharding::Nothing,
        _ => unreachable!("unused_settings.txt: {when}"),
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
    for (rule, keys) in rules() {
        for key in keys {
            let Some(value) = changed.get(key) else { continue };
            let Some(reason) = reason(key, rule, plan, &values) else { continue };
            let value = if WITHOUT_VALUE.contains(&key) { String::new() } else { format!(" = {}", shown(value)) };
            notices.push(format!("{key}{value} has no effect: {reason}"));
            changed.remove(key);
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

/// The settings that only models of `kind` use, if different from the preset's.
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
        for line in include_str!("unused_settings_told.txt").lines().skip(1) {
            let line = MODELS.iter().fold(line.to_string(), |line, (name, model)| line.replace(name, model));
            let [setting, beside, says] = line.split(" | ").collect::<Vec<_>>()[..] else { panic!("{line}") };
            let lines = told(setting);
            assert!(lines.len() == 1 && lines[0].contains(says), "{setting}: {lines:?}");
            if !beside.is_empty() {
                assert_eq!(told(&format!("{setting} {beside}")), [""; 0], "{setting} {beside}");
            }
        }
    }

    /// The sections and options that the run reads directly: the plan has no part that follows from them. Options of data
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
        let (rules, plan) = (rules(), RunPlan::new(ConfigSources::default().resolve(), 1).unwrap());
        let keys = rules.iter().flat_map(|(_, keys)| keys).chain(WITHOUT_VALUE);
        keys.for_each(|key| assert!(find(key).is_some(), "{key}"));
        for (rule, keys) in &rules {
            let (when, _) = rule.split_once(" | ").unwrap();
            match when.split(' ').collect::<Vec<_>>()[..] {
                ["without", other] | [other, "=" | "!=", _] => assert!(find(other).is_some(), "{rule}"),
                // A word that means nothing would panic.
                _ => drop(is(when, keys[0], &plan)),
            }
        }
    }
}
