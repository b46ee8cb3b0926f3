//! A model from our folder to one of Hugging Face, or back.

use std::path::Path;

use common::format::counted;
use common::terminal::warn;
use common::{Choice, Mistakes, UserError};
use data::{ChatTemplate, CopiedFile, RecordKind, Tokenizer, TokenizerCopy};
use engine::model::GptShape;

use super::adapters::{self, ADAPTER_FILE};
use super::export::Export;
use super::names::{Entry, Naming, copies, entries};
use super::peft_config::{ADAPTER_CONFIG, BASE_MODEL};
use super::pretrained::Pretrained;
use super::source::SourceFiles;
use super::write::{not_written, write};
use crate::checkpoint::{DataType, SourceFile};
use crate::config::RunConfig;
use crate::config::plan::{ModelPlan, model_plan};
use crate::error::RunError;
use crate::families;

/// The largest file of weights, in bytes, as in `transformers`.
const SHARD_BYTES: usize = 5_000_000_000;

/// Runs that began with one another's checkpoints, at most.
const MOST_RUNS: usize = 1000;

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

/// Writes the model of `source` to the new folder `target`, and returns a line about the model.
///
/// # Errors
/// The user's: a source that is damaged or of the other kind, a model of no Hugging Face family, a target that has weights
/// already or cannot be created. A fault: a file that cannot be written.
pub fn convert(source: &Path, target: &Path, direction: Direction) -> Result<String, RunError> {
    let mut mistakes = Mistakes::default();
    let pretrained = check(source, target, direction, &mut mistakes);
    mistakes.end()?;
    let Some(pretrained) = pretrained else { unreachable!("a conversion without mistakes has a model") };
    let source = pretrained.folder();
    let config = pretrained.config();
    let ModelPlan::Gpt(mut shape) = model_plan(&config)? else {
        return Err(no_family(source, "model.kind = \"mlp\"").into());
    };
    let files = pretrained.source_files()?;
    let model = if direction == Direction::FromHuggingFace { None } else { files.model(source)? };
    let (naming, dtype) = match direction {
        Direction::ToHuggingFace(dtype) | Direction::ToPeft(dtype) => {
            let like = model.as_ref().map(|model| model.family).filter(|family| family.unmet(&shape).is_empty());
            let family = like.map_or_else(|| families::of_shape(&shape), Ok);
            (Naming::Family(family.map_err(|options| no_family(source, &options))?), dtype)
        }
        Direction::FromHuggingFace => (Naming::Ours, DataType::F32),
    };
    pretrained.tell_of_unread(&shape);
    let weights = pretrained.weights(&shape, 0..0)?;
    if let (Naming::Family(family), Some(further)) = (naming, shape.further_tokens)
        && !family.tensors.has_further_tokens
    {
        let (depths, class) = (further.depths, family.class);
        warn(&format!(
            "notice: model.mtp_layers = {depths}: {class} has no place for these layers, and they are left out"
        ));
        shape.further_tokens = None;
    }
    weights.check_tied_head()?;
    let run = pretrained.run().ok().flatten();
    let create = || std::fs::create_dir_all(target).map_err(|error| unwritable(target, &error));
    if let (Direction::ToPeft(_), Naming::Family(family)) = (direction, naming) {
        let Some(lora) = &shape.lora else { return Err(no_adapters(source).into()) };
        // Training may have begun with adapters over another model.
        let before = files.json(SourceFile::Adapters).ok().flatten();
        let before = before.and_then(|before| Some(before.get(BASE_MODEL)?.as_str()?.to_string()));
        let base = before.or_else(|| run.and_then(base_of));
        tell_of_base(base.as_deref());
        create()?;
        let to = adapters::write_peft(target, &weights, (&shape, lora), family, dtype, base.as_deref())?;
        return Ok(summary(target, &to));
    }
    let (tokenizer, learned_answers) =
        (tokenizer(&pretrained)?, run.is_some_and(|run| run.data.kind() != RecordKind::Documents));
    let template = tokenizer.as_ref().and_then(|tokenizer| template(pretrained.tokenizer_folder(), tokenizer));
    let (tokenizer, template) = (tokenizer.as_ref(), template.as_ref());
    let export = match naming {
        Naming::Ours => None,
        Naming::Family(family) => {
            let (shape, source, model) = (&shape, &files, model.as_ref());
            let export = Export { target, shape, family, dtype, source, model, tokenizer, template, learned_answers };
            Some((export.config()?, export))
        }
    };
    let base = GptShape { lora: None, ..shape.clone() };
    let (mut from, mut to) = (entries(&base, pretrained.naming), entries(&base, naming));
    if matches!(naming, Naming::Family(_)) {
        let copied = copies(&base, &to);
        let source = |copy: &Entry| from.iter().find(|entry| entry.name == copy.name).cloned();
        let sources: Vec<Entry> = copied.iter().filter_map(source).collect();
        from.extend(sources);
        to.extend(copied);
    }
    create()?;
    write((target, "model"), &to, dtype, SHARD_BYTES, &|index, rows| {
        adapters::merged(&from[index], rows, &weights, &shape)
    })?;
    match export {
        None => write_ours(target, &pretrained, &files, tokenizer, template)?,
        Some((config, export)) => export.write(config)?,
    }
    Ok(summary(target, &to))
}

