//! The data of a run.

use std::sync::Arc;

use common::UserError;
use common::format::bytes;
use data::{DataConfig, MarkovSource, Missing, MultipleChoice, Paths, Regression, Source, TokenSource};
use engine::model::GptShape;

use crate::config::RunConfig;
use crate::config::plan::{EvaluationPlan, ModelPlan, RunPlan};
use crate::extensions::{Extensions, Own};
use crate::run::evaluate::EvaluationSet;
use crate::run::multiple_choice::ChoiceSet;

/// Opens the data of a run.
///
/// # Errors
/// Data that are wrong or too few, or a vocabulary that is too small for them; new tokens that would not be trained.
pub fn source(plan: &RunPlan) -> Result<Arc<dyn Source>, UserError> {
    let frozen = ["wte.weight", "lm_head.weight"].into_iter().find(|name| plan.frozen.has(name));
    if let Some(frozen) = frozen
        && !data::new_tokens(&plan.config.data)?.is_empty()
    {
        return Err(UserError::new(
            format!("data.add_special_tokens with {frozen} frozen (adapters, or optimizer.freeze)"),
            "rows of new tokens begin as a mean of others, and training tells them apart",
            "train all weights with them first, and adapters from that checkpoint (--init-from); or take a template \
             whose markers are tokens",
        ));
    }
    match own(&plan.config)? {
        Some(own) => Ok(own),
        None => open(&plan.config.data, &plan.model, plan.evaluation, plan.config.grouped_batch()),
    }
}

/// The source that the program adds, if the run names one.
fn own(config: &RunConfig) -> Result<Option<Arc<dyn Source>>, UserError> {
    let own = Own::chosen(Extensions::installed().sources, "data", config)?;
    if let (Some(_), Some(path)) = (&own, &config.data.path) {
        return Err(UserError::new(
            format!("own.data with data.path = {path:?}"),
            "a run has one source of samples",
            "leave one of the two out",
        ));
    }
    Ok(own)
}

/// Opens the data of a dry run or a benchmark. These read no samples. Missing files are allowed.
///
/// # Errors
/// As [`source()`], except for missing files.
pub fn source_to_plan(plan: &RunPlan) -> Result<Arc<dyn Source>, UserError> {
    let data = &plan.config.data;
    data::refuse_unused(data, matches!(plan.model, ModelPlan::Mlp(_)))?;
    match Missing::of(data) {
        Some(missing) => Ok(Arc::new(missing)),
        None => source(plan),
    }
}

/// Opens the data of a model that is only planned, as [`source_to_plan`]. Nothing needs to be left to evaluate on.
///
/// # Errors
/// As [`source_to_plan`].
pub fn source_of_model(data: &DataConfig, model: &ModelPlan) -> Result<Arc<dyn Source>, UserError> {
    match Missing::of(data) {
        Some(missing) => Ok(Arc::new(missing)),
        None => open(data, model, None, None),
    }
}

/// `grouped`: conversations of like length come together, in batches of so many.
fn open(
    data: &DataConfig,
    model: &ModelPlan,
    evaluation: Option<EvaluationPlan>,
    grouped: Option<usize>,
) -> Result<Arc<dyn Source>, UserError> {
    data::refuse_unused(data, matches!(model, ModelPlan::Mlp(_)))?;
    let shape = match model {
        ModelPlan::Mlp(shape) => {
            let (first, last) = (shape.sizes[0], shape.sizes[shape.sizes.len() - 1]);
            return Ok(Arc::new(Regression::new(data.seed, first, last)));
        }
        ModelPlan::Gpt(shape) => shape,
    };
    let Some(path) = &data.path else {
        if shape.vocab < 256 {
            return Err(UserError::new(
                format!("model.vocab = {}", shape.vocab),
                "the tokens of the built-in source are bytes, 0 to 255",
                "set model.vocab = 256",
            ));
        }
        return Ok(Arc::new(MarkovSource::new(data.seed, shape.max_seq_len)));
    };
    let mut source = data::open(path, data, shape.max_seq_len, shape.vocab)?;
    tell_unused_rows("data.path", &mut source, shape);
    if let Some(batch) = grouped {
        source = source.grouped_by_length(batch);
    }
    if let (false, Some(evaluation)) = (source.validates(), evaluation) {
        return Err(UserError::new(
            format!("data.split = {} with train.eval_interval = {}", data.split, evaluation.interval),
            "evaluation needs data that are not trained on",
            "set data.split = 0.9, data.validation_path, or train.eval_interval = 0",
        ));
    }
    Ok(Arc::new(source))
}

