//! A model from our folder to one of Hugging Face, or back.

use std::path::Path;

use common::UserError;
use common::format::counted;
use data::{ChatTemplate, CopiedFile, Tokenizer, TokenizerCopy};
use engine::model::GptShape;
use serde_json::{Value as Json, json};

use super::adapters::{self, ADAPTER_FILE};
use super::data_type::DataType;
use super::names::{Entry, Naming, entries};
use super::pretrained::Pretrained;
use super::read::WeightFolder;
use super::write::{not_written, write};
use crate::config::Layers;
use crate::config::model_plan::{ModelPlan, model_plan};
use crate::error::RunError;
use crate::families::{self, HuggingFace};

/// Largest file, in bytes, as `transformers` has it.
const SHARD_BYTES: usize = 5_000_000_000;

/// The direction of [`convert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To a folder that `transformers` loads, with values of this type. Adapters are merged into the weights.
    ToHuggingFace(DataType),
    /// The adapters alone, to a folder that PEFT loads, with values of this type.
    ToPeft(DataType),
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
            "--to hf and --to peft take our weights, --from hf a Hugging Face model",
            format!("use {fix}"),
        )
        .into());
    }
    let config = pretrained.config();
    let ModelPlan::Gpt(shape) = model_plan(&config)? else {
        return Err(no_family(source, "model.kind = \"mlp\"").into());
    };
    let (naming, dtype) = match direction {
        Direction::ToHuggingFace(dtype) | Direction::ToPeft(dtype) => {
            let family = families::of_shape(&shape).map_err(|options| no_family(source, &options))?;
            (Naming::Family(family), dtype)
        }
        Direction::FromHuggingFace => (Naming::Ours, DataType::F32),
    };
    for name in ["model.safetensors", "model.safetensors.index.json", ADAPTER_FILE] {
        if target.join(name).exists() {
            return Err(UserError::new(
                format!("{} has a {name}", target.display()),
                "a conversion overwrites no weights",
                "name another folder",
            )
            .into());
        }
    }
    let weights = WeightFolder::open(source, pretrained.naming)?;
    weights.all_used(&entries(&shape, pretrained.naming))?;
    let create = || std::fs::create_dir_all(target).map_err(|error| unwritable(target, &error));
    if let (Direction::ToPeft(_), Naming::Family(family)) = (direction, naming) {
        let Some(lora) = &shape.lora else { return Err(no_adapters(source).into()) };
        let base = base_model(source);
        create()?;
        let to = adapters::write_peft(target, &weights, (&shape, lora), family, dtype, base.as_deref())?;
        return Ok(summary(target, &to));
    }
    let base = GptShape { lora: None, ..shape.clone() };
    let (from, to) = (entries(&base, pretrained.naming), entries(&base, naming));
    create()?;
    write((target, "model"), &to, dtype, SHARD_BYTES, &|index| {
        let values = weights.parameter(&from[index])?;
        adapters::merged(values, &from[index], &weights, &shape)
    })?;
    let tokenizer = tokenizer(&pretrained)?;
    write_config(target, &pretrained, &shape, naming, dtype, tokenizer.as_ref())?;
    if let Some(tokenizer) = &tokenizer {
        let template = ChatTemplate::open(None, Some(source), tokenizer).ok();
        write_tokenizer(target, tokenizer, template.as_ref(), &shape, naming)?;
    }
    Ok(summary(target, &to))
}

/// A line about what was written.
fn summary(target: &Path, written: &[Entry]) -> String {
    let parameters: usize = written.iter().map(|entry| entry.shape.iter().product::<usize>()).sum();
    let tensors = written.iter().map(|entry| entry.parts.len()).sum();
    format!("{}: {} in {}", target.display(), counted(parameters, "parameter"), counted(tensors, "tensor"))
}

/// The model that the adapters of a checkpoint were trained on, if it was read from a folder.
fn base_model(checkpoint: &Path) -> Option<String> {
    let mut layers = Layers::default();
    layers.read_file(&checkpoint.join("config.toml")).ok()?;
    layers.resolve().model.init_from
}

fn no_adapters(source: &Path) -> UserError {
    UserError::new(
        format!("the model of {} has no adapters", source.display()),
        "--to peft writes the adapters that a run with --lora-rank trained",
        "use --to hf, which writes the whole model",
    )
}

fn write_config(
    target: &Path,
    pretrained: &Pretrained,
    shape: &GptShape,
    naming: Naming,
    dtype: DataType,
    tokenizer: Option<&Tokenizer>,
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
            let end = tokenizer.map(Tokenizer::end_of_text).filter(|&end| (end as usize) < shape.vocab);
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

/// The tokenizer of the model in a folder; `None` if nothing there says it.
///
/// # Errors
/// Its copy is damaged.
fn tokenizer(pretrained: &Pretrained) -> Result<Option<Tokenizer>, UserError> {
    let folder = &pretrained.folder;
    match TokenizerCopy::read(folder)? {
        Some(copy) => copy.open(None).map(Some),
        // One without any of the usual ends is left to the user.
        None => Ok(folder.to_str().and_then(|folder| Tokenizer::open(folder, None).ok())),
    }
}

/// Writes copies of the tokenizer and its chat template, and for `transformers` what it does not find in
/// `tokenizer.json`. A tokenizer that is there stays.
fn write_tokenizer(
    target: &Path,
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    shape: &GptShape,
    naming: Naming,
) -> Result<(), RunError> {
    if CopiedFile::Tokenizer.at(target).exists() {
        return Ok(());
    }
    let copy = TokenizerCopy::of(tokenizer);
    let mut files: Vec<_> = copy.files().into_iter().chain(template.map_or(Vec::new(), ChatTemplate::files)).collect();
    if let (Naming::Family(_), TokenizerCopy::HuggingFace { end_of_text, .. }) = (naming, &copy) {
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end_of_text, "model_max_length": shape.seq,
            "clean_up_tokenization_spaces": false,
        });
        if let (Json::Object(config), Some(template)) = (&mut config, template) {
            config.extend(template.special_tokens().iter().map(|(name, token)| (name.clone(), json!(token))));
        }
        files.retain(|(name, _)| *name != CopiedFile::TokenizerConfig);
        files.push((CopiedFile::TokenizerConfig, format!("{config:#}\n").into_bytes()));
    }
    for (file, content) in files {
        let path = file.at(target);
        std::fs::write(&path, content).map_err(not_written(&path))?;
    }
    Ok(())
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
