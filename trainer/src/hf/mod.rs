//! Weights from and to Hugging Face, in the files that `transformers` saves and loads.
//!
//! [`Pretrained`] is a folder of weights, theirs or ours. [`convert`] writes one from the other, with one tensor at a time
//! in memory. What a family's files are like is said in [`crate::families`]; [`names`] applies it to all parameters of a
//! model.

pub mod names;
mod read;
mod write;

use std::path::{Path, PathBuf};

use common::UserError;
use device::Device;
use engine::model::GptShape;
use engine::params::Params;
use half::{bf16, f16};
use serde_json::{Value as Json, json};
use toml::Value;

use self::names::{Entry, Naming, entries};
use self::read::WeightFolder;
use self::write::not_written;
use crate::checkpoint::{newest_in, tokenizer_of};
use crate::config::model_plan::{ModelPlan, model_plan};
use crate::config::{Layers, RunConfig};
use crate::error::{LoadError, RunError};
use crate::families::{self, HuggingFace, ModelOptions};

/// Largest file, in bytes, as `transformers` has it.
const SHARD_BYTES: usize = 5_000_000_000;

/// Type of the values in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
}

impl DataType {
    /// The type that safetensors calls so.
    fn named(name: &str) -> Option<DataType> {
        [DataType::F32, DataType::F16, DataType::Bf16].into_iter().find(|dtype| dtype.name() == name)
    }

    /// As options name it; f32 unless that is `f16` or `bf16`.
    pub fn from_option(word: &str) -> DataType {
        match word {
            "f16" => DataType::F16,
            "bf16" => DataType::Bf16,
            _ => DataType::F32,
        }
    }

    fn name(self) -> &'static str {
        match self {
            DataType::F32 => "F32",
            DataType::F16 => "F16",
            DataType::Bf16 => "BF16",
        }
    }

    fn torch_name(self) -> &'static str {
        match self {
            DataType::F32 => "float32",
            DataType::F16 => "float16",
            DataType::Bf16 => "bfloat16",
        }
    }

    fn size(self) -> usize {
        if self == DataType::F32 { 4 } else { 2 }
    }

    fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let halves = |value: fn([u8; 2]) -> f32| bytes.chunks_exact(2).map(move |b| value([b[0], b[1]])).collect();
        match self {
            DataType::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
            DataType::F16 => halves(|b| f16::from_le_bytes(b).to_f32()),
            DataType::Bf16 => halves(|b| bf16::from_le_bytes(b).to_f32()),
        }
    }

    fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            DataType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            DataType::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            DataType::Bf16 => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        }
    }
}

/// A folder with a model: `config.json` and weights of Hugging Face, or our `config.toml` and weights, as in a checkpoint.
/// In a folder of checkpoints it is the newest complete one.
pub struct Pretrained {
    folder: PathBuf,
    naming: Naming,
    options: ModelOptions,
}

impl Pretrained {
    /// Reads which model a folder has. Its weights are not read yet.
    ///
    /// # Errors
    /// A folder without a configuration, or with one of an unknown family; checkpoints of which none is complete.
    pub fn open(folder: &Path) -> Result<Pretrained, UserError> {
        let is_model = ["config.json", "config.toml"].iter().any(|name| folder.join(name).exists());
        let folder = &if is_model || !folder.is_dir() { folder.to_path_buf() } else { newest_in(folder)? };
        let theirs = folder.join("config.json");
        let (naming, options) = if theirs.exists() {
            let origin = theirs.display().to_string();
            let wrong = |problem: String| {
                UserError::new(
                    format!("{origin} {problem}"),
                    "it is a model's JSON configuration",
                    "get the file again",
                )
            };
            let text = std::fs::read(&theirs).map_err(|error| wrong(format!("cannot be read: {error}")))?;
            let json = serde_json::from_slice(&text).map_err(|error| wrong(format!("is not JSON: {error}")))?;
            let (family, options) = families::from_config_json(&json, &origin)?;
            (Naming::Family(family), options)
        } else {
            (Naming::Ours, own_options(folder)?)
        };
        Ok(Pretrained { folder: folder.clone(), naming, options })
    }

    /// The model's options, by key.
    pub fn options(&self) -> &[(&'static str, Value)] {
        &self.options
    }

    /// Fills parameters of a model of that shape.
    ///
    /// # Errors
    /// Weights that are missing, broken, or do not fit.
    pub fn load(&self, shape: &GptShape, params: &Params, device: &Device) -> Result<(), LoadError> {
        let entries = entries(shape, self.naming);
        let weights = WeightFolder::open(&self.folder, self.naming)?;
        weights.all_used(&entries)?;
        for entry in &entries {
            let Some(index) = params.specs.iter().position(|spec| spec.name == entry.name) else {
                continue; // another stage's
            };
            let values = weights.parameter(entry)?;
            params.set(device, index, &params.specs[index].stored_values(|at| values[at]))?;
        }
        Ok(())
    }

    fn config(&self) -> RunConfig {
        let mut layers = Layers::default();
        layers.start_from(&self.options);
        layers.resolve()
    }
}

/// The model options of our own `config.toml`.
fn own_options(folder: &Path) -> Result<ModelOptions, UserError> {
    let path = folder.join("config.toml");
    if !path.exists() {
        let problem = if folder.exists() { "has neither config.json nor config.toml" } else { "does not exist" };
        return Err(UserError::new(
            format!("{} {problem}", folder.display()),
            "it is the folder of a Hugging Face model, of a checkpoint or of several, or one that `trainer convert` wrote",
            "check the path",
        ));
    }
    let mut layers = Layers::default();
    layers.read_file(&path)?;
    Ok(layers.model_values())
}

/// The direction of [`convert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To a folder that `transformers` loads, with values of this type.
    ToHuggingFace(DataType),
    /// To a folder that `model.init_from` takes.
    FromHuggingFace,
}

