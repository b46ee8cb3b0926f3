//! Windows of attention in a `config.json`.

use common::UserError;
use engine::model::GptShape;
use serde_json::{Value as Json, json};
use toml::Value;

use super::config_json::{ConfigJson, MOST_LAYERS};
use super::family::{Keys, NamedOptions};

/// The names in `transformers` of a layer that sees all tokens before, and of one with a window.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// `sliding_window`: the number of tokens that a token sees, or `None` for all. `absent` is the value of `transformers`
/// for an absent key.
///
/// # Errors
/// Another value.
pub(super) fn sliding_window(config: &ConfigJson<'_>, absent: i64) -> Result<Option<i64>, UserError> {
    match config.get("sliding_window").is_null() && config.has("sliding_window") {
        true => Ok(None),
        false => config.whole_or("sliding_window", absent).map(Some),
    }
}

/// Whether each layer has a window: by `layer_types`, or if that is absent by `default` for the layer's number.
///
/// # Errors
/// Layers of another kind, or more or fewer than the model has.
pub(super) fn layers(config: &ConfigJson<'_>, default: impl Fn(i64) -> bool) -> Result<Vec<bool>, UserError> {
    let count = config.whole("num_hidden_layers")?.min(MOST_LAYERS);
    let types = config.get("layer_types");
    if types.is_null() {
        return Ok((0..count).map(default).collect());
    }
    let known = |layer: &Json| match layer.as_str() {
        Some(FULL) => Some(false),
        Some(SLIDING) => Some(true),
        _ => None,
    };
    let layers: Option<Vec<bool>> = types.as_array().and_then(|types| types.iter().map(known).collect());
    let layers = layers.filter(|layers| layers.len() as i64 == count);
    layers.ok_or_else(|| {
        config.refuse("layer_types", &format!("it has \"{FULL}\" or \"{SLIDING}\" for each of num_hidden_layers"))
    })
}

/// The windows of a family whose files have two more keys: whether windows are used, and from which layer on.
pub(super) const OPTIONAL: Keys = Keys {
    read: optional,
    write: |shape| {
        let mut keys = used(shape);
        keys["layer_types"] = layer_types(shape);
        keys
    },
};

/// # Errors
/// Values that contradict each other.
fn optional(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    let is_used = config.flag_or("use_sliding_window", false)?;
    let window = if is_used { sliding_window(config, 4096)? } else { None };
    let first = match config.get("max_window_layers") {
        Json::Null => 28,
        first => first.as_i64().ok_or_else(|| config.refuse("max_window_layers", "it is a whole number"))?,
    };
    let layers = layers(config, |layer| window.is_some() && layer >= first)?;
    if window.is_none() && layers.contains(&true) {
        let rule = "all layers are \"full_attention\", or use_sliding_window is true and sliding_window a number";
        return Err(config.refuse("layer_types", rule));
    }
    Ok(options(window, &layers))
}

/// The options of a model whose `layers` have a window or none.
pub(super) fn options(window: Option<i64>, layers: &[bool]) -> NamedOptions {
    let Some(window) = window.filter(|_| layers.contains(&true)) else { return Vec::new() };
    let mut options: NamedOptions = vec![("sliding_window", window.into())];
    if layers.contains(&false) {
        let repeats = |period: &usize| layers.iter().enumerate().all(|(at, has)| layers[at % period] == *has);
        let period = (1..=layers.len()).find(repeats).unwrap_or(layers.len());
        let pattern = layers[..period].iter().map(|has| Value::Integer(i64::from(*has)));
        options.push(("window_pattern", Value::Array(pattern.collect())));
    }
    options
}

/// Whether a shape has windows, and of how many tokens.
pub(super) fn used(shape: &GptShape) -> Json {
    json!({ "use_sliding_window": shape.windows.is_some(), "sliding_window": tokens(shape) })
}

/// `layer_types` of a shape.
pub(super) fn layer_types(shape: &GptShape) -> Json {
    let has_window = |block| shape.mask(block).window.is_some();
    (0..shape.layers).map(|block| if has_window(block) { SLIDING } else { FULL }).collect()
}

/// The number of tokens in a shape's windows; null without windows.
pub(super) fn tokens(shape: &GptShape) -> Json {
    json!(shape.windows.as_ref().map(|windows| windows.tokens))
}

/// Whether every block of the shape has a window, or none.
pub(super) fn are_in_all_blocks_or_none(shape: &GptShape) -> bool {
    (0..shape.layers).all(|block| shape.mask(block) == shape.mask(0))
}
