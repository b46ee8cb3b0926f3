//! The data of a run.

use std::sync::Arc;

use common::UserError;
use data::{MarkovSource, Missing, Regression, Source};

use crate::config::plan::{ModelPlan, RunPlan};

/// Opens the data of a plan.
///
/// # Errors
/// What is wrong with the data, or a vocabulary that is too small for them.
pub fn source(plan: &RunPlan) -> Result<Arc<dyn Source>, UserError> {
    let data = &plan.config.data;
    data::refuse_unused(data, matches!(plan.model, ModelPlan::Mlp(_)))?;
    let shape = match &plan.model {
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
                "the embedded source's tokens are bytes, 0 to 255",
                "set model.vocab = 256",
            ));
        }
        return Ok(Arc::new(MarkovSource::new(data.seed, shape.seq)));
    };
    let source = data::open(path, data, shape.seq, shape.vocab)?;
    if let (false, Some(interval)) = (source.validates(), plan.eval_interval()) {
        return Err(UserError::new(
            format!("data.split = {} with train.eval_interval = {interval}", data.split),
            "evaluation needs data that are not trained on",
            "set data.split = 0.9, data.validation_path, or train.eval_interval = 0",
        ));
    }
    Ok(Arc::new(source))
}

/// As [`source()`], for a plan or a benchmark, which read none: files that are not there do not keep it from being made.
///
/// # Errors
/// As [`source()`], but for files that are missing.
pub fn source_to_plan(plan: &RunPlan) -> Result<Arc<dyn Source>, UserError> {
    let data = &plan.config.data;
    data::refuse_unused(data, matches!(plan.model, ModelPlan::Mlp(_)))?;
    match Missing::of(data) {
        Some(missing) => Ok(Arc::new(missing)),
        None => source(plan),
    }
}
