//! Rotary positions in a `config.json`.

use common::UserError;
use engine::model::Scaling;
use serde_json::{Value as Json, json};
use toml::Value;

use super::config_json::ConfigJson;
use super::family::ModelOptions;

/// `model.rope_base`, `model.rope_scaling` and its type, with the base `absent` if the file has none. Version 5 of
/// `transformers` has all in `rope_parameters`.
///
/// # Errors
/// A value that the trainer cannot compute with.
pub(super) fn options(config: &ConfigJson<'_>, absent: f64) -> Result<ModelOptions, UserError> {
    options_of(config, config.get("rope_parameters"), absent)
}

/// As [`options`], with those `rope_parameters`.
///
/// # Errors
/// A value that the trainer cannot compute with.
pub(super) fn options_of(config: &ConfigJson<'_>, parameters: &Json, absent: f64) -> Result<ModelOptions, UserError> {
    config.is_known("partial_rotary_factor", &[json!(1.0), json!(1)])?;
    if !matches!(parameters["partial_rotary_factor"].as_f64(), None | Some(1.0)) {
        return Err(config.refuse("rope_parameters", "its partial_rotary_factor is 1 or absent"));
    }
    let base = match &parameters["rope_theta"] {
        Json::Null => config.number_or("rope_theta", absent)?,
        base => base.as_f64().ok_or_else(|| config.refuse("rope_parameters", "its rope_theta is a number"))?,
    };
    let (kind, numbers) = match parameters.is_object() {
        true => scaling(config, "rope_parameters", parameters)?,
        false => scaling(config, "rope_scaling", config.get("rope_scaling"))?,
    };
    let numbers = numbers.into_iter().map(Value::Float).collect();
    let mut options = vec![("model.rope_base", base.into()), ("model.rope_scaling", Value::Array(numbers))];
    options.extend(kind.map(|kind| ("model.rope_scaling_type", Value::String(kind.into()))));
    Ok(options)
}

/// The type of a scaling and its numbers; none for none. `key` is its key, for errors.
fn scaling(config: &ConfigJson<'_>, key: &str, scaling: &Json) -> Result<(Option<&'static str>, Vec<f64>), UserError> {
    let kind = scaling["rope_type"].as_str().or_else(|| scaling["type"].as_str());
    let numbers = |keys: &[&str]| {
        let numbers: Option<Vec<f64>> = keys.iter().map(|key| scaling[key].as_f64()).collect();
        numbers.ok_or_else(|| config.refuse(key, &format!("it has the numbers {}", keys.join(", "))))
    };
    match kind {
        None if scaling.is_null() => Ok((None, Vec::new())),
        Some("default") => Ok((None, Vec::new())),
        Some("linear") => Ok((Some("linear"), numbers(&["factor"])?)),
        Some("llama3") => {
            let keys = ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];
            Ok((Some("llama3"), numbers(&keys)?))
        }
        Some("yarn") => {
            let factor = numbers(&["factor"])?[0];
            yarn(config, key, scaling, factor).map(|numbers| (Some("yarn"), numbers))
        }
        _ => Err(config.refuse(key, "its rope_type is \"llama3\", \"yarn\" or \"linear\", or it has none")),
    }
}

/// YaRN's numbers: factor, original context, beta fast, beta slow, attention factor.
fn yarn(config: &ConfigJson<'_>, key: &str, scaling: &Json, factor: f64) -> Result<Vec<f64>, UserError> {
    if !matches!(scaling["truncate"], Json::Null | Json::Bool(true)) {
        return Err(config.refuse(key, "its truncate is true or absent"));
    }
    let optional = |name: &str| match &scaling[name] {
        Json::Null => Ok(None),
        // `transformers` takes 0 as absent.
        number => match number.as_f64() {
            Some(number) => Ok(Some(number).filter(|number| *number != 0.0)),
            None => Err(config.refuse(key, &format!("its {name} is a number"))),
        },
    };
    let grows = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    let attention_factor = match (optional("attention_factor")?, optional("mscale")?, optional("mscale_all_dim")?) {
        (Some(given), ..) => given,
        (None, Some(scale), Some(all)) => grows(scale) / grows(all),
        _ => grows(1.0),
    };
    let context = match optional("original_max_position_embeddings")? {
        Some(context) => context,
        None => config.whole("max_position_embeddings")? as f64,
    };
    let (fast, slow) = (optional("beta_fast")?.unwrap_or(32.0), optional("beta_slow")?.unwrap_or(1.0));
    Ok(vec![factor, context, fast, slow, attention_factor])
}

/// `rope_scaling`.
pub(super) fn config_json(scaling: Option<Scaling>) -> Json {
    match scaling {
        None => Json::Null,
        Some(Scaling::Llama3 { factor, low, high, original_context }) => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original_context as u64,
        }),
        Some(Scaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor }) => json!({
            "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original_context as u64,
            "beta_fast": beta_fast, "beta_slow": beta_slow, "attention_factor": attention_factor,
        }),
        Some(Scaling::Linear { factor }) => json!({ "rope_type": "linear", "factor": factor }),
    }
}
