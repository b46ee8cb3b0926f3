//! What a run changed when it went on: settings that numbers depend on, and whether the weights mean the same model. Equal
//! shapes are not enough for that.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use common::{Choice, UserError};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::file::Single;
use crate::config::{ConfigSources, ModelConfig, ModelKind, PositionEmbedding, RunConfig, by_key};
use crate::families::MOST_LAYERS;

/// Compares the run of the checkpoint in `folder` with `ours`; `theirs` is the checkpoint's configuration. An unreadable
/// configuration is not compared.
///
/// # Errors
/// The weights would be another model under `ours`, although their shapes may fit, or would have another reference.
pub(super) fn other_run(folder: &Path, theirs: &str, ours: &RunConfig) -> Result<(), UserError> {
    let mut sources = ConfigSources::default();
    if sources.read_text(theirs, Single::Config.word()).is_err() {
        return Ok(());
    }
    let theirs = sources.resolve();
    let differ = changed_meaning(&theirs.model, &ours.model);
    if !differ.is_empty() {
        return Err(UserError::new(
            format!("checkpoint {} is of another model: {}", folder.display(), differ.join(", ")),
            "a run continues the model that the checkpoint was written for",
            format!("set [model] as in {}, or another checkpoint.dir", folder.join(Single::Config.word()).display()),
        ));
    }
    let [before, now] = [&theirs, ours].map(|run| run.precision.frozen_weights);
    if now.codes().is_some() && now != before {
        return Err(UserError::new(
            format!(
                "precision.frozen_weights = \"{now}\" with checkpoint {}, whose run had \"{before}\"",
                folder.display()
            ),
            "a run goes on with the weights that it has",
            format!("set precision.frozen_weights = \"{before}\", or another checkpoint.dir"),
        ));
    }
    if ours.dpo.references_in_step() && !theirs.dpo.references_in_step() {
        return Err(UserError::new(
            format!("dpo.references = \"step\" with checkpoint {}, whose run has no such references", folder.display()),
            "the reference is the model that training started from, and the model without adapters may be another",
            "leave --dpo-references out, or set another checkpoint.dir",
        ));
    }
    Ok(())
}

/// The settings that make another model of the same weights, as `model.heads = 8 (was 4)`.
pub fn changed_meaning(before: &ModelConfig, now: &ModelConfig) -> Vec<String> {
    let (before, now) = (meaning(before), meaning(now));
    let value = |all: &[(&str, String)], key: &str| {
        all.iter().find(|(other, _)| *other == key).map_or("unset".into(), |(_, value)| value.clone())
    };
    let keys = now.iter().chain(before.iter().filter(|(key, _)| !now.iter().any(|(other, _)| other == key)));
    keys.map(|(key, _)| (key, value(&before, key), value(&now, key)))
        .filter(|(_, before, now)| before != now)
        .map(|(key, before, now)| format!("model.{key} = {now} (was {before})"))
        .collect()
}