/// Writes the model of `source` to the folder `target`, which is created, and returns a line about it.
///
/// # Errors
/// The user's: a source that is damaged or of the other kind, a model of no Hugging Face family, a target that has weights
/// already or cannot be created. A fault: a file that cannot be written.
pub fn convert(source: &Path, target: &Path, direction: Direction) -> Result<String, RunError> {
    let pretrained = Pretrained::open(source)?;
    let source = pretrained.folder.as_path();
    let theirs = matches!(pretrained.naming, Naming::Family(_));
    if theirs != (direction == Direction::FromHuggingFace) {
        let (has, fix) = if theirs { ("config.json", "--from hf") } else { ("config.toml", "--to hf") };
        return Err(UserError::new(
            format!("{} has a {has}", source.display()),
            "--to hf takes our weights, --from hf a Hugging Face model",
            format!("use {fix}"),
        )
        .into());
    }
    let config = pretrained.config();
    let ModelPlan::Gpt(shape) = model_plan(&config)? else {
        return Err(no_family(source, "model.kind = \"mlp\"").into());
    };
    let (naming, dtype) = match direction {
        Direction::ToHuggingFace(dtype) => {
            let family = families::of_shape(&shape).map_err(|options| no_family(source, &options))?;
            (Naming::Family(family), dtype)
        }
        Direction::FromHuggingFace => (Naming::Ours, DataType::F32),
    };
    for name in ["model.safetensors", "model.safetensors.index.json"] {
        if target.join(name).exists() {
            return Err(UserError::new(
                format!("{} has a {name}", target.display()),
                "a conversion overwrites no weights",
                "name another folder",
            )
            .into());
        }
    }
    let (from, to) = (entries(&shape, pretrained.naming), entries(&shape, naming));
    let weights = WeightFolder::open(source, pretrained.naming)?;
    weights.all_used(&from)?;
    std::fs::create_dir_all(target).map_err(|error| unwritable(target, &error))?;
    write::write(target, &to, dtype, SHARD_BYTES, &|index| weights.parameter(&from[index]))?;
    write_config(target, &pretrained, &shape, naming, dtype)?;
    let parameters: usize = to.iter().map(|entry: &Entry| entry.shape.iter().product::<usize>()).sum();
    Ok(format!(
        "{}: {parameters} parameters in {} tensors",
        target.display(),
        to.iter().map(|e| e.parts.len()).sum::<usize>()
    ))
}

fn write_config(
    target: &Path,
    pretrained: &Pretrained,
    shape: &GptShape,
    naming: Naming,
    dtype: DataType,
) -> Result<(), RunError> {
    let (name, text) = match naming {
        Naming::Ours => {
            let lines = pretrained.options.iter().map(|(key, value)| {
                let name = key.trim_start_matches("model.");
                format!("{name} = {value}\n")
            });
            ("config.toml", format!("[model]\n{}", lines.collect::<String>()))
        }
        Naming::Family(family) => {
            let end = end_of_text(&pretrained.folder, shape.vocab);
            ("config.json", format!("{:#}\n", config_json(family, shape, dtype, end)))
        }
    };
    let path = target.join(name);
    std::fs::write(&path, text).map_err(not_written(&path))
}

/// The `config.json` of a model, as `transformers` reads it. `end` is the token that ends a document, where it is known.
fn config_json(family: &dyn HuggingFace, shape: &GptShape, dtype: DataType, end: Option<u32>) -> Json {
    let mut config = family.config_json(shape);
    // Without the keys of tokens transformers would take its class's defaults, which may lie beyond the vocabulary.
    let of_all_families = json!({
        "vocab_size": shape.vocab, "tie_word_embeddings": shape.tied, "initializer_range": shape.init_std,
        "torch_dtype": dtype.torch_name(), "bos_token_id": null, "eos_token_id": end, "use_cache": true,
    });
    if let (Json::Object(config), Json::Object(of_all_families)) = (&mut config, of_all_families) {
        config.extend(of_all_families);
    }
    config
}

/// The token that ends the documents that a model of ours was trained on; `None` unless its run names a tokenizer that is
/// still there.
fn end_of_text(folder: &Path, vocab: usize) -> Option<u32> {
    let mut layers = Layers::default();
    layers.read_file(&folder.join("config.toml")).ok()?;
    let config = layers.resolve();
    // Without data of its own there were no documents; token files need not say what their tokens mean.
    let known = config.data.path.is_some() && (config.data.tokenizer != "byte" || vocab <= 256);
    let tokenizer = known.then(|| tokenizer_of(folder, &config, None).ok())??;
    Some(tokenizer.end_of_text()).filter(|&end| (end as usize) < vocab)
}

fn unwritable(folder: &Path, error: &std::io::Error) -> UserError {
    UserError::new(
        format!("{} cannot be made: {error}", folder.display()),
        "a conversion writes into a folder that is there or can be made",
        "check the path and its permissions",
    )
}

fn no_family(source: &Path, options: &str) -> UserError {
    UserError::new(
        format!("the model of {} has {options}", source.display()),
        format!(
            "a model is exported as one of these families: {}; the presets in `trainer options` have their choices",
            families::hugging_face_names()
        ),
        "train a model of one of these families to export it",
    )
}
