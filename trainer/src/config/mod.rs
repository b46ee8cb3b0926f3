//! From table, preset, file, flags and `--set` to one raw configuration.

pub mod batch_size;
mod checks;
pub mod learning_rate;
pub mod megatron;
pub mod model_plan;
pub mod options;
pub mod plan;
pub mod presets;
pub mod rank_layout;
pub mod recipes;
pub mod request;
mod watch;
pub mod without_effect;

use std::collections::BTreeMap;
use std::path::Path;

use common::{UserError, nearest};
use data::DataConfig;
use serde::{Deserialize, Serialize};
use toml::Value;

use crate::config::options::{Kind, OPTIONS, OptionSpec, find, preset};

/// The configuration as the user gave it, every option present; nothing is checked but names and types.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the option table documents every field")]
pub struct RunConfig {
    pub model: ModelConfig,
    pub data: DataConfig,
    pub train: TrainConfig,
    pub optimizer: OptimizerConfig,
    pub precision: PrecisionConfig,
    pub parallel: ParallelConfig,
    pub recompute: RecomputeConfig,
    pub cuda_graph: CudaGraphConfig,
    pub checkpoint: CheckpointConfig,
    pub logging: LoggingConfig,
}

impl RunConfig {
    /// As [`by_key`].
    pub fn by_key(&self) -> BTreeMap<String, Value> {
        by_key(toml::Table::try_from(self).unwrap_or_default())
    }
}

/// The values of a configuration by their keys, such as `optimizer.lr`; what is unset is not among them.
pub fn by_key(config: toml::Table) -> BTreeMap<String, Value> {
    let sections = config.into_iter().filter_map(|(section, content)| match content {
        Value::Table(content) => Some((section, content)),
        _ => None,
    });
    let keyed = |(section, content): (String, toml::Table)| {
        content.into_iter().map(move |(name, value)| (format!("{section}.{name}"), value))
    };
    sections.flat_map(keyed).collect()
}

/// A section of the configuration: a struct whose fields the option table documents.
macro_rules! section {
    ($name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        #[doc = "A section of the configuration; the option table documents its fields."]
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(missing_docs, reason = "the option table documents every field")]
        pub struct $name { $(pub $field: $type),* }
    };
}

section!(ModelConfig {
    preset: String,
    init_from: Option<String>,
    kind: String,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: Option<usize>,
    ffn: Option<usize>,
    vocab: usize,
    seq_length: usize,
    attention: bool,
    norm: String,
    norm_eps: f64,
    activation: String,
    position: String,
    rope_base: f64,
    rope_scaling: Vec<f64>,
    bias: bool,
    init_std: f64,
    residual_init: String,
    tie_embeddings: bool,
    hidden_dropout: f64,
    attention_dropout: f64,
    loss_pieces: Option<usize>,
    layer_sizes: Vec<usize>,
    dropouts: Vec<f64>,
});
section!(TrainConfig {
    device: String,
    steps: usize,
    seed: u64,
    global_batch_size: usize,
    rampup_batch_size: Vec<usize>,
    micro_batch_size: usize,
    deterministic: bool,
    eval_interval: usize,
    eval_steps: usize,
    threads: Option<usize>,
});
section!(OptimizerConfig {
    kind: String,
    lr: f64,
    min_lr: f64,
    warmup_steps: usize,
    decay_steps: usize,
    schedule: String,
    betas: Vec<f64>,
    eps: f64,
    momentum: f64,
    weight_decay: f64,
    clip: f64,
});
section!(PrecisionConfig { compute: String });
section!(ParallelConfig {
    tensor: usize,
    sequence_parallel: bool,
    pipeline: usize,
    pipeline_schedule: String,
    virtual_pipeline: usize,
    microbatch_group: Option<usize>,
    pipeline_layers: Vec<usize>,
    distributed_optimizer: bool,
    grad_reduce: String,
    bucket_mib: usize,
    heartbeat_seconds: f64,
    distributed_timeout_seconds: f64,
    setup_timeout_seconds: f64,
    monitor_address: Option<String>,
});
section!(RecomputeConfig { granularity: String, method: String, layers: usize });
section!(CudaGraphConfig {
    enable: bool,
    scope: String,
    warmup_steps: usize,
    mempool: String,
    share_io_buffers: bool,
    capture_optimizer: bool,
});
section!(CheckpointConfig { dir: Option<String>, interval: usize, keep: usize, resume: String });
section!(LoggingConfig {
    dir: String,
    interval: usize,
    tensorboard: bool,
    wandb: bool,
    trace: Option<String>,
    trace_after: Option<usize>,
    trace_steps: usize,
});