/// The settings that decide how a model computes with its weights. Equal values have equal text.
fn meaning(model: &ModelConfig) -> Vec<(&'static str, String)> {
    let values = Table::try_from(model).unwrap_or_default();
    let shown = |value: &Value| match value {
        Value::String(word) => word.clone(),
        Value::Float(number) => number.to_string(),
        other => other.to_string(),
    };
    let of = |names: &'static str| names.split(' ').filter_map(|name| Some((name, shown(values.get(name)?))));
    let mut all: Vec<(&'static str, String)> = of("kind").collect();
    if model.kind == ModelKind::Mlp {
        return all;
    }
    all.extend(of("attention norm norm_eps activation position bias"));
    all.extend([
        ("qkv_bias", (model.attention && model.qkv_bias && !model.bias).to_string()),
        ("qk_norm", (model.attention && model.qk_norm).to_string()),
    ]);
    all.extend(of("norm_placement tie_embeddings scale_embeddings logit_soft_cap"));
    if model.attention {
        all.extend(of("query_pre_attn_scalar attention_soft_cap attention_sinks"));
        if model.kv_latent.is_some() {
            let head_dim = model.head_dim.unwrap_or(model.hidden / model.heads.max(1));
            all.push(("head_dim", head_dim.to_string()));
            all.extend(of("rotary_head_dim"));
        }
        all.extend(of("heads"));
        all.push(("kv_heads", model.kv_heads.unwrap_or(model.heads).to_string()));
        all.extend(of("qk_norm_over").filter(|_| model.qk_norm));
        all.extend(of("sliding_window window_pattern").filter(|_| model.sliding_window.is_some()));
    }
    if model.experts > 0 {
        let pattern = &model.expert_pattern;
        let has_experts = |block: usize| pattern.is_empty() || pattern[block % pattern.len()] == 1;
        let layers = model.layers.min(MOST_LAYERS as usize);
        let blocks: Vec<usize> = (0..layers).filter(|block| has_experts(*block)).collect();
        all.extend(of("experts experts_per_token"));
        all.extend([
            ("expert_pattern", format!("experts in blocks {blocks:?}")),
            ("expert_groups", format!("{} of {}", model.expert_groups_per_token, model.expert_groups)),
        ]);
        all.extend(of("expert_group_score router_score router_normalise router_scale router_bias"));
    }
    all.extend(of("lora_rank lora_alpha").filter(|_| model.lora_rank > 0));
    if model.position == PositionEmbedding::Rotary {
        all.extend(of("rope_base rope_scaling"));
        all.extend(of("rope_scaling_type").filter(|_| !model.rope_scaling.is_empty()));
        all.extend(of("rope_window_base").filter(|_| model.sliding_window.is_some()));
    }
    all
}

/// Sections that change no number.
const WITHOUT_EFFECT: [&str; 5] = ["checkpoint.", "logging.", "cuda_graph.", "parallel.", "recompute."];

/// Settings of other sections that change no number.
const ALSO_WITHOUT_EFFECT: [&str; 7] = [
    "train.device",
    "train.threads",
    "train.eval_interval",
    "train.eval_steps",
    "train.early_stop_patience",
    "train.exit_interval",
    "train.exit_duration_minutes",
];

/// A setting before and after. `None` is unset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// In the run that wrote the checkpoint.
    pub was: Option<Value>,
    /// The setting's value in the run that goes on from the checkpoint.
    pub now: Option<Value>,
}

/// Changed settings by key, such as `optimizer.lr`.
pub type ChangedSettings = BTreeMap<String, Change>;

/// The settings that numbers depend on and that differ between two configurations, texts of TOML.
pub(super) fn changed_settings(before: &str, now: &str) -> ChangedSettings {
    let values = |config: &str| {
        let mut values = by_key(config.parse().unwrap_or_default());
        values.retain(|key, _| {
            let section = WITHOUT_EFFECT.iter().any(|section| key.starts_with(section));
            let alike = section || ALSO_WITHOUT_EFFECT.contains(&key.as_str());
            !alike || key == "parallel.grad_reduce"
        });
        values
    };
    let (before, now) = (values(before), values(now));
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    keys.into_iter()
        .map(|key| (key.clone(), Change { was: before.get(key).cloned(), now: now.get(key).cloned() }))
        .filter(|(_, change)| change.was != change.now)
        .collect()
}

