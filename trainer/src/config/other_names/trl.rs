//! What settings of TRL mean together: adapters, pairs of answers, answers with a label.

use common::escape::toml_strings;
use toml::Value;

use super::settings::{Made, Set, Settings, is_true, none, number, one, set, set_as, shown, text};

const PAIR_LOSS: &str = "the loss of pairs is that of DPO, also with label smoothing, or that of IPO; the loss of answers with a label is that of KTO";
const PLAIN_LOSS: &str = "the loss is the mean cross-entropy of the tokens";

fn is_given(settings: &Settings, name: &str) -> bool {
    settings.value(name).is_some_and(|(_, given)| given)
}

/// Whether the settings are those of a run on answers with a label.
fn has_labels(settings: &Settings) -> bool {
    let is_kto = |(value, _): (&Value, bool)| ["kto", "apo_zero_unpaired"].contains(&losses(value).as_str());
    settings.value("loss_type").is_some_and(is_kto)
        || ["desirable_weight", "undesirable_weight"].iter().any(|name| is_given(settings, name))
}

/// Whether the settings are those of a run on pairs of answers.
fn has_pairs(settings: &Settings) -> bool {
    is_given(settings, "beta") && !has_labels(settings)
}

/// The kind of the data, by a setting that they have.
fn judged(settings: &Settings) -> Set {
    match has_labels(settings) {
        true => set_as("data.kto", "true", "answers with a label, with the loss of KTO"),
        false => set_as("data.dpo", "true", "pairs of answers, with the loss of DPO"),
    }
}

pub(super) fn beta(value: &Value, settings: &Settings) -> Made {
    Ok(vec![judged(settings), set("dpo.beta", text(value))])
}

pub(super) fn answer_weight(key: &'static str, value: &Value, settings: &Settings) -> Made {
    let kind = (!is_given(settings, "beta")).then(|| judged(settings));
    Ok(kind.into_iter().chain([set(key, text(value))]).collect())
}

/// The losses of a setting, in words.
fn losses(value: &Value) -> String {
    match value {
        Value::Array(items) => items.iter().map(text).collect::<Vec<String>>().join(" and "),
        value => text(value),
    }
}

/// TRL's conversations have such a setting too.
pub(super) fn pair_loss(value: &Value, settings: &Settings) -> Made {
    match losses(value).as_str() {
        "nll" if !has_pairs(settings) => none(),
        "sigmoid" => none(),
        "kto" if ["beta", "desirable_weight", "undesirable_weight"].iter().any(|name| is_given(settings, name)) => {
            none()
        }
        "kto" => Ok(vec![judged(settings)]),
        "ipo" => one("dpo.loss_type", "ipo"),
        _ if !has_pairs(settings) && !has_labels(settings) => Err(PLAIN_LOSS.into()),
        other => Err(format!("{PAIR_LOSS}, not {other}")),
    }
}

pub(super) fn smoothing(value: &Value, settings: &Settings) -> Made {
    let counts = has_pairs(settings) && number(value).unwrap_or(0.0) > 0.0;
    if counts { one("dpo.label_smoothing", text(value)) } else { none() }
}

pub(super) fn length(value: &Value, settings: &Settings) -> Made {
    let tokens = number(value).ok_or("it is not a number")?;
    match has_pairs(settings) {
        true => {
            Ok(vec![set_as("model.seq_length", shown(2.0 * tokens), "both answers of a pair, each with its prompt")])
        }
        false => one("model.seq_length", shown(tokens)),
    }
}

/// Whether the run has adapters. A file without `use_peft` is that of a run with them, if it gives their rank.
fn has_adapters(settings: &Settings) -> bool {
    settings.value("use_peft").map_or(is_given(settings, "lora_r"), |(value, _)| is_true(value))
}

pub(super) fn rank(value: &Value, settings: &Settings) -> Made {
    if has_adapters(settings) { one("model.lora_rank", text(value)) } else { none() }
}

pub(super) fn alpha(value: &Value, settings: &Settings) -> Made {
    if has_adapters(settings) { one("model.lora_alpha", text(value)) } else { none() }
}

pub(super) fn adapter_dropout(value: &Value, settings: &Settings) -> Made {
    if has_adapters(settings) { one("model.lora_dropout", text(value)) } else { none() }
}

pub(super) fn targets(value: &Value, settings: &Settings) -> Made {
    if !has_adapters(settings) {
        return none();
    }
    let words: Vec<String> = match value {
        Value::Array(items) => items.iter().map(text).collect(),
        value => vec![text(value)],
    };
    one("model.lora_target_modules", toml_strings(words))
}
