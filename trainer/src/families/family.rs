//! The description of a model family.

use std::collections::BTreeMap;

use common::UserError;
use engine::model::GptShape;
use serde_json::Value as Json;
use toml::Value;

use super::config_json::ConfigJson;

/// Options by key, with values as in TOML.
pub type Settings = &'static [(&'static str, &'static str)];

/// Options of the model section as text: `name = value`, with a semicolon between two.
pub type ModelText = &'static str;

/// Values of the model section, by key.
pub type ModelOptions = BTreeMap<String, Value>;

/// Values of the model section, by name, such as `layers`.
pub type NamedOptions = Vec<(&'static str, Value)>;

/// Whether a shape has a property, and the name of the shape's own choice if it does not, such as `model.bias = false`.
pub type Requirement = (fn(&GptShape) -> bool, &'static str);

/// A family of models.
pub struct ModelFamily {
    /// The family's name, for people.
    pub name: &'static str,
    /// The options that make a model one of the family, where different from the defaults. A `config.json` of the family
    /// has them too, unless it says otherwise.
    pub choices: ModelText,
    /// Published sizes.
    pub sizes: &'static [Size],
    /// The family's files on Hugging Face; `None` if `transformers` lacks the family.
    pub hugging_face: Option<&'static HuggingFace>,
}

/// A published size of a family. Users name it as a [`Preset`](super::Preset).
pub struct Size {
    /// The preset's name.
    pub name: &'static str,
    /// The sizes, and the choices that differ from the family's.
    pub model: ModelText,
    /// The settings of the model's training.
    pub training: Settings,
}

/// Published sizes: of each the preset's name, how it was trained, and the sizes.
macro_rules! sizes {
    ($($name:literal, $training:expr, $model:literal;)+) => {
        &[$($crate::families::Size { name: $name, model: $model, training: &$training }),+]
    };
}
pub(super) use sizes;

/// The names and values of a text.
pub(super) fn settings(text: ModelText) -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = text.split(';').map(str::trim).filter(|setting| !setting.is_empty());
    all.map(|setting| setting.split_once(" = ").unwrap_or_else(|| unreachable!("{setting} has no value")))
}

/// A family's files on Hugging Face: `config.json`, and the tensors in its safetensors files.
pub struct HuggingFace {
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// The class of the model in `transformers`.
    pub class: &'static str,
    /// The properties that make a model one of the family.
    pub requirements: &'static [&'static [Requirement]],
    /// The numbers that `transformers` takes if a `config.json` lacks a key, as text: `key = number`, with a semicolon between
    /// two.
    pub absent: &'static str,
    /// The keys of `config.json` that are the family's own. Later ones override earlier ones.
    pub keys: &'static [Keys],
    /// How the family's safetensors files hold our parameters.
    pub tensors: TensorNames,
}

impl HuggingFace {
    /// The choices of a shape that files of the family cannot hold.
    pub fn unmet(&self, shape: &GptShape) -> Vec<&'static str> {
        let all = self.requirements.iter().copied().flatten();
        all.filter(|(is_met, _)| !is_met(shape)).map(|(_, words)| *words).collect()
    }
}

/// Some keys of a `config.json`, in both directions.
pub struct Keys {
    /// The options that the keys describe, without choices of the family. Dropout belongs to a training run and is not
    /// among them. The error is a value that the trainer cannot compute with.
    pub read: fn(&ConfigJson<'_>) -> Result<NamedOptions, UserError>,
    /// An object with the keys in the form that `transformers` reads.
    pub write: fn(&GptShape) -> Json,
}

/// How the safetensors files of a family, or of several, hold our parameters.
pub struct TensorNames {
    /// The beginning of tensors' names; left out in files of the model without the head.
    pub prefix: &'static str,
    /// The order of a parameter's values in files, by the parameter's name and number of axes.
    pub layout: fn(&GptShape, &str, usize) -> FileLayout,
    /// The tensors that hold one of our parameters, in the order of the parameter's rows.
    pub of: fn(&GptShape, &str) -> Vec<FileTensor>,
    /// Another tensor that may have a whole parameter, in place of the tensors of `of`. Its first axis may be split in
    /// two. Experts in the memory of `transformers` 5 are such tensors.
    pub fused: fn(&str) -> Option<String>,
    /// Whether the files have a place for layers that predict further tokens, behind the others.
    pub has_further_tokens: bool,
    /// Whether a tensor of a model with that many layers is no parameter, such as a mask that older versions of
    /// `transformers` saved, or one of heads that predict further tokens.
    pub is_leftover: fn(&str, usize) -> bool,
}

/// The order in which a file has the values of a parameter. If it is not ours, one tensor has the whole parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLayout {
    /// That of ours.
    Ours,
    /// The transpose.
    Transposed,
    /// Of each expert the transpose: `(experts, columns, rows)`, or `(experts, rows)` of a bias.
    OfExperts {
        /// Experts of a layer.
        experts: usize,
        /// Rows of gate and gated values come in turns; ours are all of the gate, then the others.
        in_turns: bool,
    },
    /// `A` of an adapter of a tensor of all experts: that of ours, `(experts * rank, columns)`.
    FactorA {
        /// Experts of a layer.
        experts: usize,
    },
    /// `B` of such an adapter: `(rows, rank * experts)`, where ours is `(experts * rows, rank)`.
    FactorB {
        /// Experts of a layer.
        experts: usize,
        /// As in [`FileLayout::OfExperts`].
        in_turns: bool,
    },
}

/// A tensor in a file of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTensor {
    /// The name in the file.
    pub name: String,
    /// How many rows of the parameter the tensor has; `None` for all.
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
