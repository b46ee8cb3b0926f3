//! Rotary positions in a `config.json`.

use common::UserError;
use engine::model::Scaling;
use serde_json::{Map, Value as Json, json};
use toml::Value;

use super::config_json::ConfigJson;
use super::family::NamedOptions;

/// The keys of `rope_parameters` for layers without and with a window, if different.
pub(super) const FULL_LAYERS: &str = "full_attention";
pub(super) const WINDOW_LAYERS: &str = "sliding_attention";

/// The options `model.rope_base`, `model.rope_scaling` and the scaling's type. Version 5 of `transformers` has all in
/// `rope_parameters`.
///
/// # Errors
/// A value that the trainer cannot compute with.
pub(super) fn options(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    options_of(config, config.get("rope_parameters"))
}

/// The options of [`options`], from the given `rope_parameters`.
///
/// # Errors
/// A value that the trainer cannot compute with.
pub(super) fn options_of(config: &ConfigJson<'_>, parameters: &Json) -> Result<NamedOptions, UserError> {
    config.is_known("partial_rotary_factor", &[json!(1.0), json!(1)])?;
    if !matches!(parameters["partial_rotary_factor"].as_f64(), None | Some(1.0)) {
        return Err(config.refuse("rope_parameters", "its partial_rotary_factor is 1 or absent"));
    }
    let base = base(config, "rope_theta", (parameters, "its rope_theta is a number"))?;
    let beside = config.get("rope_scaling");
    let (kind, numbers) = match parameters.is_object() {
        true => scaling(config, "rope_parameters", parameters)?,
        false => scaling(config, "rope_scaling", beside)?,
    };
    // Versions of `transformers` differ in the form that they take.
    if !beside.is_null() && scaling(config, "rope_scaling", beside)? != (kind, numbers.clone()) {
        return Err(config.refuse("rope_scaling", "it is as in rope_parameters, if both are there"));
    }
    let numbers = numbers.into_iter().map(Value::Float).collect();
    let mut options = vec![("rope_base", base.into()), ("rope_scaling", Value::Array(numbers))];
    options.extend(kind.map(|kind| ("rope_scaling_type", Value::String(kind.into()))));
    Ok(options)
}

/// A base: the `rope_theta` of `parameters`, with the rule for it, or the value of a key of version 4.
///
/// # Errors
/// Another value than a number, or two that differ.
pub(super) fn base(config: &ConfigJson<'_>, key: &str, (parameters, rule): (&Json, &str)) -> Result<f64, UserError> {
    let base = match &parameters["rope_theta"] {
        Json::Null => return config.usual_number(key),
        base => base.as_f64().ok_or_else(|| config.refuse("rope_parameters", rule))?,
    };
    match config.number_or(key, base)? == base {
        true => Ok(base),
        false => Err(config.refuse(key, "it is the rope_theta of rope_parameters, if both are there")),
    }
}

/// The type of a scaling and the scaling's numbers; none for no scaling. `key` is its key, for errors.
fn scaling(config: &ConfigJson<'_>, key: &str, scaling: &Json) -> Result<(Option<&'static str>, Vec<f64>), UserError> {
    let (kind, older) = (scaling["rope_type"].as_str(), scaling["type"].as_str());
    if kind.is_some() && older.is_some() && kind != older {
        return Err(config.refuse(key, "its rope_type is its type, if both are there"));
    }
    let kind = kind.or(older);
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
            let kind = match scaling["truncate"] {
                Json::Null | Json::Bool(true) => "yarn",
                Json::Bool(false) => "yarn_exact",
                _ => return Err(config.refuse(key, "its truncate is true, false or absent")),
            };
            yarn(config, key, scaling, factor).map(|numbers| (Some(kind), numbers))
        }
        _ => Err(config.refuse(key, "its rope_type is \"llama3\", \"yarn\" or \"linear\", or it has none")),
    }
}

/// YaRN's numbers: factor, original context, beta fast, beta slow, attention factor.
fn yarn(config: &ConfigJson<'_>, key: &str, scaling: &Json, factor: f64) -> Result<Vec<f64>, UserError> {
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

/// Writes `changed` keys of version 4 of `transformers` into a file's `rope_parameters`, if the file has such. The keys
/// that the file has beside them stay in `changed`.
pub(super) fn change_parameters(config: &mut Map<String, Json>, changed: &mut Map<String, Json>) {
    let has = |key: &str| config.get(key).is_some_and(|value| !value.is_null());
    let beside = ["rope_theta", "rope_scaling", "rope_local_base_freq"].map(|key| (key, has(key)));
    let Some(Json::Object(parameters)) = config.get_mut("rope_parameters") else { return };
    // Gemma 3 has some for each kind of layer.
    let is_by_layer = parameters.contains_key(FULL_LAYERS) || parameters.contains_key(WINDOW_LAYERS);
    let mut written = Vec::new();
    if !is_by_layer && !parameters.is_empty() {
        put(parameters, changed.get("rope_theta"), changed.get("rope_scaling"));
        written.extend(["rope_theta", "rope_scaling"]);
    }
    if let Some(Json::Object(full)) = parameters.get_mut(FULL_LAYERS) {
        put(full, changed.get("rope_theta"), changed.get("rope_scaling"));
        written.extend(["rope_theta", "rope_scaling"]);
    }
    if let Some(Json::Object(windows)) = parameters.get_mut(WINDOW_LAYERS) {
        put(windows, changed.get("rope_local_base_freq"), None);
        written.push("rope_local_base_freq");
    }
    changed.retain(|key, _| !written.contains(&key.as_str()) || beside.contains(&(key, true)));
}

/// Writes a changed base and a changed scaling into parameters of version 5.
fn put(parameters: &mut Map<String, Json>, base: Option<&Json>, scaling: Option<&Json>) {
    if let Some(scaling) = scaling {
        parameters.retain(|key, _| key == "rope_theta" || key == "partial_rotary_factor");
        let none = json!({ "rope_type": "default" });
        let scaling = if scaling.is_null() { &none } else { scaling };
        parameters.extend(scaling.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
    }
    parameters.extend(base.map(|base| ("rope_theta".into(), base.clone())));
}

/// `rope_scaling`.
pub(super) fn config_json(scaling: Option<Scaling>) -> Json {
    match scaling {
        None => Json::Null,
        Some(Scaling::Llama3 { factor, low, high, original_context }) => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": tokens(original_context),
        }),
        Some(Scaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, rounds }) => {
            let mut yarn = json!({
                "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": tokens(original_context),
                "beta_fast": beta_fast, "beta_slow": beta_slow, "attention_factor": attention_factor,
            });
            if !rounds {
                yarn["truncate"] = json!(false);
            }
            yarn
        }
        Some(Scaling::Linear { factor }) => json!({ "rope_type": "linear", "factor": factor }),
    }
}

/// A context. Files have whole numbers.
fn tokens(context: f64) -> Json {
    if context.fract() == 0.0 { json!(context as u64) } else { json!(context) }
}
