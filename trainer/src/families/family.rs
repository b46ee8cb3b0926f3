//! The description of a model family.

use common::UserError;
use engine::model::GptShape;
use serde_json::Value as Json;
use toml::Value;

use super::config_json::ConfigJson;

/// Options by key, with values as in TOML.
pub type Settings = &'static [(&'static str, &'static str)];

/// Values of the model section, by key.
pub type ModelOptions = Vec<(&'static str, Value)>;

/// A family of models.
pub struct ModelFamily {
    /// Its name, for people.
    pub name: &'static str,
    /// The options that make a model one of the family, as far as they differ from the defaults.
    pub choices: Settings,
    /// Published sizes.
    pub sizes: &'static [Size],
    /// Its files on Hugging Face; `None` if `transformers` does not have it.
    pub hugging_face: Option<&'static dyn HuggingFace>,
}

/// A published size of a family. Users name it as a [`Preset`](super::Preset).
pub struct Size {
    /// The preset's name.
    pub name: &'static str,
    /// Its sizes, and the choices that differ from the family's.
    pub model: Settings,
    /// How it was trained.
    pub training: Settings,
}

/// A family's files on Hugging Face: `config.json`, and the tensors in its safetensors files.
pub trait HuggingFace: Sync {
    /// `model_type` in `config.json`.
    fn model_type(&self) -> &'static str;

    /// The properties that make a model one of the family. For each: whether a shape has it, and the name of the
    /// shape's own choice if it does not, such as `model.bias = false`.
    fn requirements(&self, shape: &GptShape) -> Vec<(bool, &'static str)>;

    /// The options of the model that a `config.json` describes. Dropout belongs to a training run and is not among them.
    ///
    /// # Errors
    /// A value that the trainer cannot compute with.
    fn options(&self, config: &ConfigJson<'_>) -> Result<ModelOptions, UserError>;

    /// The keys of `config.json` that are the family's own, as `transformers` reads them.
    fn config_json(&self, shape: &GptShape) -> Json;

    /// How its safetensors files hold our parameters.
    fn tensors(&self) -> &'static TensorNames;
}

/// How the safetensors files of a family, or of several, hold our parameters.
pub struct TensorNames {
    /// The beginning of tensors' names; left out in files of the model without its head.
    pub prefix: &'static str,
    /// Whether files have the matrices of linear layers as `(in, out)`; ours are `(out, in)`.
    pub transposes_linear_layers: bool,
    /// The tensors that hold one of our parameters, in the order of its rows.
    pub of: fn(&GptShape, &str) -> Vec<FileTensor>,
    /// Another tensor that may have a whole parameter, in place of those of `of`. Its first axis may be split in two.
    /// Experts in the memory of `transformers` 5 are such tensors.
    pub fused: fn(&str) -> Option<String>,
    /// Whether a tensor is one that older versions of `transformers` saved though it is no parameter, such as a mask.
    pub is_leftover: fn(&str) -> bool,
}

/// A tensor in a file of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTensor {
    /// Its name in the file.
    pub name: String,
    /// How many rows of the parameter it has; `None` for all.
    pub rows: Option<usize>,
}

impl FileTensor {
    /// A tensor that has a whole parameter.
    pub fn whole(name: String) -> Vec<FileTensor> {
        vec![FileTensor { name, rows: None }]
    }

    /// A tensor that has some rows of a parameter.
    pub fn rows(name: String, rows: usize) -> FileTensor {
        FileTensor { name, rows: Some(rows) }
    }
}
