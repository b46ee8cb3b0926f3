//! The data of a run.

use std::sync::Arc;

use common::UserError;
use data::{DataConfig, MarkovSource, Missing, Regression, Source};

use crate::config::plan::{EvaluationPlan, ModelPlan, RunPlan};

/// Opens the data of a run.
///
/// # Errors
/// Data that are wrong or too few, or a vocabulary that is too small for them.
pub fn source(plan: &RunPlan) -> Result<Arc<dyn Source>, UserError> {
    open(&plan.config.data, &plan.model, plan.evaluation)
}

/// Opens the data of a dry run or a benchmark, which read no samples. Missing files are allowed.
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

fn open(
    data: &DataConfig,
    model: &ModelPlan,
    evaluation: Option<EvaluationPlan>,
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
        return Ok(Arc::new(MarkovSource::new(data.seed, shape.seq)));
    };
    let source = data::open(path, data, shape.seq, shape.vocab)?;
    if let (false, Some(evaluation)) = (source.validates(), evaluation) {
        return Err(UserError::new(
            format!("data.split = {} with train.eval_interval = {}", data.split, evaluation.interval),
            "evaluation needs data that are not trained on",
            "set data.split = 0.9, data.validation_path, or train.eval_interval = 0",
        ));
    }
    Ok(Arc::new(source))
}
