//! The parts of a step that depend on the length of its samples.

use std::collections::BTreeMap;
use std::convert::Infallible;

use graph_manager::{Error, Result};

use crate::inputs::Inputs;
use crate::model::{Architecture, Model, Shorter, StepTensors};
use crate::params::Params;
use crate::pipeline::Pipeline;

/// The parts of a step that depend on the length of its samples. Those of shorter samples use the same memory.
pub(super) struct OfLength {
    pub(super) model: Model,
    pub(super) inputs: Inputs,
    pub(super) pipeline: Pipeline,
}

impl OfLength {
    /// The same for each of the architecture's shorter lengths.
    pub(super) fn all_shorter(
        &self,
        architecture: &Architecture,
        params: &Params,
        step: &StepTensors,
    ) -> BTreeMap<usize, OfLength> {
        architecture.shorter.iter().map(|shorter| (shorter.length, self.shortened(shorter, params, step))).collect()
    }

    /// The same for shorter samples.
    fn shortened(&self, shorter: &Shorter, params: &Params, step: &StepTensors) -> OfLength {
        let Ok(rotary) = step.rotary.try_map(|table| Ok::<_, Infallible>(table.narrow(0, shorter.length)));
        let model = (shorter.build)(params, StepTensors { rotary, ..step.clone() });
        let pipeline = self.pipeline.shortened(model.residual);
        OfLength { inputs: self.inputs.shortened(&model), model, pipeline }
    }
}

/// Fails if losses are kept of samples of several lengths.
pub(super) fn check_lengths(keeps_losses: bool, architecture: &Architecture) -> Result<()> {
    match keeps_losses && !architecture.shorter.is_empty() {
        true => Err(Error::Usage {
            problem: "evaluations keep the loss of each target, and samples have several lengths".into(),
            fix: "leave StageOptions::keeps_losses off, or the shorter lengths of the architecture out",
        }),
        false => Ok(()),
    }
}