/// Opens the further data to evaluate on, beside the data of `source`.
///
/// # Errors
/// An item other than `NAME=PATH`; a name given twice; data that are wrong, or of another tokenizer than those of
/// `source`.
pub fn validation_sets(plan: &RunPlan, source: &dyn Source) -> Result<Vec<EvaluationSet>, UserError> {
    let sets = &plan.config.data.validation_sets;
    let mut opened: Vec<EvaluationSet> = Vec::new();
    for text in sets {
        let refuse = |rule: &str, fix: &str| Err(UserError::new(format!("data.validation_sets = {text:?}"), rule, fix));
        let named =
            |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        let Some((name, path)) = text.split_once('=').filter(|(name, path)| named(name) && !path.is_empty()) else {
            let rule = "a set is NAME=PATH, and its name has letters, digits, - _ and . only";
            return refuse(rule, "for example data.validation_sets = [\"code=code.txt\"]");
        };
        if opened.iter().any(|set| set.name == name) {
            return refuse("each set has a name of its own", "rename one of the two");
        }
        let set = evaluation_set(plan, name, path)
            .map_err(|error| UserError { what: error.what.replace("data.path = ", &format!("{name}: ")), ..error })?;
        let (theirs, ours) = (set.source.tokenizer(), source.tokenizer());
        if theirs.is_some() && ours.is_some() && theirs != ours {
            return refuse(
                "data of one run are tokens of one tokenizer",
                "name that of data.path with --tokenizer, or make tokens of both with the same",
            );
        }
        opened.push(set);
    }
    if let (Some(first), None) = (sets.first(), plan.evaluation) {
        return Err(UserError::new(
            format!("data.validation_sets = [{first:?}, ...] with train.eval_interval = 0"),
            "further data are read where a run evaluates",
            "set train.eval_interval, or leave the sets out",
        ));
    }
    Ok(opened)
}

/// A data set to evaluate on: all of `path`.
///
/// # Errors
/// A model that is none of text; data that are wrong.
pub fn evaluation_set(plan: &RunPlan, name: &str, path: &str) -> Result<EvaluationSet, UserError> {
    let shape = shape_of_text(plan)?;
    let mut source =
        data::open_to_evaluate(&Paths::One(path.into()), &plan.config.data, shape.max_seq_len, shape.vocab)?;
    tell_unused_rows(name, &mut source, shape);
    Ok(EvaluationSet { name: name.into(), source })
}

/// Multiple-choice questions to evaluate on.
///
/// # Errors
/// A model that is none of text; a line that is no question.
pub fn choice_set(plan: &RunPlan, path: &str) -> Result<ChoiceSet, UserError> {
    let shape = shape_of_text(plan)?;
    let mut questions = MultipleChoice::open(path, &plan.config.data, shape.max_seq_len, shape.vocab)?;
    questions.notices.extend(unused_rows(path, questions.tokenizer_vocab, shape));
    Ok(ChoiceSet { name: path.into(), questions })
}

/// Adds the line about rows of the model's table that the data, `name`, never use.
fn tell_unused_rows(name: &str, source: &mut TokenSource, shape: &GptShape) {
    let line = source.tokenizer_vocab.and_then(|tokens| unused_rows(name, tokens, shape));
    source.notices.extend(line);
}

/// The shape of a model of text.
fn shape_of_text(plan: &RunPlan) -> Result<&GptShape, UserError> {
    match &plan.model {
        ModelPlan::Gpt(shape) => Ok(shape),
        ModelPlan::Mlp(_) => {
            let rule = "evaluation of data sets is for models of text";
            Err(UserError::new("model.kind = \"mlp\"", rule, "set model.kind = \"gpt\""))
        }
    }
}

/// Fewer rows of the table of tokens than this are padding to a multiple, as is usual.
const PADDING: usize = 128;

/// A line if the model has far more tokens than the `tokens` of the tokenizer of `name`: by more than a sixteenth of
/// them.
fn unused_rows(name: &str, tokens: usize, shape: &GptShape) -> Option<String> {
    let rows = shape.vocab.saturating_sub(tokens);
    if rows < PADDING || rows <= tokens / 16 {
        return None;
    }
    let tables = if shape.tied { 1 } else { 2 };
    let weights = rows * shape.hidden * tables * shape.precision.activations().size();
    let tables = if shape.tied { "the table of tokens" } else { "the table of tokens, and of the head," };
    Some(format!(
        "the tokenizer of {name} has {tokens} tokens, and model.vocab = {}: {rows} rows of {tables} are never used, {} of \
         weights. Name the model's tokenizer with --tokenizer, or set --vocab {tokens}",
        shape.vocab,
        bytes(weights)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;

    #[test]
    fn rows_far_above_the_tokenizers_vocabulary_are_said_with_their_bytes_and_padding_is_not() {
        let told = |vocab: usize, tokens: usize, tied: &str| {
            let mut sources = ConfigSources::default();
            for (key, value) in [("model.vocab", vocab.to_string()), ("model.tie_embeddings", tied.into())] {
                sources.set(key, &value, "test").unwrap();
            }
            let ModelPlan::Gpt(shape) = RunPlan::new(sources.resolve(), 1).unwrap().model else { panic!("a gpt") };
            (unused_rows("data.path", tokens, &shape), shape.hidden)
        };
        let (line, hidden) = told(128_256, 256, "true");
        let line = line.unwrap();
        assert!(
            line.contains("has 256 tokens, and model.vocab = 128256: 128000 rows of the table of tokens are"),
            "{line}"
        );
        assert!(line.contains(&format!("never used, {} of weights", bytes(128_000 * hidden * 4))), "{line}");
        assert!(told(128_256, 256, "false").0.unwrap().contains(&bytes(2 * 128_000 * hidden * 4)));
        // GPT-2, Phi-1.5, Qwen2.5-7B and a table padded to a multiple of 128.
        for (vocab, tokens) in [(50_304, 50_257), (51_200, 50_295), (152_064, 151_665), (384, 257), (256, 256)] {
            assert_eq!(told(vocab, tokens, "true").0, None, "{vocab} {tokens}");
        }
    }
}