/// Each change in words, such as `optimizer.lr = 0.2 (was 0.1)`.
pub(super) fn in_words(changed: &ChangedSettings) -> Vec<String> {
    let shown = |value: &Option<Value>| value.as_ref().map_or("unset".into(), Value::to_string);
    changed.iter().map(|(key, Change { was, now })| format!("{key} = {} (was {})", shown(now), shown(was))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(before: &str, now: &str) -> String {
        let mut sources = ConfigSources::default();
        sources.read_text(&format!("[model]\n{now}"), "now").unwrap();
        let ours = sources.resolve();
        other_run(Path::new("saved"), &format!("[model]\n{before}"), &ours)
            .map_or_else(|error| error.what, |()| String::new())
    }

    #[test]
    fn only_what_weights_mean_makes_another_model_however_it_is_written() {
        let rotary = "position = \"rotary\"\n";
        for (before, now) in [
            ("heads = 4", "heads = 4\nkv_heads = 4"),
            ("rope_base = 10000.0", "rope_base = 500000.0"),
            ("hidden_dropout = 0.1\nseq_length = 64", "init_std = 0.1\nseq_length = 32"),
            ("", "window_pattern = [1, 0]"),
            ("attention = false\nheads = 2", "attention = false\nheads = 4"),
            ("bias = true", "bias = true\nqkv_bias = true"),
            ("attention = false", "attention = false\nqk_norm = true"),
            ("kind = \"mlp\"\nheads = 2", "kind = \"mlp\"\nheads = 4"),
            ("a setting of another build", "heads = 2"),
            ("router_scale = 2.5", "router_scale = 1.0"),
            ("experts = 4", "experts = 4\nexpert_pattern = [1]"),
        ] {
            assert_eq!(compare(before, now), "");
        }
        let other = |what: &str| format!("checkpoint saved is of another model: {what}");
        for (before, now, what) in [
            ("heads = 4", "heads = 8", "model.heads = 8 (was 4), model.kv_heads = 8 (was 4)"),
            ("sliding_window = 32", "sliding_window = 48", "model.sliding_window = 48 (was 32)"),
            ("norm = \"rmsnorm\"", "norm = \"layernorm\"", "model.norm = layernorm (was rmsnorm)"),
            ("bias = false", "bias = false\nqkv_bias = true", "model.qkv_bias = true (was false)"),
            (
                "qk_norm = true",
                "qk_norm = true\nqk_norm_over = \"all_heads\"",
                "model.qk_norm_over = all_heads (was each_head)",
            ),
            (
                "qk_norm = true",
                "qk_norm = false",
                "model.qk_norm = false (was true), model.qk_norm_over = unset (was each_head)",
            ),
            ("", "scale_embeddings = true", "model.scale_embeddings = true (was false)"),
            ("logit_soft_cap = 30.0", "", "model.logit_soft_cap = unset (was 30)"),
            ("", "query_pre_attn_scalar = 144.0", "model.query_pre_attn_scalar = 144 (was unset)"),
            ("", "norm_placement = \"post\"", "model.norm_placement = post (was pre)"),
            ("norm_eps = 1e-5", "norm_eps = 1e-6", "model.norm_eps = 0.000001 (was 0.00001)"),
            (rotary, &format!("{rotary}rope_base = 500000.0"), "model.rope_base = 500000 (was 10000)"),
            ("experts = 4", "experts = 4\nexperts_per_token = 3", "model.experts_per_token = 3 (was 2)"),
            (
                "experts = 4",
                "experts = 4\nrouter_score = \"sigmoid\"\nrouter_scale = 2.5\nrouter_normalise = false",
                "model.router_score = sigmoid (was softmax), model.router_normalise = false (was true), \
                 model.router_scale = 2.5 (was 1)",
            ),
            (
                "experts = 4",
                "experts = 4\nexpert_pattern = [0, 1]",
                "model.expert_pattern = experts in blocks [1] (was experts in blocks [0, 1])",
            ),
            (
                rotary,
                &format!("{rotary}rope_scaling = [8, 1, 4, 8192]"),
                "model.rope_scaling = [8.0, 1.0, 4.0, 8192.0] (was []), model.rope_scaling_type = llama3 (was unset)",
            ),
        ] {
            assert_eq!(compare(before, now), other(what));
        }
    }

    /// Without it a setting that is forgotten here would let a run go on from another model in silence.
    #[test]
    fn each_setting_of_a_model_is_of_its_meaning_or_of_shapes_or_of_training() {
        const OTHERS: &str = "preset init_from layers hidden ffn vocab seq_length max_position_embeddings kv_latent \
                              query_latent value_head_dim expert_ffn shared_expert_ffn mtp_layers layer_sizes init_std \
                              residual_init hidden_dropout attention_dropout lora_dropout dropouts lora_target_modules \
                              loss_pieces expert_capacity_factor token_drop_policy";
        let (_, code) = include_str!("changes.rs").split_once("fn meaning(").unwrap();
        let (code, _) = code.split_once("\n}\n").unwrap();
        let names = |text: &'static str| text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let known: BTreeSet<&str> = names(code).chain(names(OTHERS)).collect();
        let keys = crate::config::options::options().iter().filter_map(|option| option.key.strip_prefix("model."));
        let forgotten: Vec<&str> = keys.filter(|key| !known.contains(key)).collect();
        assert_eq!(forgotten, [""; 0], "a line in `meaning`, or a word above");
    }

    #[test]
    fn only_settings_that_numbers_depend_on_count_as_changes() {
        let before = "[train]\nseed = 1\nthreads = 2\n[optimizer]\nlr = 0.1\n[logging]\ndir = \"a\"\n\
                      [recompute]\ngranularity = \"none\"\n[parallel]\ntensor = 1\ngrad_reduce = \"f32\"\n";
        let now = "[train]\nseed = 1\nthreads = 4\n[optimizer]\nlr = 0.2\nclip = 1.0\n[logging]\ndir = \"b\"\n\
                   [recompute]\ngranularity = \"full\"\n[parallel]\ntensor = 2\ngrad_reduce = \"bf16\"\n";
        assert_eq!(
            in_words(&changed_settings(before, now)),
            [
                "optimizer.clip = 1.0 (was unset)",
                "optimizer.lr = 0.2 (was 0.1)",
                "parallel.grad_reduce = \"bf16\" (was \"f32\")",
            ]
        );
        assert!(changed_settings(now, now).is_empty());
    }
}
