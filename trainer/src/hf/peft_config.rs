//! `adapter_config.json` of PEFT.

use std::path::{Path, PathBuf};

use common::UserError;
use common::files::read_file;
use fancy_regex::Regex;
use serde_json::{Map, Value as Json};

/// The file's name.
pub(super) const ADAPTER_CONFIG: &str = "adapter_config.json";

/// The key of the folder of the model that the adapters belong to.
pub(super) const BASE_MODEL: &str = "base_model_name_or_path";

/// The largest one that is read, in bytes.
const LARGEST: u64 = 4 << 20;

/// Keys that are read, and keys that say nothing about weights. All others are of other kinds of adapters. PEFT sets
/// `fan_in_fan_out` by the class of the layer, and the file's tensors tell the layers of `target_modules`.
const KNOWN: &str = "alpha_pattern auto_mapping base_model_name_or_path bias eva_config exclude_modules fan_in_fan_out inference_mode \
    init_lora_weights layers_pattern loftq_config lora_alpha lora_dropout megatron_core peft_type peft_version \
    qalora_group_size r rank_pattern revision target_modules target_parameters task_type";

/// Kinds of first values that leave the base model unchanged. Others, such as PiSSA's, change it.
const BEGINNINGS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// The description of adapters in PEFT's file.
pub(super) struct PeftConfig {
    /// The folder of the model that the adapters belong to.
    pub(super) base: PathBuf,
    /// The rank of layers without a pattern.
    pub(super) rank: usize,
    /// The same of alpha.
    pub(super) alpha: f64,
    pub(super) dropout: f64,
    /// Whether the scale is alpha / sqrt(rank), in place of alpha / rank.
    pub(super) rslora: bool,
    /// The parameters with adapters that are no modules, such as `mlp.experts.down_proj`.
    pub(super) parameters: Vec<String>,
    ranks: Vec<(Regex, f64)>,
    alphas: Vec<(Regex, f64)>,
}

impl PeftConfig {
    /// Reads the file of a folder.
    ///
    /// # Errors
    /// A file that is missing or damaged; adapters of another kind; a base model that is not here.
    pub(super) fn read(folder: &Path) -> Result<PeftConfig, UserError> {
        let path = folder.join(ADAPTER_CONFIG);
        let text = read_file(&path, LARGEST).map_err(|error| damaged(&path, &format!("cannot be read: {error}")))?;
        let json = serde_json::from_slice(&text).map_err(|error| damaged(&path, &format!("is not JSON: {error}")))?;
        let Json::Object(config) = json else { return Err(damaged(&path, "is not a JSON object")) };
        check_kind(&path, &config)?;
        let number = |key: &str, default: Option<f64>| {
            let found = match config.get(key) {
                None | Some(Json::Null) => default,
                Some(value) => value.as_f64(),
            };
            found.filter(|number| number.is_finite()).ok_or_else(|| damaged(&path, &format!("has no number {key}")))
        };
        let rank = number("r", None)?;
        if rank < 1.0 || rank.fract() != 0.0 || rank > f64::from(u32::MAX) {
            return Err(damaged(&path, &format!("has r = {rank}")));
        }
        Ok(PeftConfig {
            base: base(&path, &config)?,
            rank: rank as usize,
            alpha: number("lora_alpha", None)?,
            dropout: number("lora_dropout", Some(0.0))?,
            rslora: config.get("use_rslora").and_then(Json::as_bool).unwrap_or(false),
            parameters: texts(&config, "target_parameters"),
            ranks: patterns(&path, &config, "rank_pattern")?,
            alphas: patterns(&path, &config, "alpha_pattern")?,
        })
    }

    /// The rank of a layer.
    pub(super) fn rank_of(&self, layer: &str) -> usize {
        of_layer(&self.ranks, layer).map_or(self.rank, |rank| rank as usize)
    }

    /// The alpha of a layer.
    pub(super) fn alpha_of(&self, layer: &str) -> f64 {
        of_layer(&self.alphas, layer).unwrap_or(self.alpha)
    }

