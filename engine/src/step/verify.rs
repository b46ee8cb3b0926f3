//! A step that is verified: with graphs and eagerly, from the same state.

use device::{HostValues, Tensor};
use graph_manager::{Difference, Result, Verification, VerificationBytes, Verified};

use super::{Stage, StepSettings};
use crate::regions::Mode;

impl Stage {
    /// Runs a training step with graphs and, from the same state, without, and compares all that both leave: weights,
    /// gradients, optimizer state, 8-bit copies and scales, loss. Then all of it is as before, and the step itself can
    /// be run. `mode` is that of the step. All ranks call it together; see
    /// [`CudaGraphManager::verify`](graph_manager::CudaGraphManager::verify).
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn verify_step(
        &mut self,
        mode: Mode,
        settings: StepSettings,
        batch: Option<&HostValues>,
        how: &Verification<'_>,
    ) -> Result<Verified> {
        let kind = self.program.kind(mode, settings.length)?;
        self.write_inputs(settings, batch)?;
        self.run_first_forwards(settings)?;
        let program = &self.program;
        let found = self.graphs.verify(kind, settings.microbatches, how, &mut |cx| program.train(cx))?;
        Ok(match found {
            Verified::Differs(mut difference) => {
                difference.tensor = self.name_of(&difference);
                Verified::Differs(difference)
            }
            same => same,
        })
    }

    /// The memory that [`Stage::verify_step`] needs for a recorded training step of so many microbatches.
    pub fn verification_bytes(&self, microbatches: usize) -> VerificationBytes {
        self.graphs.verification_bytes(Mode::Train.into(), microbatches)
    }

    /// The tensor that differs, with the parameter of the tensor's first differing element.
    fn name_of(&self, difference: &Difference) -> String {
        let first = difference.values.as_ref().map_or(0, |values| values.first);
        let at = difference.address + (first * difference.dtype.size()) as u64;
        let holds = |tensor: &Tensor| tensor.range().contains(&at);
        let parameter = self.params().iter().enumerate().find(|(index, (_, param))| {
            let mut own = [Some(param.master), param.grad, param.owned_weight].into_iter().flatten();
            let copies = param.fp8.iter().flat_map(|fp8| [fp8.rows.values, fp8.columns.values]);
            let state = self.optimizer().state(*index).iter().map(|state| state.tensor);
            own.any(|tensor| holds(&tensor)) || copies.chain(state).any(|tensor| holds(&tensor)) || holds(&param.weight)
        });
        match parameter {
            Some((_, (spec, _))) => format!("{} of {}", difference.tensor, spec.name),
            None => difference.tensor.clone(),
        }
    }
}