/// Values of the model section, by key.
pub type ModelOptions = Vec<(&'static str, Value)>;

/// Values by key, later ones over earlier ones.
#[derive(Default)]
pub struct Layers {
    base: BTreeMap<&'static str, Value>,
    file: BTreeMap<&'static str, Value>,
    flags: BTreeMap<&'static str, Value>,
}

impl Layers {
    /// Takes all values of a TOML file.
    ///
    /// # Errors
    /// A file that cannot be read or parsed, an unknown key, a value of the wrong type.
    pub fn read_file(&mut self, path: &Path) -> Result<(), UserError> {
        let name = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            UserError::new(
                format!("config file {name} cannot be read: {error}"),
                "--config names a TOML file",
                "check the path",
            )
        })?;
        self.read_text(&text, &name.to_string())
    }

    /// As [`Layers::read_file`], for text that came from `origin`.
    ///
    /// # Errors
    /// As [`Layers::read_file`].
    pub fn read_text(&mut self, text: &str, origin: &str) -> Result<(), UserError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = 1 + error
                .span()
                .and_then(|span| text.get(..span.start))
                .map_or(0, |before| before.matches('\n').count());
            let what = format!("{origin} is not TOML: line {line}: {}", error.message());
            UserError::new(what, "a config is a TOML file", "mend that line")
        })?;
        for (section, values) in table {
            let Value::Table(values) = values else {
                return Err(bare(&section, &values, origin));
            };
            for (name, value) in values {
                let key = format!("{section}.{name}");
                let option = find(&key).ok_or_else(|| unknown(&key, origin))?;
                self.file.insert(option.key, checked(option, value, origin)?);
            }
        }
        Ok(())
    }

    /// Takes a value given as text, by flag or `--set`; quotes around text are not needed.
    ///
    /// # Errors
    /// An unknown key, a value of the wrong type.
    pub fn set(&mut self, key: &str, text: &str, origin: &str) -> Result<(), UserError> {
        let option = find(key).ok_or_else(|| unknown(key, origin))?;
        let text = &*megatron::word(option.key, text);
        let bare = || Value::String(text.into());
        let value = match option.kind {
            Kind::Text | Kind::Choice(_) if !text.starts_with('"') => bare(),
            Kind::Paths if !text.starts_with(['"', '[']) => bare(),
            _ => literal(text).unwrap_or_else(bare),
        };
        self.flags.insert(option.key, checked(option, value, origin)?);
        Ok(())
    }

    /// Takes values that stand below file and flags, as a preset's do: those of a model that training starts from.
    pub fn start_from(&mut self, values: &[(&'static str, Value)]) {
        self.base.extend(values.iter().cloned());
    }

    /// The folder training starts from, if one is named.
    pub fn init_from(&self) -> Option<&str> {
        let key = "model.init_from";
        self.flags.get(key).or_else(|| self.file.get(key)).and_then(Value::as_str)
    }

    /// What makes the model that these values describe, fit for [`Layers::start_from`].
    pub fn model_values(&self) -> ModelOptions {
        let resolved = toml::Table::try_from(self.resolve().model).unwrap_or_default();
        let keys = OPTIONS.iter().filter_map(|option| Some((option.key, option.key.strip_prefix("model.")?)));
        keys.filter(|(_, name)| !["preset", "init_from"].contains(name))
            .filter_map(|(key, name)| Some((key, resolved.get(name)?.clone())))
            .collect()
    }

    /// The configuration: defaults, then the preset, what training starts from, the file, flags and `--set`.
    pub fn resolve(&self) -> RunConfig {
        let chosen = self.flags.get("model.preset").or_else(|| self.file.get("model.preset"));
        let chosen = chosen.and_then(Value::as_str).unwrap_or("tiny");
        let mut values: BTreeMap<&str, Value> = BTreeMap::new();
        let defaults = OPTIONS.iter().map(|option| (option.key, option.default));
        for (key, text) in defaults.chain(preset(chosen)) {
            if let (Some(value), Some(option)) = (literal(text), find(key)) {
                values.insert(key, widened(option, value));
            }
        }
        for (key, value) in self.base.iter().chain(&self.file).chain(&self.flags) {
            values.insert(key, value.clone());
        }
        let mut table = toml::Table::new();
        for (key, value) in values {
            if let Some((section, name)) = key.split_once('.')
                && let Value::Table(section) = table.entry(section).or_insert_with(|| Value::Table(toml::Table::new()))
            {
                section.insert(name.into(), value);
            }
        }
        for section in OPTIONS.iter().filter_map(|option| option.key.split_once('.')) {
            table.entry(section.0).or_insert_with(|| Value::Table(toml::Table::new()));
        }
        match table.try_into() {
            Ok(config) => config,
            Err(error) => unreachable!("the option table and RunConfig disagree: {error}"),
        }
    }
}

fn literal(text: &str) -> Option<Value> {
    format!("x = {text}").parse::<toml::Table>().ok()?.remove("x")
}

/// Whole numbers are numbers too.
fn widened(option: &OptionSpec, value: Value) -> Value {
    match (option.kind, value) {
        (Kind::Float, Value::Integer(whole)) => Value::Float(whole as f64),
        (Kind::Floats, Value::Array(items)) => Value::Array(
            items
                .into_iter()
                .map(|item| match item {
                    Value::Integer(whole) => Value::Float(whole as f64),
                    other => other,
                })
                .collect(),
        ),
        (_, value) => value,
    }
}

/// The value, if it is of the option's kind.
fn checked(option: &OptionSpec, value: Value, origin: &str) -> Result<Value, UserError> {
    let value = widened(option, value);
    let natural = |value: &Value| value.as_integer().is_some_and(|n| n >= 0);
    let fits = match option.kind {
        Kind::Bool => value.is_bool(),
        Kind::Integer => natural(&value),
        Kind::Float => value.as_float().is_some_and(f64::is_finite),
        Kind::Text => value.as_str().is_some_and(|text| !text.trim().is_empty()),
        Kind::Choice(words) => value.as_str().is_some_and(|word| words.contains(&word)),
        Kind::Integers => value.as_array().is_some_and(|items| items.iter().all(natural)),
        Kind::Floats => value.as_array().is_some_and(|items| items.iter().all(Value::is_float)),
        Kind::Paths => {
            let path = |item: &Value| item.as_str().is_some_and(|path| !path.trim().is_empty());
            let item = |item: &Value| path(item) || item.is_float() || item.is_integer();
            path(&value) || value.as_array().is_some_and(|items| items.iter().all(item))
        }
    };
    if fits {
        return Ok(value);
    }
    let mut fix = match option.default {
        "" => format!("set {} to {}", option.key, option.kind.expected()),
        default => format!("for example, set {} = {default}", option.key),
    };
    if value.as_str().is_some_and(|text| text.trim().is_empty()) {
        fix = format!("give {} a value, or leave it out", option.key);
    }
    if let (Kind::Choice(words), Some(word)) = (option.kind, value.as_str())
        && let Some(near) = nearest(word, words.iter().copied())
    {
        fix = format!("did you mean `{near}`?");
    }
    if let Some(known) = value.as_str().and_then(|text| megatron::fix(option.key, text)) {
        fix = known;
    }
    Err(UserError::new(
        format!("{} = {value} ({origin})", option.key),
        format!("it is {}", option.kind.expected()),
        fix,
    ))
}

/// A key that stands outside of all sections.
fn bare(name: &str, value: &Value, origin: &str) -> UserError {
    if OPTIONS.iter().any(|option| option.key.split_once('.').is_some_and(|(section, _)| section == name)) {
        let fix = format!("write a line [{name}], and its keys below");
        return UserError::new(format!("{name} = {value} ({origin})"), format!("`{name}` is a section"), fix);
    }
    unknown(name, origin)
}

fn unknown(key: &str, origin: &str) -> UserError {
    // The name of a key without its section is the commonest slip.
    let named = OPTIONS.iter().map(|option| option.key).find(|known| known.split_once('.').is_some_and(|k| k.1 == key));
    let fix = match named.or_else(|| nearest(key, OPTIONS.iter().map(|option| option.key))) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "see `trainer options` for all keys".into(),
    };
    UserError::new(format!("unknown key `{key}` ({origin})"), "only options of the table are known", fix)
}