/// The model to convert. A source of the other kind, or a target with weights, is added to `mistakes`.
pub fn check(source: &Path, target: &Path, direction: Direction, mistakes: &mut Mistakes) -> Option<Pretrained> {
    let weights = ["model.safetensors", "model.safetensors.index.json", ADAPTER_FILE];
    if let Some(name) = weights.iter().find(|name| target.join(name).exists()) {
        let what = format!("{} has a {name}", target.display());
        mistakes.add(UserError::new(what, "a conversion overwrites no weights", "name another folder"));
    }
    let pretrained = mistakes.keep(Pretrained::open(source))?;
    let (theirs, adapters) = (pretrained.is_hugging_face(), pretrained.adapters().is_some());
    let fits = match direction {
        Direction::ToHuggingFace(_) => adapters || !theirs,
        Direction::ToPeft(_) => !adapters && !theirs,
        Direction::FromHuggingFace => !adapters && theirs,
    };
    if !fits {
        let (has, fix) = match (adapters, theirs) {
            (true, _) => (ADAPTER_CONFIG, "use --to hf, which merges the adapters into their model"),
            (false, true) => ("config.json", "use --from hf"),
            (false, false) => ("config.toml", "use --to hf"),
        };
        mistakes.add(UserError::new(
            format!("{} has a {has}", pretrained.folder().display()),
            "--to hf takes our weights or adapters of PEFT, --to peft our adapters, --from hf a Hugging Face model",
            fix,
        ));
    }
    Some(pretrained)
}

/// A line about the written tensors.
fn summary(target: &Path, written: &[Entry]) -> String {
    let parameters: usize = written.iter().map(|entry| entry.shape.iter().product::<usize>()).sum();
    let tensors = written.iter().map(|entry| entry.parts.len()).sum();
    format!("{}: {} in {}", target.display(), counted(parameters, "parameter"), counted(tensors, "tensor"))
}

/// The model below the adapters of a run. A run that went on with adapters began with the checkpoint of another.
fn base_of(run: RunConfig) -> Option<String> {
    let before = |folder: &Option<String>| {
        let opened = Pretrained::open_checked(folder.as_ref()?.as_ref()).ok().filter(Pretrained::has_adapters)?;
        Some(opened.run().ok()??.model.init_from)
    };
    std::iter::successors(Some(run.model.init_from), before).take(MOST_RUNS).last().flatten()
}

/// Prints a notice if PEFT does not find the model that the adapters belong to.
fn tell_of_base(base: Option<&str>) {
    match base {
        None => warn("notice: base_model_name_or_path is null: the run did not begin with a model"),
        Some(base) if Path::new(base).join("config.toml").exists() => warn(&format!(
            "notice: base_model_name_or_path is {base}, a model in our format: for PEFT, name the output of `trainer \
             convert --to hf {base}` there"
        )),
        Some(_) => {}
    }
}

fn no_adapters(source: &Path) -> UserError {
    UserError::new(
        format!("the model of {} has no adapters", source.display()),
        "--to peft writes the adapters that a run with --lora-rank trained",
        "use --to hf, which writes the whole model",
    )
}

/// Writes a model that `model.init_from` takes, without the weights: its options, its tokenizer, and the files that it
/// had at Hugging Face.
fn write_ours(
    target: &Path,
    pretrained: &Pretrained,
    source: &SourceFiles,
    tokenizer: Option<&Tokenizer>,
    template: Option<&ChatTemplate>,
) -> Result<(), RunError> {
    let lines = pretrained.options.iter().map(|(key, value)| {
        let name = key.trim_start_matches("model.");
        format!("{name} = {value}\n")
    });
    let config = format!("[model]\n{}", lines.collect::<String>());
    let mut files = vec![("config.toml", config.into_bytes())];
    files.extend(source.iter().map(|(file, content)| (file.word(), content.to_vec())));
    if CopiedFile::Tokenizer.at(target).exists() {
        warn(&format!("notice: {} has a tokenizer.json, which stays", target.display()));
    } else {
        let copies = tokenizer.map_or(Vec::new(), |tokenizer| TokenizerCopy::of(tokenizer).files());
        let copies = copies.into_iter().chain(template.map_or(Vec::new(), ChatTemplate::files));
        files.extend(copies.map(|(file, content)| (file.word(), content)));
    }
    files.into_iter().try_for_each(|(name, content)| {
        let path = target.join(name);
        std::fs::write(&path, content).map_err(not_written(&path))
    })
}

/// The tokenizer of the model in a folder; `None` if no file there tells the tokenizer.
///
/// # Errors
/// Its copy is damaged.
fn tokenizer(pretrained: &Pretrained) -> Result<Option<Tokenizer>, UserError> {
    let folder = pretrained.tokenizer_folder();
    match TokenizerCopy::read(folder)? {
        Some(copy) => copy.open(None).map(Some),
        // One without any of the usual ends is left to the user.
        None => Ok(folder.to_str().and_then(|folder| Tokenizer::open(folder, None).ok())),
    }
}

/// The chat template in a folder. A notice says why one is left out.
fn template(folder: &Path, tokenizer: &Tokenizer) -> Option<ChatTemplate> {
    ChatTemplate::of_folder(folder, tokenizer).unwrap_or_else(|error| {
        warn(&format!("notice: the chat template is left out: {error}"));
        None
    })
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