    /// The key with several patterns that give a layer different numbers. PEFT takes the first of the file.
    pub(super) fn ambiguous(&self, layer: &str) -> Option<&'static str> {
        let differ = |patterns: &[(Regex, f64)]| {
            let mut matching = patterns.iter().filter(|(pattern, _)| pattern.is_match(layer).unwrap_or(false));
            let first = matching.next().map(|(_, value)| *value);
            matching.any(|(_, value)| Some(*value) != first)
        };
        [("rank_pattern", &self.ranks), ("alpha_pattern", &self.alphas)]
            .into_iter()
            .find_map(|(key, patterns)| differ(patterns).then_some(key))
    }

    /// The factor of the product of a layer with that rank and alpha.
    pub(super) fn scale(&self, rank: usize, alpha: f64) -> f64 {
        let rank = rank as f64;
        alpha / if self.rslora { rank.sqrt() } else { rank }
    }
}

/// The texts of a key that has a list; none without one.
fn texts(config: &Map<String, Json>, key: &str) -> Vec<String> {
    let list = config.get(key).and_then(Json::as_array).into_iter().flatten();
    list.filter_map(|text| Some(text.as_str()?.to_string())).collect()
}

/// The value of the first pattern that matches a layer's name.
fn of_layer(patterns: &[(Regex, f64)], layer: &str) -> Option<f64> {
    patterns.iter().find(|(pattern, _)| pattern.is_match(layer).unwrap_or(false)).map(|(_, value)| *value)
}

/// Numbers by expressions that match the end of a layer's name after a dot, or all of it.
fn patterns(path: &Path, config: &Map<String, Json>, key: &str) -> Result<Vec<(Regex, f64)>, UserError> {
    let table = match config.get(key) {
        None | Some(Json::Null) => return Ok(Vec::new()),
        Some(Json::Object(table)) => table,
        Some(_) => return Err(damaged(path, &format!("has a {key} that is no object"))),
    };
    let read = |(pattern, value): (&String, &Json)| {
        let wrong = || damaged(path, &format!("has {key} {pattern:?}: {value}"));
        let number = value.as_f64().filter(|number| *number > 0.0 && number.is_finite()).ok_or_else(wrong)?;
        Ok((Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$")).map_err(|_| wrong())?, number))
    };
    table.iter().map(read).collect()
}

/// Fails on adapters of a kind that the trainer does not have.
fn check_kind(path: &Path, config: &Map<String, Json>) -> Result<(), UserError> {
    let refuse = |key: &str, value: &Json| {
        Err(UserError::new(
            format!("{} has {key} = {value}", path.display()),
            "adapters are LoRA of linear layers in every block, and leave their base model as it is",
            "merge them into their base (merge_and_unload of PEFT), and start from that model",
        ))
    };
    for (key, value) in config {
        let is_fine = match key.as_str() {
            "peft_type" => value == "LORA",
            "bias" => value == "none",
            "use_rslora" => value.is_boolean() || value.is_null(),
            "init_lora_weights" => {
                value.is_boolean() || value.is_null() || value.as_str().is_some_and(|word| BEGINNINGS.contains(&word))
            }
            known if KNOWN.split(' ').any(|key| key == known) => true,
            _ => is_off(value),
        };
        if !is_fine {
            return refuse(key, value);
        }
    }
    match config.get("peft_type") {
        Some(_) => Ok(()),
        None => refuse("peft_type", &Json::Null),
    }
}

/// Whether a value switches the key off.
fn is_off(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::Array(items) => items.is_empty(),
        Json::Object(items) => items.is_empty(),
        _ => false,
    }
}

/// The folder of the base model.
fn base(path: &Path, config: &Map<String, Json>) -> Result<PathBuf, UserError> {
    let key = BASE_MODEL;
    let name = config.get(key).and_then(Json::as_str).unwrap_or_default();
    if !name.is_empty() && Path::new(name).is_dir() {
        return Ok(name.into());
    }
    let what = match name.is_empty() {
        true => format!("{} has no {key}", path.display()),
        false => format!("{} has {key} = {name:?}, which is no folder here", path.display()),
    };
    let fix =
        format!("set {key} there to the folder of the base model (hf download MODEL --local-dir FOLDER gets one)");
    Err(UserError::new(what, "adapters are read with the model that they belong to", fix))
}

fn damaged(path: &Path, problem: &str) -> UserError {
    UserError::new(
        format!("{} {problem}", path.display()),
        "it describes adapters, as save_pretrained of PEFT wrote it",
        "save the adapters anew",
    )
}
